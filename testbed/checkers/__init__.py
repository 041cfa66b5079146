"""The verdict on a run: a pure function of its folder.

Each checker is one file and one function of (history, captures, expectations). A checker says fail only where the
evidence shows a breach, and pass only where it shows that there was something to break; all else is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from testbed.checkers.capture import check_capture
from testbed.checkers.captures import Captures
from testbed.checkers.cutover import check_cutover
from testbed.checkers.delivery import check_delivery
from testbed.checkers.emulation import check_emulation
from testbed.checkers.expectations import Expectations, read_expectations
from testbed.checkers.faults import check_faults
from testbed.checkers.goodput import check_goodput
from testbed.checkers.ownership import check_ownership
from testbed.checkers.reading import read_captures
from testbed.checkers.resets import check_resets
from testbed.checkers.result import CheckResult, Result, Violation
from testbed.checkers.staleness import check_staleness
from testbed.history import History, HistoryError, load

Checker = Callable[[History, Captures, Expectations], CheckResult]

CHECKERS: tuple[Checker, ...] = (
    check_delivery,
    check_ownership,
    check_staleness,
    check_cutover,
    check_goodput,
    check_resets,
    check_faults,
    check_emulation,
    check_capture,
)

__all__ = ["CHECKERS", "CheckResult", "Checker", "Result", "Violation", "check"]


def check(folder: Path) -> Result:
    """Judge the run in ``folder``. Evidence that cannot be read makes the verdict unknown; nothing is raised for it."""
    try:
        history = load(folder)
        expected = read_expectations(history.run)
        captures = read_captures(folder, history.run)
    except (HistoryError, ValueError, OSError) as error:
        unreadable = Violation(str(error), str(folder), type(error).__name__)
        return Result([CheckResult("evidence", "unknown", "the run cannot be read", [unreadable])])
    return Result([checker(history, captures, expected) for checker in CHECKERS])
