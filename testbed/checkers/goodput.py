"""Goodput: the share of issued requests that were answered, by the application's own events."""

from __future__ import annotations

from collections import Counter

from testbed.checkers.captures import Captures
from testbed.checkers.expectations import Expectations
from testbed.checkers.result import CheckResult, Findings
from testbed.history import History


def check_goodput(history: History, captures: Captures, expected: Expectations) -> CheckResult:
    """Count ``app.request`` and ``app.done``, and hold them against what the source itself says."""
    found = Findings("goodput")
    requests = Counter(record["request"] for _, record in history.records("app.request"))
    done = Counter(record["request"] for _, record in history.records("app.done"))
    stopped = history.first("traffic.stopped")
    for name, counts in (("issued", requests), ("done", done)):
        twice = [request for request, count in counts.items() if count > 1]
        if twice:
            found.fail(
                f"{len(twice)} requests were {name} more than once, such as {twice[0]}", "app events", twice[:10]
            )
    strange = sorted(set(done) - set(requests), key=str)
    if strange:
        what = f"{len(strange)} requests were done that nobody issued, such as {strange[0]}"
        found.unless(history.gaps(history.lives), what, "app events", strange[:10])
    _against_the_source(history, requests, done, found)
    _hanging(history, set(requests) - set(done), found)
    issued = max(len(requests), int(stopped.get("issued", 0)) if stopped else 0)
    share = len(done) / issued if issued else 0.0
    found.measurements |= {"issued": issued, "done": len(done), "goodput": share}
    for what in history.missing:
        found.doubt(f"missing evidence: {what}", "the run folder")
    if not issued and expected.goodput is None and not found.fails:
        return found.skipped("no requests were issued, and none were expected")
    if issued and expected.goodput is not None and share < expected.goodput:
        unanswered = sorted(set(requests) - set(done), key=str)
        broken_off = history.all("run.interrupted", "run.error")
        found.unless(
            "the run was broken off" if broken_off else history.gaps(history.lives),
            f"goodput {share:.2%}: expected at least {expected.goodput:.2%}",
            f"{issued - len(done)} of {issued} requests",
            unanswered[:20],
        )
    return found.result(
        f"{len(done)} of {issued} requests answered", exercised=issued > 0, nothing="no request was issued"
    )


def _hanging(history: History, unanswered: set[object], found: Findings) -> None:
    """Every request ends, one way or the other, before the testbed gives up waiting (C6): a hang is never in order."""
    stopped = history.first("traffic.stopped")
    if stopped is None or stopped.get("complete", True):
        return
    failed = {record["request"] for _, record in history.records("app.failed") if record["t"] <= stopped["t"]}
    found.measurements["failed"] = len(failed)
    hanging = sorted(unanswered - failed, key=str)
    what = (
        f"{len(hanging)} requests were neither answered nor given up when traffic was to end: {stopped.get('missing')}"
    )
    if hanging:
        sources = {life.index: life for life, _ in history.records("app.request")}.values()
        gone = ["the run was broken off"] if history.all("run.interrupted", "run.error") else []
        gone += [f"{life.name}, which issued them, had ended" for life in sources if life.ended <= stopped["t"]]
        found.unless(gone[0] if gone else history.gaps(history.lives), what, "traffic.stopped", hanging[:20])
    else:
        found.doubt(f"traffic did not come to its end: {stopped.get('missing')}", "traffic.stopped", stopped)


def _against_the_source(history: History, requests: Counter[object], done: Counter[object], found: Findings) -> None:
    """What the journals count, what the source's summary says, and what the testbed was told must be the same."""
    stopped = history.first("traffic.stopped")
    if stopped is not None and "issued" in stopped:
        said = (stopped["issued"], stopped["done"])
        counted = (len(requests), len(done))
        if said != counted and stopped.get("complete", True):
            what = (
                f"the source told the testbed of {said[0]} requests issued and {said[1]} done: the journals have"
                f" {counted[0]} and {counted[1]}"
            )
            found.unless(history.gaps(history.lives), what, "traffic.stopped", stopped)
    summaries = history.records("app.summary")
    if summaries:
        life, record = summaries[-1]
        if record["requests"] != len(requests):
            what = (
                f"the summary of {life.name} counts {record['requests']} requests issued:"
                f" the journals have {len(requests)}"
            )
            found.unless(history.gaps(history.lives), what, life.path.name, record)
