"""The reports of a run: right numbers, nothing fetched from elsewhere, no text of a node taken as markup."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

from testbed.report import write_reports
from testbed.report.junit import junit
from testbed.report.page import replay_command
from testbed.report.story import BINS, tell
from testbed.report.timeline import timeline
from testbed.run_folder import RunFolder

MS = 1_000_000


def check(name: str, verdict: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "verdict": verdict, "summary": "", "violations": [], "measurements": {}, **fields}


def test_the_story_tells_owners_handovers_faults_and_deliveries(hand_made: RunFolder) -> None:
    story = tell(hand_made)
    assert [(span.row, span.label, span.begin, span.end) for span in story.owners] == [
        ("stage-1", "w0", 20 * MS, 412 * MS),
        ("stage-1", "w1", 410 * MS, 1200 * MS),  # until its process ended
    ]
    assert [(span.label, span.end - span.begin, span.bad) for span in story.handovers] == [("to w1", 12 * MS, False)]
    assert [(span.label, span.begin, span.end, span.bad) for span in story.faults] == [
        ("impair", 200 * MS, 700 * MS, False),
        ("crash", 800 * MS, 900 * MS, False),
    ]
    assert [(span.row, span.end) for span in story.processes] == [("w0", 805 * MS), ("w1", 1200 * MS)]
    assert {name: sum(counts) for name, counts in story.deliveries.items()} == {"TOKEN": 2}
    assert len(story.deliveries["TOKEN"]) == BINS


def test_a_run_that_was_cut_off_is_told_as_far_as_it_went(hand_made: RunFolder) -> None:
    events = hand_made.events.read_bytes().splitlines(keepends=True)
    hand_made.events.write_bytes(b"".join(events[:5]) + events[5][:10])
    journal = next((hand_made.path / "nodes" / "w1").glob("journal-*"))
    journal.write_bytes(journal.read_bytes()[:-20])
    story = tell(hand_made)
    assert [(span.label, span.bad) for span in story.faults] == [("impair", True)]
    assert "never healed" in _page(hand_made, [check("run", "unknown")], "unknown")


def test_a_run_folder_with_nothing_but_its_inputs_still_has_a_report(hand_made: RunFolder) -> None:
    hand_made.events.unlink()
    for journal in hand_made.path.glob("nodes/*/journal-*"):
        journal.unlink()
    (hand_made.captures / "counters.json").unlink()
    assert "by-hand" in _page(hand_made, [check("run", "unknown")], "unknown")


def test_the_timeline_is_one_picture_of_well_formed_markup(hand_made: RunFolder) -> None:
    picture = ElementTree.fromstring(timeline(tell(hand_made)))
    titles = [title.text or "" for title in picture.iter("title")]
    assert any("handover 00000000000000aa" in title and "completed" in title for title in titles)
    assert any(title.startswith("impair: 0.500 s") for title in titles)
    for bar in picture.iter("rect"):
        assert 0 <= float(bar.get("x", "-1")) <= 1120


def test_the_page_needs_nothing_else_and_says_how_to_run_again(hand_made: RunFolder) -> None:
    page = _page(hand_made, [check("delivery", "pass", measurements={"cutover_p99_ns": 12 * MS})], "pass")
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page)
    assert "<script" not in page
    for text in (
        "testbed run faults/scenarios/by-hand.yaml --seed 42 --topology pair",
        "12.00 ms",
        "fifo:50",
    ):
        assert text in page


def test_what_nodes_wrote_is_never_markup(hand_made: RunFolder) -> None:
    nasty = "<script>alert(1)</script>"
    violation = {"what": nasty, "where": {"file": nasty}, "evidence": nasty}
    page = _page(hand_made, [check("delivery", "fail", summary=nasty, violations=[violation])], "fail")
    assert nasty not in page
    assert "&lt;script&gt;" in page


def test_junit_counts_and_escapes(hand_made: RunFolder) -> None:
    checks = [
        check("delivery", "fail", violations=[{"what": "lost \x00<1>", "where": "w0", "evidence": "x"}]),
        check("ownership", "pass"),
        check("cutover", "unknown", summary="no handover"),
        check("staleness", "skipped"),
    ]
    suite = ElementTree.fromstring(junit("by-hand", {"checks": checks}))
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    assert "lost <1>" in (suite.find("testcase/failure").text or "")  # type: ignore[union-attr]


def test_the_replay_command_quotes() -> None:
    run = {"seed": 7, "replay": {"scenario": "my files/a.yaml", "topology": None, "capture": "node"}}
    assert replay_command(run) == "testbed run 'my files/a.yaml' --seed 7 --capture node"


def _page(folder: RunFolder, checks: list[dict[str, Any]], verdict: str) -> str:
    write_reports(folder, {"verdict": verdict, "checks": checks, "warnings": []})
    assert json.loads(folder.result.read_text())["verdict"] == verdict
    return folder.report.read_text()
