"""A topology that is up: its network, its node processes, whoever answers for it, and what was written down first."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any, Self

from faults.world import TargetGone
from testbed.backends.netns import NetnsBackend
from testbed.backends.wire import Wire
from testbed.backends.wire_stats import CaptureStats
from testbed.captures_on_demand import CapturesOnDemand
from testbed.errors import TestbedError
from testbed.exit_status import ExitStatus
from testbed.keeper import Keeper
from testbed.live import LiveWorld
from testbed.network.spec import Port
from testbed.plan import Plan
from testbed.registry import register
from testbed.run_folder import EventLog, RunFolder, write_json
from testbed.workload import Workload


class RunningTopology:
    """Made step by step, each step written down or pushed for undoing before it is taken.

    Leaving it undoes all of it in reverse order; what cannot be undone is told in ``troubles`` and does not keep the
    rest from being undone.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        plan: Plan,
        workload: Workload,
        backend: NetnsBackend,
        folder: RunFolder,
        log: EventLog,
    ) -> None:
        """``kind``: ``run`` or ``up``."""
        self._kind = kind
        self._name = name
        self._plan = plan
        self._workload = workload
        self._backend = backend
        self._folder = folder
        self._log = log
        self._undo = AsyncExitStack()
        self.world = LiveWorld(plan, backend, folder, log, workload.configure, members=workload.adapter == "connex")
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set, with what has happened, when the network dies, or when somebody asks for its end."""
        self.asked_down = False
        self.kept = False
        """Set once all is done and the topology only stands: being ended is no trouble from then on."""
        self.troubles: list[str] = []
        self.status = ExitStatus.PASS
        """Exit status of the first trouble."""

    async def __aenter__(self) -> Self:
        record = register(
            self._plan.run_id,
            self._name,
            self._kind,
            self._plan.topology,
            self._folder.path,
            tuple(sorted(self._plan.nodes)),
        )
        self._captures = CapturesOnDemand(self._plan, self._backend, self._folder)
        verbs = {"capture-start": self._captures.start, "capture-stop": self._captures.stop}
        self._keeper = Keeper(record, self._backend, self._configure, verbs)
        self._push("keeper", self._keeper.close)  # last of all: it answers whoever has asked for the end
        self._push("record", _plain(record.forget))
        self._push("connections", self.world.aclose)
        try:
            self._keeper.open()  # before anything is made: it can be taken down from the first moment on
        except BaseException:
            await self._undo.aclose()
            raise
        down = asyncio.create_task(self._keeper.down.wait(), name="asked down")
        down.add_done_callback(self._down)
        self._push("keeper", _plain(down.cancel))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._undo.aclose()

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def wire(self) -> Wire:
        return self._backend.wire

    def pid(self, node: str) -> int | None:
        """The node's process, if it runs."""
        return self._backend.pid(node)

    async def make_network(self) -> None:
        self._push("network", self._backend.down)
        await self._backend.up()
        self._push("captures", self._stop_sniffer)
        self._push("captures on demand", self._captures.close)
        self._push("wire", self._stop_wire)
        self.watch(self._backend.wire.failed)
        self.watch(self._backend.nursery_failed)
        self.watch(self._backend.nursery_failed)
        if self._backend.sniffer is not None:
            self.watch(self._backend.sniffer.failed)

    async def start_nodes(self, names: Sequence[str]) -> None:
        self._push("nodes", self.world.stop)
        await self.world.start_all(names)

    async def carry(self, work: Coroutine[Any, Any, None], interrupted: asyncio.Future[int]) -> None:
        """Do the work until it is done, or cut it short when a signal comes or the topology has ended.

        What went wrong is told in the events and kept in ``troubles``.
        """
        task = asyncio.create_task(work, name="work")
        first: list[asyncio.Future[Any]] = [task, interrupted, self.ended]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            if self.ended.done() and not (self.kept and self.asked_down):
                self.trouble(self.ended.result())
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass  # by the line above
        except (TestbedError, TargetGone) as error:
            self.trouble(str(error), status=getattr(error, "status", ExitStatus.FAIL))
        except Exception:  # noqa: BLE001 - a defect must not stop the undoing; it is told with its trace
            self.trouble("internal error: " + traceback.format_exc(), status=ExitStatus.INTERNAL)

    def watch(self, source: asyncio.Future[Any]) -> None:
        """End when this fails."""
        source.add_done_callback(self._failed)

    def _failed(self, source: asyncio.Future[Any]) -> None:
        if not source.cancelled() and not self.ended.done():
            self.ended.set_result(str(source.exception()))

    def _down(self, asked: asyncio.Future[Any]) -> None:
        if not asked.cancelled() and not self.ended.done():
            self.asked_down = True
            self.ended.set_result("taken down by testbed down")

    def _configure(self, node: str) -> dict[str, Any]:
        return self._workload.configure(node, self.world.endpoints())

    def _push(self, what: str, action: Callable[[], Awaitable[object]]) -> None:
        self._undo.push_async_callback(self._take_down, what, action)

    async def _take_down(self, what: str, action: Callable[[], Awaitable[object]]) -> None:
        try:
            await action()
        except Exception as error:  # noqa: BLE001 - told, and the rest is still undone
            text = str(error) if isinstance(error, TestbedError) else traceback.format_exc()
            self.trouble(f"{what} could not be taken down: {text}; testbed gc removes what is left")

    def trouble(self, text: str, status: ExitStatus = ExitStatus.FAIL) -> None:
        """Tell what went wrong; the first one counts."""
        self.status = self.status or status
        self.troubles.append(text)
        self._log.record("run.error", text=text)

    async def _stop_wire(self) -> None:
        wire = self._backend.wire
        if wire.failed.done():
            return  # told already; what it captured is as it is, and no counter says that it is whole
        stats = await wire.stop()
        fields = {name: value for name, value in asdict(stats).items() if name != "captures"}
        self._log.record("wire.stopped", dropped_by_impairment=stats.dropped_by_impairment, **fields)
        write_json(self._folder.path / "wire.json", stats.to_json())
        self._count(stats.captures, "wire")

    async def _stop_sniffer(self) -> None:
        sniffer = self._backend.sniffer
        if sniffer is not None and not sniffer.failed.done():
            self._count(await sniffer.stop(), "node")

    def _count(self, captures: Mapping[Port, CaptureStats], point: str) -> None:
        """Write ``counters.json``: without it the checkers take every capture for incomplete."""
        counters = {
            f"{interface.node}.{interface.name}.pcapng": {**asdict(captures[port]), "point": point, "closed": True}
            for port, interface in self._plan.interfaces.items()
            if port in captures
        }
        if counters:
            write_json(self._folder.captures / "counters.json", counters)


def _plain(action: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def call() -> object:
        return action()

    return call
