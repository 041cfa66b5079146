"""Whether the faults of the scenario were really there: a run without its faults proves nothing."""

from __future__ import annotations

from testbed.checkers.captures import Captures
from testbed.checkers.expectations import Expectations
from testbed.checkers.result import CheckResult, Findings
from testbed.history import History


def check_faults(history: History, captures: Captures, expected: Expectations) -> CheckResult:
    """Every fault of the schedule has begun, and has ended before the run did; planned changes have succeeded, unless
    the scenario expects that they may fail.
    """
    found = Findings("faults")
    begun = {event["id"]: event for event in history.all("fault.begun")}
    ended = {event["id"]: event for event in history.all("fault.healed", "fault.target-gone")}
    undone = history.all("fault.skipped", "fault.failed")
    gone = sum(event["event"] == "fault.target-gone" for event in ended.values())
    for fault in history.schedule:
        if fault["id"] not in begun and fault["id"] not in ended:
            found.doubt(
                f"fault {fault['id']} ({fault.get('kind', 'of no kind')}) never happened", "schedule.json", fault
            )
    for number, event in begun.items():
        if number not in ended:
            found.doubt(f"fault {number} ({event.get('kind', 'of no kind')}) was never healed", "events.jsonl", event)
    for event in history.all("fault.failed"):
        if not expected.faults_may_fail:
            why = event.get("text", "no reason given")
            found.fail(f"fault {event['id']} ({event.get('kind', 'of no kind')}) failed: {why}", "events.jsonl", event)
    found.measurements |= {"scheduled": len(history.schedule), "begun": len(begun), "target_gone": gone}
    found.measurements |= {"skipped_or_refused": [str(event.get("text", "")) for event in undone]}
    if not history.schedule:
        return found.skipped("no faults were scheduled")
    return found.result(
        f"{len(begun)} of {len(history.schedule)} faults happened, {gone} of them with a target that was gone",
        exercised=len(begun) > gone + len(undone),
        nothing="no fault had any effect",
    )
