"""Faults of node processes: they end, stand still, come back, or come for the first time."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType

from faults.world import TargetGone, World

GONE_WITHIN = 5_000_000_000
"""A process that was sent a deadly signal must be gone after this many ns."""


class Crash:
    """End a process; if it is ``for`` a while, start it again afterwards."""

    def __init__(self, world: World, node: str, number: int, comes_back: bool) -> None:
        self._world = world
        self._node = node
        self._number = number
        self._comes_back = comes_back

    async def __aenter__(self) -> None:
        await self._world.signal(self._node, self._number)
        if self._number != signal.SIGSTOP:
            await self._world.wait_exit(self._node, GONE_WITHIN)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._comes_back and self._node not in self._world.running():
            await self._world.start(self._node)


class Pause:
    """A process stands still, until this ends."""

    def __init__(self, world: World, node: str) -> None:
        self._world = world
        self._node = node

    async def __aenter__(self) -> None:
        await self._world.signal(self._node, signal.SIGSTOP)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._world.signal(self._node, signal.SIGCONT)


class Start:
    """A node joins; or it is killed, and comes back ``after`` ns later on the same address."""

    def __init__(self, world: World, node: str, *, kill_first: bool = False, after: int = 0) -> None:
        self._world = world
        self._node = node
        self._kill_first = kill_first
        self._after = after

    async def __aenter__(self) -> None:
        if self._kill_first:
            await self._world.signal(self._node, signal.SIGKILL)
            await self._world.wait_exit(self._node, GONE_WITHIN)
            await asyncio.sleep(self._after / 1_000_000_000)
        elif self._node in self._world.running():
            raise TargetGone(f"{self._node} runs already")
        await self._world.start(self._node)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to undo: the node has joined."""
