"""Streams that were given up openly, against what the scenario allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from testbed.checkers.captures import Captures
from testbed.checkers.emulation import lateness
from testbed.checkers.expectations import Expectations
from testbed.checkers.result import CheckResult, Findings
from testbed.history import FOREVER, History


def check_resets(history: History, captures: Captures, expected: Expectations) -> CheckResult:
    """A stream counts once, whichever of its ends say that it was reset, and only until traffic has come to its end:
    nodes that are stopped then end their streams. Without ``expect.resets`` none may be reset.
    """
    found = Findings("resets", lateness(history, expected))  # nodes take each other for dead by the clock
    if not expected.connex:
        return found.skipped(f"the workload ran on {expected.adapter}")
    stopped = history.first("traffic.stopped")
    until = stopped["t"] if stopped else FOREVER
    reset, at_the_end = {}, 0
    for stream in history.streams.values():
        why = {end.cause for end in stream.ended if end.cause and end.t <= until}
        if why:
            reset[stream.name] = sorted(why)
        at_the_end += not why and any(end.cause for end in stream.ended)
    causes = Counter(cause for those in reset.values() for cause in those)
    found.measurements |= {
        "streams": len(history.streams),
        "reset": len(reset),
        "causes": dict(causes),
        "ended_with_the_run": at_the_end,
    }
    allowed: Mapping[str, Any] = expected.resets if expected.resets is not None else {"max": 0}
    most, among = allowed.get("max"), allowed.get("causes")
    if most is not None and len(reset) > most:
        name, first = next(iter(reset.items()))
        found.overdue(f"{len(reset)} streams were reset: expected at most {most}", f"{name}: {', '.join(first)}", reset)
    if among is not None:
        for name, those in reset.items():
            if others := sorted(set(those) - set(among)):
                found.fail(f"reset with the cause {', '.join(others)}: expected one of {', '.join(among)}", name)
    least = allowed.get("min", 0) or 0
    if len(reset) < least:
        found.fail(f"{len(reset)} streams were reset: expected at least {least}", "the whole run")
    for what in history.missing:
        found.doubt(f"missing evidence: {what}", "the run folder")
    return found.result(
        f"{len(reset)} of {len(history.streams)} streams reset",
        exercised=bool(history.streams),
        nothing="there was no stream",
    )
