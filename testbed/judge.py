"""From a run folder to its verdict and reports. Only the folder counts, so a run can be judged again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from testbed.checkers import check
from testbed.report import write_reports
from testbed.report.page import replay_command
from testbed.run_folder import RunFolder, read_lines

WORST_FIRST = ("fail", "unknown", "pass")


def judge(folder: RunFolder) -> dict[str, Any]:
    """Check the run, write ``result.json``, ``junit.xml`` and ``report.html``, and return the result."""
    run = json.loads(folder.resolved.read_text(encoding="utf-8"))
    events = list(read_lines(folder.events)) if folder.events.is_file() else []
    result = dict(check(folder.path).to_json())
    conduct = conducted(events)
    checks = [conduct, *result["checks"]]
    result = {
        **result,
        "verdict": overall(checks),
        "checks": checks,
        "name": run["name"],
        "run_id": run["run_id"],
        "seed": run["seed"],
        "replay": replay_command(run),
        "warnings": [event["text"] for event in events if event["event"] == "run.warning"],
    }
    write_reports(folder, result)
    return result


def overall(checks: list[Mapping[str, Any]]) -> str:
    """One fail is a fail, else one unknown is unknown. Skipped does not count; nothing is unknown."""
    verdicts = {check["verdict"] for check in checks}
    return next((verdict for verdict in WORST_FIRST if verdict in verdicts), "unknown")


def conducted(events: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The check ``run``: whether the run went from its beginning to its end as planned.

    A node that ended by itself is a fail. A run that was interrupted, or that the testbed could not bring to
    its end, proves nothing: unknown.
    """
    fails = [
        _violation(f"{event['node']} ended by itself with status {event['status']}", event)
        for event in events
        if event["event"] == "node.exited" and not event["expected"]
    ]
    doubts = [
        _violation(event.get("text") or f"interrupted by {event['signal']}", event)
        for event in events
        if event["event"] in ("run.error", "run.interrupted")
    ]
    names = {event["event"] for event in events}
    for needed, text in (
        ("traffic.started", "no traffic was started"),
        ("traffic.stopped", "traffic was not brought to its end"),
        ("run.finished", "the run was cut off"),
    ):
        if needed not in names:
            doubts.append({"what": text, "where": "events.jsonl", "evidence": f"no event {needed}"})
    verdict = "fail" if fails else "unknown" if doubts else "pass"
    summary = {
        "fail": "a node ended by itself",
        "unknown": "the run did not go to its end",
        "pass": "went as planned",
    }
    return {
        "name": "run",
        "verdict": verdict,
        "summary": summary[verdict],
        "violations": fails + doubts,
        "measurements": {},
    }


def _violation(what: str, event: Mapping[str, Any]) -> dict[str, Any]:
    return {"what": what, "where": f"events.jsonl at {event['t']}", "evidence": event}
