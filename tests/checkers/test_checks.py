"""What each checker makes of runs that are neither plainly good nor doctored: crashes, cut-off runs, thin traffic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.checkers import CheckResult, check
from testbed.history import HistoryError, load
from tests.checkers.recording import write_capture
from tests.checkers.story import DELAY, IN, MS, OUT, SECOND, Story, usual

Said = dict[str, CheckResult]


def judge(story: Story, folder: Path, change: Callable[[Path], None] | None = None) -> Said:
    run = story.run.write(folder / "run")
    if change is not None:
        change(run)
    return {one.name: one for one in check(run).checks}


def begun(requests: int = 3, **expect: Any) -> Story:
    story = Story()
    story.run.expect = expect
    story.begin()
    for _ in range(requests):
        story.request()
    return story


def finished(story: Story) -> Story:
    story.run.finish()
    return story


def event(story: Story, name: str) -> dict[str, Any]:
    return next(one for one in story.run.events if one["event"] == name)


def cut_off(story: Story) -> Story:
    """Traffic did not come to its end."""
    event(story, "traffic.stopped").update(complete=False, missing="nobody answered")
    return story


def verdict(said: Said, name: str) -> str:
    return said[name].verdict


def test_the_same_over_ipv6(tmp_path: Path) -> None:
    assert check(usual(ipv6=True).write(tmp_path / "run")).verdict == "pass"


# Delivery


def in_flight() -> Story:
    """The last message was sent, and neither arrived nor was acknowledged."""
    story = begun()
    stream = story.streams[IN]
    story.write(stream, 300)
    return story


def test_a_message_that_never_arrived_is_a_fail_once_traffic_has_ended(tmp_path: Path) -> None:
    said = judge(finished(in_flight()), tmp_path)
    assert verdict(said, "delivery") == "fail"
    assert "although traffic came to its end" in said["delivery"].summary


def test_a_message_in_flight_when_the_run_was_cut_off_is_unknown(tmp_path: Path) -> None:
    said = judge(cut_off(finished(in_flight())), tmp_path)
    assert verdict(said, "delivery") == "unknown"


def test_a_message_that_waits_for_long_hangs_even_if_the_run_was_cut_off(tmp_path: Path) -> None:
    story = in_flight()
    story.run.wait(11 * SECOND)
    said = judge(cut_off(finished(story)), tmp_path)
    assert verdict(said, "delivery") == "fail"
    assert "hangs" in said["delivery"].summary


def test_what_was_acknowledged_and_not_delivered_is_a_fail_however_the_run_ended(tmp_path: Path) -> None:
    story = in_flight()
    stream = story.streams[IN]
    story.acknowledge(stream, message=4, offset=stream.end, end=stream.end)
    said = judge(cut_off(finished(story)), tmp_path)
    assert verdict(said, "delivery") == "fail"
    assert "acknowledged as delivered" in said["delivery"].summary
    assert verdict(said, "capture-against-history") == "fail"


def reset(story: Story, node: str, side: str) -> None:
    fields = {"stream": story.streams[IN].name, "side": side, "cause": "owner-died", "text": ""}
    story.run.note(node, "stream.reset", **fields)


def test_a_reset_excuses_what_was_not_delivered(tmp_path: Path) -> None:
    story = in_flight()
    story.run.expect = {"resets": {"causes": ["owner-died"]}}
    reset(story, "w0", "sender")
    reset(story, "w1", "receiver")
    said = judge(finished(story), tmp_path)
    assert (verdict(said, "delivery"), verdict(said, "resets")) == ("pass", "pass")
    assert said["delivery"].measurements["given_up_by_reset"] == 1


def test_nodes_that_end_their_streams_when_stopped_excuse_nothing_that_was_sent_long_before(tmp_path: Path) -> None:
    story = in_flight()
    story.run.wait(2 * SECOND)
    story.run.event("traffic.stopped", complete=True, issued=3, done=3)
    story.run.wait(MS)
    reset(story, "w0", "sender")
    reset(story, "w1", "receiver")
    said = judge(finished(story), tmp_path)
    assert verdict(said, "resets") == "pass"
    assert verdict(said, "delivery") == "fail"


def test_a_reset_that_the_other_end_never_learns_of_is_a_fail(tmp_path: Path) -> None:
    story = in_flight()
    story.run.expect = {"resets": {}}
    reset(story, "w0", "sender")
    story.run.wait(6 * SECOND)
    said = judge(finished(story), tmp_path)
    assert verdict(said, "delivery") == "fail"
    assert "never learned" in said["delivery"].summary


def killed(story: Story, node: str) -> None:
    """The process is gone at once; the rest of its journal and exit as made up by ``finish`` are taken away."""
    at = story.run.now
    story.run.event("node.exited", node=node, pid=100 + story.run.nodes.index(node), status=-9, expected=True)
    story.run.wait(500 * MS)
    finished(story)
    story.run.events = [
        one for one in story.run.events if not (one["event"] == "node.exited" and one["node"] == node and one["t"] > at)
    ]
    story.run.journals[node] = [one for one in story.run.journals[node] if one["t"] <= at]


def test_the_last_line_of_a_killed_node_may_be_unfinished(tmp_path: Path) -> None:
    story = in_flight()
    story.run.expect = {"resets": {}}
    reset(story, "w0", "sender")
    story.run.wait(MS)
    killed(story, "w1")

    def cut(run: Path) -> None:
        path = next((run / "nodes" / "w1").glob("journal-*"))
        path.write_bytes(path.read_bytes() + b'{"t":1,"event":"mess')

    said = judge(story, tmp_path, cut)
    assert {name: one.verdict for name, one in said.items() if one.verdict in ("fail", "unknown")} == {}


def test_a_journal_that_nobody_ended_is_not_whole(tmp_path: Path) -> None:
    story = finished(begun())
    story.run.journals["w1"] = [one for one in story.run.journals["w1"] if one["event"] != "node.stopping"]
    said = judge(story, tmp_path)
    assert verdict(said, "delivery") == "unknown"
    assert "does not go up to node.stopping" in said["delivery"].summary


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"t":1,"event":"message.sent","node":"w0","stream":"xyz"}', "16 hex digits"),
        ('{"t":1,"event":"message.lost","node":"w0"}', "not one of docs/history.md"),
        ('{"t":"1","event":"app.done","node":"w0"}', "expected int"),
        ('{"t":1,"event":"app.done","node":"w9"}', "expected 'w0'"),
        ("[]", "expected an object"),
        ("{", "not JSON"),
    ],
)
def test_a_journal_is_read_strictly(tmp_path: Path, line: str, problem: str) -> None:
    run = usual().write(tmp_path / "run")
    path = next((run / "nodes" / "w0").glob("journal-*"))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    with pytest.raises(HistoryError, match=problem) as error:
        load(run)
    assert f"{path}:2:" in str(error.value)
    result = check(run)
    assert (result.verdict, result.checks[0].name) == ("unknown", "evidence")


# Ownership


def test_an_owner_that_slept_while_it_was_replaced_and_did_nothing_is_no_second_owner(tmp_path: Path) -> None:
    story = begun()
    story.run.wait(SECOND)
    story.run.note("w2", "endpoint.hosted", endpoint="stage-1", epoch=2, cause="host")
    story.run.wait(SECOND)
    story.run.note("w1", "endpoint.released", endpoint="stage-1", epoch=1, cause="fenced")
    said = judge(finished(story), tmp_path)
    assert verdict(said, "ownership") == "pass"


def test_an_owner_that_was_replaced_and_went_on_is_a_second_owner(tmp_path: Path) -> None:
    story = begun()
    story.run.note("w2", "endpoint.hosted", endpoint="stage-1", epoch=2, cause="host")
    story.run.wait(MS)
    story.message(IN, 100)
    said = judge(finished(story), tmp_path)
    assert verdict(said, "ownership") == "fail"


def taken_back(story: Story, while_void: Callable[[Story], None] = lambda story: None) -> Story:
    """stage-1 went to w2, where nobody was served, and its source w1 goes on under an epoch above."""
    story.run.note("w1", "endpoint.frozen", endpoint="stage-1", epoch=1, handover="0" * 16)
    story.run.wait(MS)
    story._arrive("w2", 2)
    story.run.wait(MS)
    while_void(story)
    story.owner["stage-1"], story.epoch["stage-1"] = "w1", 3
    story.run.note("w1", "endpoint.resumed", endpoint="stage-1", epoch=3, handover="0" * 16)
    story.run.wait(MS)
    story.run.note("w0", "binding.learned", endpoint="stage-1", epoch=3, owner="w1", via="announce")
    for _ in range(3):
        story.request()
    story.run.note("w2", "endpoint.released", endpoint="stage-1", epoch=2, cause="fenced")
    return story


def test_a_source_that_goes_on_after_a_handover_that_served_nobody_is_the_one_owner(tmp_path: Path) -> None:
    said = judge(finished(taken_back(begun())), tmp_path)
    assert {name: one.verdict for name, one in said.items() if one.verdict == "fail"} == {}
    assert verdict(said, "ownership") == "pass"


def test_a_stream_that_was_served_by_both_sides_of_a_doubt_is_a_fail(tmp_path: Path) -> None:
    def serve(story: Story) -> None:
        story.write(story.streams[IN], 100)
        story._note_message(story.streams[IN], "message.delivered", len(story.streams[IN].messages) - 1, "stage-1")

    said = judge(finished(taken_back(begun(), serve)), tmp_path)
    assert verdict(said, "ownership") == "fail"
    assert "served twice" in str(said["ownership"].violations)


def test_what_nobody_resumed_is_not_void(tmp_path: Path) -> None:
    """Without the record of the source, an owner under a later epoch that skips one is what it looks like."""
    story = taken_back(begun())
    for records in story.run.journals.values():
        records[:] = [one for one in records if one["event"] != "endpoint.resumed"]
    assert check(finished(story).run.write(tmp_path / "run")).verdict != "pass"


def test_a_handover_that_skips_an_epoch_is_a_fail(tmp_path: Path) -> None:
    story = begun()
    stream = story.streams[IN]
    story.run.note("w1", "endpoint.frozen", endpoint="stage-1", epoch=1, handover="0" * 16)
    story.run.wait(MS)
    story._arrive("w2", 3)
    story.acknowledge(stream)
    said = judge(finished(story), tmp_path)
    assert verdict(said, "ownership") == "fail"
    assert "led to epoch 3" in str(said["ownership"].violations)


# Staleness


def test_frames_to_an_owner_silent_for_longer_than_the_lease_go_one_at_a_time(tmp_path: Path) -> None:
    story = begun()
    stream = story.streams[IN]
    story.run.wait(400 * MS)
    for _ in range(3):
        story.write(stream, 100)
        story.data(stream, len(stream.messages) - 1, "w1")
        story.run.wait(5 * MS)
    for _ in range(3):
        story.deliver(stream)
    story.acknowledge(stream)
    said = judge(finished(story), tmp_path)
    assert verdict(said, "staleness") == "fail"
    assert "more than one frame in flight" in said["staleness"].summary


def test_one_frame_to_a_silent_owner_and_the_rest_after_its_answer_is_right(tmp_path: Path) -> None:
    story = begun()
    stream = story.streams[IN]
    story.run.wait(400 * MS)
    story.write(stream, 100)
    number = len(stream.messages) - 1
    for _ in range(3):
        story.data(stream, number, "w1")  # the same frame, again and again
        story.run.wait(20 * MS)
    story.deliver(stream)
    story.acknowledge(stream)
    for _ in range(2):
        story.message(IN, 100)
    said = judge(finished(story), tmp_path)
    assert verdict(said, "staleness") == "pass"


def test_a_stale_frame_that_nobody_answers_is_a_fail(tmp_path: Path) -> None:
    story = begun()
    stream = story.streams[IN]
    story.write(stream, 100)
    story.data(stream, len(stream.messages) - 1, "w2")  # w2 owns nothing
    story.run.wait(2 * SECOND)
    story.data(stream, len(stream.messages) - 1, "w1")
    story.deliver(stream)
    story.acknowledge(stream)
    said = judge(finished(story), tmp_path)
    assert verdict(said, "staleness") == "fail"
    assert "did not answer" in said["staleness"].summary


def test_a_paused_node_may_answer_late(tmp_path: Path) -> None:
    story = begun()
    stream = story.streams[IN]
    story.run.event("fault.begun", id=1, kind="pause", node="w2")
    story.run.schedule.append({"id": 1, "kind": "pause", "node": "w2"})
    story.write(stream, 100)
    story.data(stream, len(stream.messages) - 1, "w2")
    story.run.wait(2 * SECOND)
    story.run.event("fault.healed", id=1, kind="pause")
    story.data(stream, len(stream.messages) - 1, "w1")
    story.deliver(stream)
    story.acknowledge(stream)
    said = judge(finished(story), tmp_path)
    assert verdict(said, "staleness") == "pass", said["staleness"]


def test_a_delivery_while_frozen_is_a_fail(tmp_path: Path) -> None:
    story = begun()
    story.run.note("w1", "endpoint.frozen", endpoint="stage-1", epoch=1, handover="0" * 16)
    story.run.wait(MS)
    story.message(IN, 100)
    story.run.wait(MS)
    story.run.note("w1", "endpoint.thawed", endpoint="stage-1", epoch=1, handover="0" * 16)
    said = judge(finished(story), tmp_path)
    assert verdict(said, "staleness") == "fail"


# Cutover


def test_without_traffic_around_a_handover_cutover_is_unknown(tmp_path: Path) -> None:
    story = begun(cutover={"p99": 50 * MS})
    story.run.wait(3 * SECOND)
    story.migrate()
    said = judge(finished(story), tmp_path)
    assert verdict(said, "cutover") == "unknown"


def test_with_thin_traffic_the_wait_for_the_next_message_is_not_the_cutover(tmp_path: Path) -> None:
    story = begun(cutover={"p99": 2 * MS})
    stream = story.streams[IN]
    story.migrate()
    for journal in story.run.journals.values():  # as if what came during the handover had been sent only after it
        for one in journal:
            if one["event"] == "message.sent" and one["stream"] == stream.name and one["message"] >= 3:
                one["t"] += 5 * MS
    said = judge(finished(story), tmp_path)
    assert said["cutover"].measurements["with_thin_traffic"] == 1
    assert verdict(said, "cutover") == "unknown"


def test_cutover_that_is_expected_needs_a_handover(tmp_path: Path) -> None:
    assert verdict(judge(finished(begun(cutover={"max": MS})), tmp_path), "cutover") == "unknown"
    assert verdict(judge(finished(begun()), tmp_path / "other"), "cutover") == "skipped"


# Goodput and faults


def test_a_request_that_hangs_is_a_fail_whatever_is_expected(tmp_path: Path) -> None:
    story = begun()
    story.run.note("w0", "app.request", request=77)
    said = judge(cut_off(finished(story)), tmp_path)
    assert verdict(said, "goodput") == "fail"
    assert "neither answered nor given up" in said["goodput"].summary


def test_a_request_given_up_openly_counts_against_goodput_only(tmp_path: Path) -> None:
    story = begun(goodput={"min": 0.7})
    story.run.note("w0", "app.request", request=77)
    story.run.note("w0", "app.failed", request=77, cause="reset")
    said = judge(finished(story), tmp_path)
    assert (verdict(said, "goodput"), said["goodput"].measurements["goodput"]) == ("pass", 0.75)


def test_faults_that_all_missed_their_target_prove_nothing(tmp_path: Path) -> None:
    story = begun()
    story.run.schedule.append({"id": 1, "kind": "crash", "node": "w9"})
    story.run.event("fault.begun", id=1, kind="crash")
    story.run.event("fault.target-gone", id=1, kind="crash", text="w9 is not running")
    assert verdict(judge(finished(story), tmp_path), "faults") == "unknown"


@pytest.mark.parametrize(("faults", "said"), [("fired", "fail"), ("may-fail", "pass")])
def test_a_planned_change_that_failed_is_a_fail_unless_it_may(tmp_path: Path, faults: str, said: str) -> None:
    story = begun(faults=faults)
    story.run.schedule += [{"id": 1, "kind": "migrate"}, {"id": 2, "kind": "pause"}]
    for number, kind in ((1, "migrate"), (2, "pause")):
        story.run.event("fault.begun", id=number, kind=kind)
    story.run.event("fault.failed", id=1, kind="migrate", text="declined")
    for number in (1, 2):
        story.run.event("fault.healed", id=number)
    assert verdict(judge(finished(story), tmp_path), "faults") == said


# Emulation and captures


@pytest.mark.parametrize(("declared", "said"), [(True, "pass"), (False, "unknown")])
def test_a_full_queue_is_in_order_only_where_somebody_declared_it(tmp_path: Path, declared: bool, said: str) -> None:
    story = finished(begun())
    line = {"queue": 65536 if declared else 0}
    story.run.links = [{"name": "w0--s0", "a": "w0:eth1", "b": "s0:p0", "a_to_b": line, "b_to_a": line}]
    lines = {"w0--s0/a-to-b": {"overflowed": 4}}
    event(story, "wire.stopped").update(overflowed=4, lines=lines)
    assert verdict(judge(story, tmp_path), "emulation") == said


def test_a_queue_declared_by_a_fault_is_declared(tmp_path: Path) -> None:
    story = begun()
    story.run.links = [{"name": "w0--s0", "a": "w0:eth1", "b": "s0:p0", "a_to_b": {"queue": 0}, "b_to_a": {"queue": 0}}]
    story.run.schedule.append({"id": 1, "kind": "impair"})
    story.run.event("fault.begun", id=1, kind="impair", node="w0", changes={"rate": 1, "queue": 9000})
    story.run.event("fault.healed", id=1)
    finished(story)
    event(story, "wire.stopped").update(overflowed=4, lines={"w0--s0/a-to-b": {"overflowed": 4}})
    assert verdict(judge(story, tmp_path), "emulation") == "pass"


def test_a_capture_cut_by_a_snap_length_is_said_to_be(tmp_path: Path) -> None:
    story = finished(begun())
    story.run.packets["w1"] = [(time, way, data[:100]) for time, way, data in story.run.packets["w1"]]
    said = judge(story, tmp_path)
    assert verdict(said, "emulation") == verdict(said, "capture-against-history") == "unknown"
    assert "snap length" in str(said["emulation"].violations)
    assert verdict(said, "delivery") == "pass"


def test_a_capture_that_its_writer_could_not_close_is_read_and_said_to_be(tmp_path: Path) -> None:
    story = finished(begun())

    def killed_writer(run: Path) -> None:
        packets = sorted(story.run.packets["w0"], key=lambda one: one[0])
        write_capture(run / "captures" / "w0.eth1.pcapng", packets, close=False)
        path = run / "captures" / "w0.eth1.pcapng"
        path.write_bytes(path.read_bytes()[:-7])
        counters = json.loads((run / "captures" / "counters.json").read_text())
        counters["w0.eth1.pcapng"]["closed"] = False
        (run / "captures" / "counters.json").write_text(json.dumps(counters))

    said = judge(story, tmp_path, killed_writer)
    assert verdict(said, "emulation") == "unknown"
    assert "cut off" in str(said["emulation"].violations)
    assert said["capture-against-history"].measurements["payloads_compared"] > 0


def test_a_message_that_never_crossed_the_wire_was_not_delivered_over_it(tmp_path: Path) -> None:
    story = begun()
    stream = story.streams[IN]
    story.write(stream, 100)
    story.deliver(stream)
    story.run.wait(DELAY)
    said = judge(finished(story), tmp_path)
    assert verdict(said, "capture-against-history") == "fail"
    assert "had not arrived" in said["capture-against-history"].summary


def test_an_acknowledgement_before_its_delivery_is_a_fail(tmp_path: Path) -> None:
    story = begun()
    stream = story.streams[OUT]
    story.write(stream, 64)
    story.data(stream, len(stream.messages) - 1, "w0")
    stream.delivered += 1
    story.acknowledge(stream)
    stream.delivered -= 1
    story.run.wait(20 * MS)
    story.deliver(stream)
    said = judge(finished(story), tmp_path)
    assert verdict(said, "capture-against-history") == "fail"
    assert "before it was delivered" in said["capture-against-history"].summary


def test_a_workload_without_connex_is_judged_by_its_answers_alone(tmp_path: Path) -> None:
    story = begun(goodput={"min": 1.0})

    def on_tcp(run: Path) -> None:
        resolved = json.loads((run / "resolved.json").read_text())
        resolved["workload"]["adapter"] = "tcp"
        (run / "resolved.json").write_text(json.dumps(resolved))

    said = judge(finished(story), tmp_path, on_tcp)
    assert verdict(said, "goodput") == "pass"
    assert {verdict(said, name) for name in ("delivery", "ownership", "staleness", "resets")} == {"skipped"}
