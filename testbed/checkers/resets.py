"""Streams that were given up openly, against what the scenario allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from testbed.checkers.captures import Captures
from testbed.checkers.expectations import Expectations
from testbed.checkers.result import CheckResult, Findings
from testbed.history import History


def check_resets(history: History, captures: Captures, expected: Expectations) -> CheckResult:
    """A stream counts once, whichever of its ends say that it was reset. Without ``expect.resets`` none may be."""
    found = Findings("resets")
    if not expected.connex:
        return found.skipped(f"the workload ran on {expected.adapter}")
    reset = {
        stream.name: sorted({end.cause for end in stream.ended if end.cause})
        for stream in history.streams.values()
        if any(end.cause for end in stream.ended)
    }
    causes = Counter(cause for those in reset.values() for cause in those)
    found.measurements |= {"streams": len(history.streams), "reset": len(reset), "causes": dict(causes)}
    allowed: Mapping[str, Any] = expected.resets if expected.resets is not None else {"max": 0}
    most, among = allowed.get("max"), allowed.get("causes")
    if most is not None and len(reset) > most:
        name, why = next(iter(reset.items()))
        found.fail(f"{len(reset)} streams were reset: expected at most {most}", f"{name}: {', '.join(why)}", reset)
    if among is not None:
        for name, why in reset.items():
            if others := sorted(set(why) - set(among)):
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
