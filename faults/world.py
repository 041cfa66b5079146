"""What faults act upon. Whoever runs a scenario provides one; faults know nothing else of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Event = Mapping[str, Any]


class TargetGone(Exception):
    """What the fault acts on has ended meanwhile: the fault ends, the run goes on."""


class Overdue(Exception):
    """Something did not happen before its deadline. The text names what is missing."""


class World(Protocol):
    """A running topology.

    Every method returns only when its effect is there. Each has a deadline of its own, after which it raises Overdue.
    """

    def now(self) -> int:
        """CLOCK_MONOTONIC (or virtual time) in ns."""
        ...

    def running(self) -> Sequence[str]:
        """Nodes whose process runs, sorted."""
        ...

    def endpoints(self) -> Mapping[str, str]:
        """Endpoint -> node that owns it, by the newest event seen."""
        ...

    async def impair(self, link: str, direction: str, changes: Mapping[str, int | float | bool]) -> None:
        """Merge ``changes`` (fields of Impairment) into one direction (``a-to-b``, ``b-to-a``) of a link.

        Raises ValueError, changing nothing, where no line can behave like that.
        """
        ...

    async def restore(self, link: str, direction: str, fields: Sequence[str]) -> None:
        """Give the named fields of one direction back the values that the topology declared."""
        ...

    async def block(self, name: str, pairs: Sequence[tuple[str, str]]) -> None:
        """Drop all frames from the first to the second node of each pair, until ``unblock(name)``."""
        ...

    async def unblock(self, name: str) -> None: ...

    async def signal(self, node: str, signal: int) -> None:
        """Send a signal to the node's process. Raises TargetGone if it does not run."""
        ...

    async def start(self, node: str) -> None:
        """Start the node's process (first time or again) and wait until it is ready."""
        ...

    async def wait_exit(self, node: str, timeout: int) -> None:
        """Wait until the node's process is gone (``timeout`` in ns)."""
        ...

    async def command(self, node: str, request: Mapping[str, Any], timeout: int) -> Mapping[str, Any]:
        """One request on the node's control socket. Raises TargetGone if the node ends before it answers."""
        ...

    async def wait_event(self, match: Mapping[str, Any], count: int = 1) -> Event:
        """Wait for an event of any node (see docs/history.md) in which all given fields have the given values: the
        next one, or the how manieth from now on. This one has no deadline.
        """
        ...

    def record(self, event: str, **fields: Any) -> None:
        """Write into the run's events."""
        ...
