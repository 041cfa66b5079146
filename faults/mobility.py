"""Planned changes: an endpoint moves, a node leaves. No faults at all if Connex keeps its word."""

from __future__ import annotations

import random
from types import TracebackType

from faults.process import GONE_WITHIN
from faults.scenario import SPARE
from faults.world import TargetGone, World

MIGRATE_WITHIN = 30_000_000_000
LEAVE_WITHIN = 30_000_000_000


class NotDone(Exception):
    """A planned change was refused or failed."""


class Skipped(Exception):
    """There was nothing to do."""


class Migrate:
    """Move an endpoint, by a request to the node that owns it."""

    def __init__(self, world: World, endpoint: str, to: str, draw: random.Random) -> None:
        self._world = world
        self._endpoint = endpoint
        self._to = to
        self._draw = draw

    async def __aenter__(self) -> None:
        owners = self._world.endpoints()
        owner = owners.get(self._endpoint)
        if owner is None:
            raise TargetGone(f"no node hosts {self._endpoint}")
        target = self._target(owner)
        if target == owner:
            raise Skipped(f"{self._endpoint} is on {owner} already")
        request = {"do": "migrate", "endpoint": self._endpoint, "to": target}
        answer = await self._world.command(owner, request, MIGRATE_WITHIN)
        if not answer.get("ok"):
            raise NotDone(f"{owner} could not move {self._endpoint} to {target}: {answer.get('error')}")

    def _target(self, owner: str) -> str:
        """The node named, or one drawn among those that would do now."""
        if self._to not in (SPARE, "any"):
            return self._to
        owners = self._world.endpoints()
        busy = {node for endpoint, node in owners.items() if endpoint != self._endpoint} if self._to == SPARE else set()
        pool = sorted(set(self._world.running()) - busy - {owner})
        if not pool:
            raise Skipped(f"no running node is free for {self._endpoint}")
        return self._draw.choice(pool)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to undo: the endpoint has moved."""


class Leave:
    """A node hands over what it hosts, says goodbye, and ends."""

    def __init__(self, world: World, node: str) -> None:
        self._world = world
        self._node = node

    async def __aenter__(self) -> None:
        answer = await self._world.command(self._node, {"do": "leave"}, LEAVE_WITHIN)
        if not answer.get("ok"):
            raise NotDone(f"{self._node} could not leave: {answer.get('error')}")
        await self._world.wait_exit(self._node, GONE_WITHIN)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to undo: the node has left."""
