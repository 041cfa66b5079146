"""Carries out a schedule. Whatever happens, everything that was begun is healed, in reverse order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from faults.fault import Guard, NotDone, Skipped, undisturbed
from faults.fitting import Surroundings
from faults.mobility import Leave, Migrate, Moves
from faults.network import Impair, Impairments, Partition
from faults.process import Crash, Join, Pause, Processes, Restart
from faults.scenario import Scenario
from faults.schedule import Entry, draw_schedule
from faults.world import Overdue, TargetGone, World

_SECOND = 1_000_000_000
_CUT_SHORT = "the scenario was ended"


class Injector:
    """One scenario on one world. Used once."""

    def __init__(self, world: World, scenario: Scenario, seed: int, around: Surroundings) -> None:
        """Draws the schedule. ``around`` is what the scenario has been checked against."""
        self._world = world
        self._duration = scenario.duration
        self._around = around
        self._entries = draw_schedule(scenario, seed, around)
        self._impairments = Impairments(world)
        self._processes = Processes(world)
        self._moves = Moves(world)
        self._begun = 0
        self._awaited: set[int] = set()
        """Entries that have begun and come to an end of their own: the end of the scenario waits for it."""

    @property
    def schedule(self) -> list[dict[str, Any]]:
        """Everything that will happen, as JSON."""
        return [entry.to_json() for entry in self._entries]

    async def run(self) -> None:
        """From now until the end of the scenario. Heals everything before it returns or raises, cancelled or not."""
        self._begun = self._world.now()
        healing = AsyncExitStack()
        tasks = {
            entry.id: asyncio.create_task(self._conduct(entry, healing), name=f"fault {entry.id} ({entry.kind})")
            for entry in self._entries
        }
        end = asyncio.create_task(asyncio.sleep(self._duration / _SECOND), name="end of the scenario")
        try:
            await _all_or_first_error({end, *tasks.values()}, until=end)
            await _all_or_first_error({tasks[number] for number in self._awaited})
        finally:
            await undisturbed(self._heal([end, *tasks.values()], healing))

    async def _heal(self, tasks: list[asyncio.Task[None]], healing: AsyncExitStack) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # what they raised has been raised by ``run``
        await healing.aclose()

    async def _conduct(self, entry: Entry, healing: AsyncExitStack) -> None:
        late = await self._due(entry)
        told = entry.to_json()
        try:
            resolved = self._resolve(entry)
        except TargetGone as error:
            self._record("begun", entry, **told, late_ns=late)
            self._record("target-gone", entry, text=str(error))
            return
        self._record("begun", entry, **{**told, **resolved}, late_ns=late)
        active = await self._begin(entry, resolved)
        if active is None:
            return
        healing.push_async_callback(active.heal, _CUT_SHORT if entry.lasts is not None else None)
        if entry.lasts is not None:
            await asyncio.sleep(entry.lasts / _SECOND)
        if not entry.keeps:
            await active.heal(None)

    async def _begin(self, entry: Entry, parameters: Mapping[str, Any]) -> _Active | None:
        """Put the fault in force; None, and recorded why, if it did not come about."""
        guard = self._guard(entry, parameters)
        if (entry.lasts is None and not entry.keeps) or (entry.lasts is not None and entry.at is not None):
            self._awaited.add(entry.id)
        try:
            told = await guard.__aenter__()
        except TargetGone as error:
            self._record("target-gone", entry, text=str(error))
        except Skipped as error:
            self._record("skipped", entry, text=str(error))
            self._record("healed", entry)
        except (NotDone, Overdue) as error:
            self._record("failed", entry, text=str(error))
            self._record("healed", entry)
        except asyncio.CancelledError:
            self._record("healed", entry, cause=_CUT_SHORT)  # the guard has undone what it had done
            raise
        else:
            return _Active(self, entry, guard, told)
        return None

    def _record(self, what: str, entry: Entry, **fields: Any) -> None:
        self._world.record(f"fault.{what}", **{"id": entry.id, "kind": entry.kind, **fields})

    async def _due(self, entry: Entry) -> int:
        """Wait until it is time; returns how late it is by then, in ns."""
        due = self._begun + (entry.at or 0)
        if entry.on is not None:
            await self._world.wait_event(entry.on, entry.count)
            due = self._world.now() + entry.after
        wait = due - self._world.now()
        if wait > 0:
            await asyncio.sleep(wait / _SECOND)
        return max(0, self._world.now() - due)

    def _resolve(self, entry: Entry) -> Mapping[str, Any]:
        """The parameters, with the node that is meant by what it hosts now. Raises TargetGone if nobody hosts it."""
        parameters = entry.parameters
        if "owner_of" not in parameters:
            return parameters
        return {**parameters, "node": self._moves.owner(parameters["owner_of"])}

    def _guard(self, entry: Entry, parameters: Mapping[str, Any]) -> Guard:
        if entry.kind == "migrate":
            return Migrate(parameters["endpoint"], parameters["to"], entry.draw).on(self._moves)
        if entry.kind == "impair":
            return Impair(tuple(self._lines(parameters)), parameters["changes"]).on(self._impairments)
        if entry.kind == "partition":
            a, b = map(tuple, parameters["between"])
            return Partition(f"partition {entry.id}", (a, b), parameters["one_way"]).on(self._world)
        return self._process_guard(entry, parameters)

    def _process_guard(self, entry: Entry, parameters: Mapping[str, Any]) -> Guard:
        node = parameters["node"]
        if entry.kind == "crash":
            return Crash(node, parameters["signal"], entry.lasts is not None).on(self._processes)
        if entry.kind == "pause":
            return Pause(node).on(self._processes)
        if entry.kind == "restart":
            return Restart(node, parameters["down_for"]).on(self._processes)
        if entry.kind == "leave":
            return Leave(node).on(self._world)
        assert entry.kind == "join"
        return Join(node).on(self._processes)

    def _lines(self, parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
        direction = parameters["direction"]
        directions = ("a-to-b", "b-to-a") if direction == "both" else (direction,)
        if "link" in parameters:
            links = [parameters["link"]]
        else:
            links = sorted(link for link, ends in self._around.links.items() if parameters["node"] in ends)
        return [(link, direction) for link in links for direction in directions]


class _Active:
    """A fault in force: healed once, whoever comes first."""

    def __init__(self, injector: Injector, entry: Entry, guard: Guard, told: Mapping[str, Any]) -> None:
        self._record = injector._record
        self._entry = entry
        self._guard = guard
        self._told = told
        self._healed = False

    async def heal(self, cause: str | None) -> None:
        """Undo it. ``cause``: why it ends before its time. What else goes wrong is recorded and raised."""
        if self._healed:
            return
        self._healed = True
        await undisturbed(self._undo(cause))

    async def _undo(self, cause: str | None) -> None:
        why = {} if cause is None else {"cause": cause}
        try:
            await self._guard.__aexit__(None, None, None)
        except TargetGone as error:
            self._record("target-gone", self._entry, text=str(error))
        except Exception as error:
            self._record("failed", self._entry, text=f"could not be healed: {error}")
            raise
        else:
            self._record("healed", self._entry, **self._told, **why)


async def _all_or_first_error(tasks: set[asyncio.Task[None]], until: asyncio.Task[None] | None = None) -> None:
    """Wait for all tasks, or only for ``until``. Raises as soon as one of them raises."""
    waiting = tasks
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if until in done:
            return
