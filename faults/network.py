"""Faults of links: what they do to frames, and who cannot reach whom."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from faults.fault import NotDone, Told, undisturbed
from faults.world import World

Changes = Mapping[str, int | float | bool]
Line = tuple[str, str]
"""Link and direction."""


class Impairments:
    """Which faults act on which line, in the order in which they came.

    Several may act on one: each changes what it names, the last one wins, and when one ends the others stay in force
    (T25).
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._active: defaultdict[Line, dict[object, Changes]] = defaultdict(dict)
        self._turns: defaultdict[Line, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One change of a line at a time: each is read back, and the last one that came is to win."""

    async def add(self, owner: object, line: Line, changes: Changes) -> None:
        """Put ``changes`` in force until ``remove``. Raises NotDone where no line can behave like that."""
        async with self._turns[line]:
            self._active[line][owner] = changes
            try:
                await self._world.impair(*line, changes)
            except ValueError as error:
                del self._active[line][owner]
                raise NotDone(f"link {line[0]} {line[1]}: {error}") from error

    async def remove(self, owner: object, line: Line) -> None:
        """Take back what ``owner`` has changed, down to what others still ask for, or else what was declared."""
        async with self._turns[line]:
            await self._remove(owner, line)

    async def _remove(self, owner: object, line: Line) -> None:
        active = self._active[line]
        changes = active.pop(owner, None)
        if changes is None:
            return
        remaining: dict[str, int | float | bool] = {}
        for others in active.values():
            remaining |= {name: value for name, value in others.items() if name in changes}
        declared = [name for name in changes if name not in remaining]
        if declared:
            await self._world.restore(*line, declared)
        if remaining:
            await self._world.impair(*line, remaining)


@dataclass(frozen=True, slots=True)
class Impair:
    """Lines behave otherwise, until this ends."""

    lines: tuple[Line, ...]
    changes: Changes

    @asynccontextmanager
    async def on(self, impairments: Impairments) -> AsyncIterator[Told]:
        owner = object()
        guard = AsyncExitStack()
        try:
            for line in self.lines:
                guard.push_async_callback(impairments.remove, owner, line)
                await impairments.add(owner, line, self.changes)
            yield {}
        finally:
            await undisturbed(guard.aclose())


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes cannot reach each other, until this ends. ``name`` is unlike that of any other partition."""

    name: str
    sides: tuple[tuple[str, ...], tuple[str, ...]]
    one_way: bool = False
    """Nothing passes from the first side to the second; everything passes the other way."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """From which node nothing reaches which."""
        there = [(first, second) for first in self.sides[0] for second in self.sides[1]]
        return there if self.one_way else [*there, *((second, first) for first, second in there)]

    @asynccontextmanager
    async def on(self, world: World) -> AsyncIterator[Told]:
        try:
            await world.block(self.name, self.pairs)
            yield {}
        finally:
            await undisturbed(world.unblock(self.name))
