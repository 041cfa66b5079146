"""Faults of node processes: they end, stand still, come back, or come for the first time."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from faults.fault import Skipped, Told, undisturbed
from faults.world import TargetGone, World

GONE_WITHIN = 5_000_000_000
"""A process that was sent a deadly signal must be gone after this many ns."""


class Processes:
    """The node processes, and what several faults do to one of them at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stopped: Counter[str] = Counter()
        self._pausing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One after the other: a process seen to stand still, or to go on, has been made to by nobody else."""
        self._starting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def end(self, node: str, number: int) -> None:
        """End the process and wait until it is gone. Raises TargetGone if there is none."""
        await self._world.signal(node, number)
        if self._stopped[node] and number != signal.SIGKILL:
            await self._world.signal(node, signal.SIGCONT)  # a stopped process takes its other signals when it goes on
        await self._world.wait_exit(node, GONE_WITHIN)

    async def start(self, node: str) -> bool:
        """Start the process, unless it runs; tells whether it did."""
        async with self._starting[node]:
            if node in self._world.running():
                return False
            await self._world.start(node)
            return True

    async def stop(self, node: str) -> None:
        """Have the process stand still until as many ``go_on`` have come. Raises TargetGone if there is none."""
        self._stopped[node] += 1
        async with self._pausing[node]:
            await self._world.signal(node, signal.SIGSTOP)

    async def go_on(self, node: str) -> None:
        """Take one ``stop`` back. Raises TargetGone if the process is gone."""
        self._stopped[node] -= 1
        if not self._stopped[node]:
            async with self._pausing[node]:
                await self._world.signal(node, signal.SIGCONT)
        elif node not in self._world.running():
            raise TargetGone(f"{node} is not running")


@dataclass(frozen=True, slots=True)
class Crash:
    """A process ends. If it ``comes_back``, it is started again when this ends."""

    node: str
    signal: int
    comes_back: bool

    @asynccontextmanager
    async def on(self, processes: Processes) -> AsyncIterator[Told]:
        async with AsyncExitStack() as guard:
            if self.comes_back:
                guard.push_async_exit(_starter(processes, self.node))
            await processes.end(self.node, self.signal)
            yield {}


@dataclass(frozen=True, slots=True)
class Pause:
    """A process stands still, until this ends."""

    node: str

    @asynccontextmanager
    async def on(self, processes: Processes) -> AsyncIterator[Told]:
        try:
            await processes.stop(self.node)
            yield {}
        finally:
            await undisturbed(processes.go_on(self.node))


@dataclass(frozen=True, slots=True)
class Restart:
    """A process is killed, and comes back ``after`` ns later on the same address."""

    node: str
    after: int = 0

    @asynccontextmanager
    async def on(self, processes: Processes) -> AsyncIterator[Told]:
        async with AsyncExitStack() as guard:
            guard.push_async_exit(_starter(processes, self.node))
            await processes.end(self.node, signal.SIGKILL)
            await asyncio.sleep(self.after / 1_000_000_000)
        yield {}


@dataclass(frozen=True, slots=True)
class Join:
    """A node's process starts, and takes part."""

    node: str

    @asynccontextmanager
    async def on(self, processes: Processes) -> AsyncIterator[Told]:
        if not await processes.start(self.node):
            raise Skipped(f"{self.node} runs already")
        yield {}


def _starter(processes: Processes, node: str) -> Callable[..., Coroutine[Any, Any, None]]:
    """Starts the node again when a guard is left; not if there was nothing to end, since others have ended it."""

    async def leave(kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, TargetGone):
            await undisturbed(processes.start(node))

    return leave
