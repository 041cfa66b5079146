"""C4, bounded cutover: from the last delivery at the source of a handover to the first at its target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from testbed.checkers.captures import Captures
from testbed.checkers.emulation import lateness
from testbed.checkers.expectations import CUTOVER_LIMIT, Expectations
from testbed.checkers.result import CheckResult, Findings, milliseconds, percentile
from testbed.history import History, Tenure

AROUND = 1_000_000_000
"""Only a handover with deliveries at the source within this time (ns) before it, and messages for the target within
this time after it, says anything about cutover."""


class _Times(NamedTuple):
    delivered: list[int]
    sent: list[int]
    """When the messages that were delivered had been sent."""


class Cutover(NamedTuple):
    """One handover. Times in ns."""

    endpoint: str
    epoch: int
    """The new one."""
    gap: int
    """Last delivery at the source to first delivery at the target."""
    waited: int
    """The part of it in which a message that had been sent already waited."""


def check_cutover(history: History, captures: Captures, expected: Expectations) -> CheckResult:
    """Measure every handover from the journals."""
    found = Findings("cutover", lateness(history, expected))
    if not expected.connex:
        return found.skipped(f"the workload ran on {expected.adapter}")
    limits = expected.cutover or {"max": CUTOVER_LIMIT}
    handovers = _handovers(history)
    if not handovers:
        if expected.cutover:
            return found.result("", exercised=False, nothing="no handover was completed")
        return found.skipped("no handover was completed, and none was expected")
    times = _times(history)
    measured, quiet = [], 0
    for source, target in handovers:
        cutover = _measure(source, target, times)
        if cutover is None:
            quiet += 1
        else:
            measured.append(cutover)
    # With thin traffic the gap is the time to the next message, not the time of the handover.
    thin = [one for one in measured if one.gap > min(limits.values()) >= one.waited]
    counted = [one for one in measured if one not in thin]
    found.measurements |= {"handovers": len(handovers), "without_traffic": quiet, "with_thin_traffic": len(thin)}
    if counted:
        _judge(counted, limits, found)
    count = len(counted)
    return found.result(
        f"{count} of {len(handovers)} handovers measured: p50 {milliseconds(found.measurements.get('p50_ns', 0))},"
        f" p99 {milliseconds(found.measurements.get('p99_ns', 0))}",
        exercised=count > 0,
        nothing=f"{len(handovers)} handovers, none with enough traffic around it",
    )


def _handovers(history: History) -> list[tuple[Tenure, Tenure]]:
    """Source and target of every handover that was completed."""
    return [
        (earlier, later)
        for tenures in history.tenures.values()
        for earlier, later in pairwise(tenures)
        if later.cause == "handover" and later.epoch == earlier.epoch + 1
    ]


def _times(history: History) -> dict[tuple[str, int], _Times]:
    """(endpoint, epoch) -> when it delivered."""
    times: dict[tuple[str, int], _Times] = defaultdict(lambda: _Times([], []))
    for stream in history.streams.values():
        sent = {message.number: message.t for message in stream.sent}
        for message in stream.delivered:
            at = times[stream.receiver, message.epoch]
            at.delivered.append(message.t)
            at.sent.append(sent.get(message.number, message.t))
    return times


def _measure(source: Tenure, target: Tenure, times: dict[tuple[str, int], _Times]) -> Cutover | None:
    before = times.get((source.endpoint, source.epoch))
    after = times.get((target.endpoint, target.epoch))
    if before is None or after is None:
        return None
    stopped = source.frozen[-1][0] if source.frozen else target.begin
    last, first = max(before.delivered), min(after.delivered)
    if last < stopped - AROUND or min(after.sent) > target.begin + AROUND:
        return None
    return Cutover(target.endpoint, target.epoch, max(0, first - last), max(0, first - max(last, min(after.sent))))


def _judge(counted: list[Cutover], limits: Mapping[str, int], found: Findings) -> None:
    gaps = [one.gap for one in counted]
    values = {"p50": percentile(gaps, 0.5), "p99": percentile(gaps, 0.99), "max": max(gaps)}
    found.measurements |= {"measured": len(counted), **{f"{name}_ns": value for name, value in values.items()}}
    worst = max(counted, key=lambda one: one.gap)
    for name, limit in limits.items():
        if values[name] > limit:
            found.overdue(
                f"cutover {name} {milliseconds(values[name])}: expected at most {milliseconds(limit)}",
                f"{worst.endpoint}, epoch {worst.epoch}",
                worst,
            )
