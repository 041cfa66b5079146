"""The exit statuses of the command line. They are a contract: CI jobs branch on them."""

from __future__ import annotations

import signal
from enum import IntEnum


class ExitStatus(IntEnum):
    """What the exit status of ``testbed`` means."""

    PASS = 0
    FAIL = 1
    UNKNOWN = 2
    """Nothing was proven: a capture dropped packets, the emulation lost time, nothing was exercised."""
    WARNINGS = 3
    """A pass, but with warnings, under ``--strict``."""
    CANNOT_RUN = 4
    """This machine cannot run what was asked for. Nothing was started."""
    USAGE = 64
    """A mistake in the command line or in a file."""
    INTERNAL = 70
    """A defect of the testbed."""
    HANGUP = 128 + signal.SIGHUP
    INTERRUPTED = 128 + signal.SIGINT
    TERMINATED = 128 + signal.SIGTERM


OF_VERDICT = {"pass": ExitStatus.PASS, "fail": ExitStatus.FAIL, "unknown": ExitStatus.UNKNOWN}


def of_verdict(verdict: str, *, warnings: bool = False, strict: bool = False) -> ExitStatus:
    """The exit status for a verdict. A pass with warnings counts as one of its own under ``--strict``."""
    status = OF_VERDICT[verdict]
    if status is ExitStatus.PASS and warnings and strict:
        return ExitStatus.WARNINGS
    return status
