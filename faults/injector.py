"""Carries out a schedule. Whatever happens, everything that was begun is healed, in reverse order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from faults.mobility import Leave, Migrate, NotDone, Skipped
from faults.network import Impair, Impairments, Partition
from faults.process import Crash, Pause, Start
from faults.scenario import Scenario
from faults.schedule import Entry, draw_schedule
from faults.world import TargetGone, World

_SECOND = 1_000_000_000


class Injector:
    """One scenario on one world. Used once."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        seed: int,
        *,
        links: Mapping[str, tuple[str, str]],
        groups: Mapping[str, list[str]] | None = None,
    ) -> None:
        """``links``: link -> the nodes at its ends. ``groups``: name -> nodes, beside ``workers``."""
        self._world = world
        self._scenario = scenario
        self._links = links
        self._entries = draw_schedule(scenario, seed, {"workers": world.group("workers"), **(groups or {})})
        self._impairments = Impairments(world)
        self._moving: dict[str, asyncio.Lock] = {}
        self._begun = 0

    @property
    def schedule(self) -> list[dict[str, Any]]:
        """Everything that will happen, as JSON."""
        return [entry.to_json() for entry in self._entries]

    async def run(self) -> None:
        """From now until the end of the scenario. Heals everything before it returns or raises, cancelled or not."""
        self._begun = self._world.now()
        async with AsyncExitStack() as healing:
            tasks = [
                asyncio.create_task(self._conduct(entry, healing), name=f"fault {entry.id}") for entry in self._entries
            ]
            try:
                await self._until_over(tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_over(self, tasks: list[asyncio.Task[None]]) -> None:
        """Until all are done, or the scenario has ended and only events that never came are waited for."""
        timed = {task for task, entry in zip(tasks, self._entries, strict=True) if entry.on is None}
        waiting = set(tasks)
        while waiting:
            left = (self._begun + self._scenario.duration - self._world.now()) / _SECOND
            done, waiting = await asyncio.wait(
                waiting, timeout=None if waiting & timed else max(left, 0), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            if not done:
                return

    async def _conduct(self, entry: Entry, healing: AsyncExitStack) -> None:
        late = await self._due(entry)
        for_all = entry.to_json()
        self._world.record("fault.begun", **for_all, late_ns=late)
        try:
            fault = self._fault(entry)
            if entry.lasts is None:
                await self._keep(entry, fault, healing)
                return
            async with fault:
                await asyncio.sleep(entry.lasts / _SECOND)
            self._world.record("fault.healed", id=entry.id, kind=entry.kind)
        except TargetGone as error:
            self._world.record("fault.target-gone", id=entry.id, kind=entry.kind, text=str(error))
        except Skipped as error:
            self._world.record("fault.skipped", id=entry.id, kind=entry.kind, text=str(error))
            self._world.record("fault.healed", id=entry.id, kind=entry.kind)
        except NotDone as error:
            self._world.record("fault.failed", id=entry.id, kind=entry.kind, text=str(error))
            self._world.record("fault.healed", id=entry.id, kind=entry.kind)
        except asyncio.CancelledError:
            self._world.record("fault.healed", id=entry.id, kind=entry.kind, cause="the scenario was ended")
            raise

    async def _keep(self, entry: Entry, fault: AbstractAsyncContextManager[None], healing: AsyncExitStack) -> None:
        """Begin what has no end of its own: it is healed with the scenario, or over as soon as it has happened."""
        if entry.kind not in ("impair", "partition"):
            async with fault:
                pass
            self._world.record("fault.healed", id=entry.id, kind=entry.kind)
            return
        await fault.__aenter__()
        healing.push_async_callback(self._heal, entry, fault)

    async def _heal(self, entry: Entry, fault: AbstractAsyncContextManager[None]) -> None:
        try:
            await fault.__aexit__(None, None, None)
        except TargetGone as error:
            self._world.record("fault.target-gone", id=entry.id, kind=entry.kind, text=str(error))
        else:
            self._world.record("fault.healed", id=entry.id, kind=entry.kind)

    async def _due(self, entry: Entry) -> int:
        """Wait until it is time; returns how late it is by then, in ns."""
        due = self._begun + (entry.at or 0)
        if entry.on is not None:
            for _ in range(entry.count):
                await self._world.wait_event(entry.on)
            due = self._world.now() + entry.after
        wait = due - self._world.now()
        if wait > 0:
            await asyncio.sleep(wait / _SECOND)
        return max(0, self._world.now() - due)

    def _fault(self, entry: Entry) -> AbstractAsyncContextManager[None]:
        parameters = entry.parameters
        if entry.kind == "migrate":
            lock = self._moving.setdefault(parameters["endpoint"], asyncio.Lock())
            return _OneAtATime(
                lock, Migrate(self._world, parameters["endpoint"], parameters["to"], random.Random(entry.draw))
            )
        if entry.kind == "impair":
            return Impair(self._impairments, self._lines(parameters), parameters["changes"])
        if entry.kind == "partition":
            sides = parameters["between"]
            return Partition(self._world, f"partition {entry.id}", (sides[0], sides[1]), parameters["one_way"])
        node = self._node(parameters)
        if entry.kind == "crash":
            return Crash(self._world, node, parameters["signal"], entry.lasts is not None)
        if entry.kind == "pause":
            return Pause(self._world, node)
        if entry.kind == "leave":
            return Leave(self._world, node)
        return Start(self._world, node, kill_first=entry.kind == "restart", after=parameters.get("after", 0))

    def _node(self, parameters: Mapping[str, Any]) -> str:
        if "node" in parameters:
            return str(parameters["node"])
        owner = self._world.endpoints().get(parameters["owner_of"])
        if owner is None:
            raise TargetGone(f"no node hosts {parameters['owner_of']}")
        return owner

    def _lines(self, parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
        if "link" in parameters:
            directions = ("a-to-b", "b-to-a") if parameters["direction"] == "both" else (parameters["direction"],)
            return [(parameters["link"], direction) for direction in directions]
        links = [link for link, ends in self._links.items() if parameters["node"] in ends]
        return [(link, direction) for link in sorted(links) for direction in ("a-to-b", "b-to-a")]


class _OneAtATime:
    """At most one migration of one endpoint at a time."""

    def __init__(self, lock: asyncio.Lock, inner: Migrate) -> None:
        self._lock = lock
        self._inner = inner

    async def __aenter__(self) -> None:
        async with self._lock:
            await self._inner.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        """Nothing to undo: the endpoint has moved."""
