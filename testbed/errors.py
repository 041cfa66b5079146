"""Errors that are told to the person at the command line, each with the exit status that it means."""

from __future__ import annotations

from faults.world import Overdue
from testbed.exit_status import ExitStatus


class TestbedError(Exception):
    """Something that was asked for did not happen. The text says what, where and what to do."""

    __test__ = False
    status = ExitStatus.FAIL


class UsageError(TestbedError):
    """A mistake in the command line or in a file."""

    status = ExitStatus.USAGE


class CannotRun(TestbedError):
    """This machine or this backend cannot run what was asked for. Nothing has been started."""

    status = ExitStatus.CANNOT_RUN


class DeadlineExceeded(TestbedError, Overdue):
    """Something did not happen in time. The text names what is missing."""


class NodeFailed(TestbedError):
    """A node's process ended, or answered that it could not do what it was asked."""
