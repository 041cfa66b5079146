"""Whether the emulation kept its promises: if it did not, the run says nothing about Connex."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.checkers.captures import Captures
from testbed.checkers.expectations import Expectations
from testbed.checkers.result import CheckResult, Findings, milliseconds
from testbed.history import CLOCK_STEP, History, Record


def lateness(history: History, expected: Expectations) -> str:
    """Why times that were measured in this run say nothing about Connex; empty if they do."""
    stopped = history.first("wire.stopped")
    budget = expected.lag_budget
    if stopped is None or budget is None or stopped["lag_p99_ns"] <= budget:
        return ""
    return f"the wire was late by {milliseconds(stopped['lag_p99_ns'])} (p99): its budget is {milliseconds(budget)}"


def check_emulation(history: History, captures: Captures, expected: Expectations) -> CheckResult:
    """The wire was in time and lost nothing that was not asked for, captures are whole, clocks agree, nodes lived."""
    found = Findings("emulation")
    for event in history.all("node.exited"):
        if not event.get("expected", False):
            found.fail(f"{event['node']} ended by itself with status {event['status']}", "events.jsonl", event)
    for event in history.all("run.error", "run.interrupted"):
        found.doubt(f"the run was broken off: {event.get('text') or event.get('signal')}", "events.jsonl", event)
    if history.events_cut or history.first("run.finished") is None:
        found.doubt("the run was cut off: its events do not go up to run.finished", "events.jsonl")
    for needed in ("traffic.started", "traffic.stopped"):
        if history.first(needed) is None:
            found.doubt(f"the run never came to {needed}", "events.jsonl")
    for what in history.missing:
        found.doubt(f"missing evidence: {what}", "the run folder")
    _wire(history, expected, found)
    _captures(captures, found)
    _clocks(history, found)
    return found.result("in time, nothing lost unasked, captures whole")


def _wire(history: History, expected: Expectations, found: Findings) -> None:
    stopped = history.first("wire.stopped")
    if stopped is None:
        found.doubt("the wire did not say how it fared: it died, or was never stopped", "events.jsonl: wire.stopped")
        return
    found.measurements |= {
        name: stopped.get(name) for name in ("frames", "lag_p50_ns", "lag_p99_ns", "lag_max_ns", "sched")
    }
    if late := lateness(history, expected):
        found.doubt(late, "wire.stopped", stopped)
    if stopped.get("capture_dropped"):
        found.doubt(f"{stopped['capture_dropped']} frames were not captured", "wire.stopped", stopped)
    for name, what in (
        ("overrun", "were lost because the emulation could not keep up"),
        ("oversized", "exceeded the MTU of a link"),
    ):
        if stopped.get(name):
            found.doubt(f"{stopped[name]} frames {what}", "wire.stopped", stopped)
    _overflow(history, stopped, found)


def _overflow(history: History, stopped: Record, found: Findings) -> None:
    """Frames that a full queue dropped: intended where somebody declared a queue, else a flaw of the emulation."""
    lines: Mapping[str, Any] = stopped.get("lines") or {}
    dropping = {line: counts["overflowed"] for line, counts in lines.items() if counts.get("overflowed")}
    if stopped.get("overflowed", 0) > sum(dropping.values()):
        dropping["a line that is not named"] = stopped["overflowed"] - sum(dropping.values())
    declared = _declared_queues(history)
    for line, count in dropping.items():
        if line.rpartition("/")[0] not in declared:
            found.doubt(
                f"{count} frames were dropped by a queue that nobody had declared, on {line}",
                "wire.stopped",
                dict(dropping),
            )
    found.measurements["overflowed"] = stopped.get("overflowed", 0)


def _declared_queues(history: History) -> set[str]:
    """Links for which the topology or a fault of the scenario says how long the queue is."""
    declared = set()
    links = history.run.get("plan", {}).get("links", ())
    declared = {link["name"] for link in links if _mentions_queue(link)}
    for fault in history.all("fault.begun"):
        if _mentions_queue(fault):
            ends = [link["name"] for link in links if fault.get("node") in (_node(link["a"]), _node(link["b"]))]
            declared |= {fault["link"]} if "link" in fault else set(ends)
    return declared


def _node(port: str) -> str:
    return port.partition(":")[0]


def _mentions_queue(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value.get("queue")) or any(_mentions_queue(one) for one in value.values())
    return isinstance(value, list) and any(_mentions_queue(one) for one in value)


def _captures(captures: Captures, found: Findings) -> None:
    for file in captures.files:
        for problem in file.problems:
            found.doubt(problem, f"captures/{file.name}")
    tallies = [file.tally for file in captures.files]
    found.measurements |= {
        "captured_packets": sum(tally.packets for tally in tallies),
        "captured_bytes": sum(tally.bytes for tally in tallies),
        "tcp_retransmissions": sum(tally.retransmitted for tally in tallies),
        "corrupt_segments": sum(tally.corrupt for tally in tallies),
    }


def _clocks(history: History, found: Findings) -> None:
    """Everything of a run is stamped by one monotonic clock."""
    for life in history.lives:
        if life.stepped_back > CLOCK_STEP:
            found.doubt(f"the clock of {life.name} went back by {milliseconds(life.stepped_back)}", life.path.name)
    latest = 0
    for event in history.events:
        if event["t"] < latest:
            found.doubt(f"the testbed's clock went back by {milliseconds(latest - event['t'])}", "events.jsonl", event)
            break
        latest = event["t"]
