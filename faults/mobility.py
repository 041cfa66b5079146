"""Planned changes: an endpoint moves, a node leaves. No faults at all if Connex keeps its word."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from faults.fault import NotDone, Skipped, Told
from faults.process import GONE_WITHIN
from faults.verbs import ANY, SPARE
from faults.world import TargetGone, World

MIGRATE_WITHIN = 30_000_000_000
LEAVE_WITHIN = 30_000_000_000


class Moves:
    """Which endpoints are moving where: one move of one endpoint at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.moving: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By endpoint."""
        self.expected: Counter[str] = Counter()
        """Node -> endpoints on their way to it, so that it is spare no more."""

    def owner(self, endpoint: str) -> str:
        """The node that hosts it. Raises TargetGone."""
        owner = self.world.endpoints().get(endpoint)
        if owner is None:
            raise TargetGone(f"no node hosts {endpoint}")
        return owner

    def candidates(self, owner: str, spare: bool) -> list[str]:
        """Running nodes that an endpoint of ``owner`` could move to; only those that nobody uses, if ``spare``."""
        busy = {owner}
        if spare:
            busy |= {*self.world.endpoints().values(), *(node for node, count in self.expected.items() if count)}
        return sorted(set(self.world.running()) - busy)


@dataclass(frozen=True, slots=True)
class Migrate:
    """An endpoint moves, by a request to the node that owns it."""

    endpoint: str
    to: str
    draw: int
    """Seed of the choice among the nodes that would do."""

    @asynccontextmanager
    async def on(self, moves: Moves) -> AsyncIterator[Told]:
        async with moves.moving[self.endpoint]:
            told = await self._move(moves)
        yield told

    async def _move(self, moves: Moves) -> Told:
        owner = moves.owner(self.endpoint)
        target = self._target(moves, owner)
        if target == owner:
            raise Skipped(f"{self.endpoint} is on {owner} already")
        moves.expected[target] += 1
        try:
            request = {"do": "migrate", "endpoint": self.endpoint, "to": target}
            answer = await moves.world.command(owner, request, MIGRATE_WITHIN)
        finally:
            moves.expected[target] -= 1
        if not answer.get("ok"):
            raise NotDone(f"{owner} could not move {self.endpoint} to {target}: {answer.get('error')}")
        facts = {name: answer[name] for name in ("handover", "epoch") if name in answer}
        return {"endpoint": self.endpoint, "source": owner, "target": target, **facts}

    def _target(self, moves: Moves, owner: str) -> str:
        """The node named, or one drawn among those that would do now."""
        if self.to not in (SPARE, ANY):
            return self.to
        pool = moves.candidates(owner, spare=self.to == SPARE)
        if not pool:
            raise Skipped(f"no running node is free for {self.endpoint}")
        return random.Random(self.draw).choice(pool)


@dataclass(frozen=True, slots=True)
class Leave:
    """A node hands over what it hosts, says goodbye, and ends."""

    node: str

    @asynccontextmanager
    async def on(self, world: World) -> AsyncIterator[Told]:
        answer = await world.command(self.node, {"do": "leave"}, LEAVE_WITHIN)
        if not answer.get("ok"):
            raise NotDone(f"{self.node} could not leave: {answer.get('error')}")
        await world.wait_exit(self.node, GONE_WITHIN)
        yield {}
