"""Faults of links: what they do to frames, and who cannot reach whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType

from faults.world import World


class Impairments:
    """Which faults act on which direction of which link, in the order in which they came.

    Several may act on one direction: each changes what it names, the last one wins, and when one ends the others stay
    in force (T25).
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._active: dict[tuple[str, str], dict[object, Mapping[str, int | float | bool]]] = {}

    async def add(self, owner: object, link: str, direction: str, changes: Mapping[str, int | float | bool]) -> None:
        self._active.setdefault((link, direction), {})[owner] = changes
        await self._world.impair(link, direction, changes)

    async def remove(self, owner: object, link: str, direction: str) -> None:
        active = self._active.get((link, direction), {})
        changes = active.pop(owner, None)
        if changes is None:
            return
        remaining: dict[str, int | float | bool] = {}
        for others in active.values():
            remaining |= {name: value for name, value in others.items() if name in changes}
        declared = [name for name in changes if name not in remaining]
        if declared:
            await self._world.restore(link, direction, declared)
        if remaining:
            await self._world.impair(link, direction, remaining)


class Impair:
    """Links behave otherwise, until this ends."""

    def __init__(
        self, shared: Impairments, lines: Sequence[tuple[str, str]], changes: Mapping[str, int | float | bool]
    ) -> None:
        """``lines``: (link, direction) pairs."""
        self._shared = shared
        self._lines = lines
        self._changes = changes
        self._undo = AsyncExitStack()

    async def __aenter__(self) -> None:
        async with AsyncExitStack() as undo:
            for link, direction in self._lines:
                undo.push_async_callback(self._shared.remove, self, link, direction)
                await self._shared.add(self, link, direction, self._changes)
            self._undo = undo.pop_all()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._undo.aclose()


class Partition:
    """Nodes cannot reach each other, until this ends."""

    def __init__(self, world: World, name: str, sides: tuple[Sequence[str], Sequence[str]], one_way: bool) -> None:
        self._world = world
        self._name = name
        a, b = sides
        there = [(first, second) for first in a for second in b]
        self._pairs = there if one_way else [*there, *((second, first) for first, second in there)]

    async def __aenter__(self) -> None:
        await self._world.block(self._name, self._pairs)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._world.unblock(self._name)
