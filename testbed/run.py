"""One run: from resolved inputs to a folder that can be judged.

Whatever happens on the way (a node that ends, a wire that dies, Ctrl-C at any moment), faults are healed,
everything that was made is undone in reverse order, and the folder says what happened.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from faults.injector import Injector
from faults.world import TargetGone
from testbed.backends.backend import Backend
from testbed.deadline import SECOND, deadline
from testbed.errors import DeadlineExceeded, TestbedError
from testbed.live import ANSWER_WITHIN, LiveWorld
from testbed.prepare import Prepared
from testbed.progress import Progress, Traffic
from testbed.run_folder import EventLog, RunFolder, write_json
from testbed.signals import interruption
from testbed.workload import workers

FINISH_WITHIN = 20 * SECOND
"""All requests must be answered or reset this long after the source has stopped issuing."""
SCENARIO_SLACK = 30 * SECOND
"""Faults must be over this long after the end of the scenario."""
LOOK_EVERY = 0.25
"""Seconds between two looks at how far the workload has come."""


@dataclass(slots=True)
class Outcome:
    """How a run ended, apart from its verdict."""

    interrupted: int | None = None
    """Number of the signal that ended it."""
    troubles: list[str] = field(default_factory=list)
    """What ended it early, or could not be undone."""


class _Ended(Exception):  # noqa: N818
    """The run cannot go on."""


class Run:
    """Conducts one run. Used once."""

    def __init__(self, prepared: Prepared, folder: RunFolder, log: EventLog, progress: Progress) -> None:
        self._prepared = prepared
        self._folder = folder
        self._log = log
        self._progress = progress
        self._outcome = Outcome()
        self._faults: dict[Any, str] = {}
        self._source: dict[str, Any] = {"issued": 0, "done": 0, "failed": 0, "tokens": 0}
        log.listener = self._on_event

    async def conduct(self, backend: Backend) -> Outcome:
        """Everything from the first object made to the last one undone. Raises for its own defects only."""
        with interruption(self._progress.phase) as interrupted:
            async with AsyncExitStack() as undo:
                ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                work = asyncio.create_task(self._work(backend, undo, ended), name="run")
                await asyncio.wait({work, interrupted, ended}, return_when=asyncio.FIRST_COMPLETED)
                if interrupted.done():
                    self._interrupted(interrupted.result())
                elif not work.done():
                    self._trouble(ended.result())
                await self._settle(work)
                self._progress.phase("taking everything down")
            self._log.record("run.finished")
        return self._outcome

    async def _settle(self, work: asyncio.Task[None]) -> None:
        """Wait for the work to end, early if it has been overtaken by events, and keep its error."""
        if self._outcome.interrupted or self._outcome.troubles:
            work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            pass  # by us, and said already
        except TestbedError as error:
            self._trouble(str(error))
        except Exception:  # noqa: BLE001 - a defect must not stop the undoing; it is told with its trace
            self._trouble("internal error: " + traceback.format_exc())

    async def _work(self, backend: Backend, undo: AsyncExitStack, ended: asyncio.Future[str]) -> None:
        prepared = self._prepared
        world = LiveWorld(prepared.plan, backend, self._folder, self._log, prepared.workload.configure)
        undo.push_async_callback(self._undo, "connections", world.aclose)
        injector = Injector(world, prepared.scenario, prepared.seed)
        write_json(self._folder.schedule, injector.schedule)
        self._progress.phase(f"making the network: {len(prepared.plan.nodes)} nodes")
        undo.push_async_callback(self._undo, "network", backend.down)
        await backend.up()
        undo.push_async_callback(self._undo, "wire", lambda: self._stop_wire(backend))
        self._watch(ended, world.failed, "node")
        self._watch(ended, backend.wire.failed, "wire")
        names = workers(prepared.plan)
        self._progress.phase(f"starting {', '.join(names)}")
        undo.push_async_callback(self._undo, "nodes", world.stop)
        await world.start_all(names)
        await self._traffic(world, injector)
        if prepared.keep:
            self._progress.phase(
                f"kept up, as {prepared.name}: end it with Ctrl-C or testbed down {prepared.name}"
            )
            await asyncio.Event().wait()

    async def _traffic(self, world: LiveWorld, injector: Injector) -> None:
        duration = self._prepared.duration
        await self._ask_source(world, "start", ANSWER_WITHIN)
        self._log.record("traffic.started")
        self._progress.phase(f"traffic and faults for {duration / SECOND:g} s")
        faults = asyncio.create_task(injector.run(), name="faults")
        watching = asyncio.create_task(self._look(world), name="progress")
        try:
            async with deadline(duration + SCENARIO_SLACK, self._scenario_not_over):
                await asyncio.gather(asyncio.sleep(duration / SECOND), faults)
        finally:
            faults.cancel()
            watching.cancel()
            await asyncio.gather(faults, watching, return_exceptions=True)  # heals; its error is raised above
        await self._finish(world)

    def _scenario_not_over(self) -> str:
        active = ", ".join(self._faults.values()) or "none"
        return f"the scenario of {self._prepared.duration / SECOND:g} s is not over; faults active: {active}"

    async def _finish(self, world: LiveWorld) -> None:
        """Let what is in flight arrive. What is missing at the deadline is for the checkers to judge."""
        self._progress.phase("waiting for the last answers")
        try:
            self._source |= await self._ask_source(world, "finish", FINISH_WITHIN)
            complete, missing = True, None
        except (TargetGone, DeadlineExceeded) as error:
            complete, missing = False, str(error)
            with suppress(TargetGone, DeadlineExceeded):
                self._source |= await self._ask_source(world, "progress", ANSWER_WITHIN)
        counts = {name: self._source[name] for name in ("issued", "done", "failed", "tokens")}
        self._log.record("traffic.stopped", complete=complete, missing=missing, **counts)

    async def _ask_source(self, world: LiveWorld, do: str, timeout: int) -> Mapping[str, Any]:
        node = world.endpoints().get("source")
        if node is None:
            raise TargetGone("no node hosts the endpoint source")
        answer = await world.command(node, {"do": do}, timeout)
        if not answer.get("ok"):
            raise TestbedError(f"{node}: {do}: {answer.get('error')}")
        return {name: value for name, value in answer.items() if name not in ("id", "ok")}

    async def _look(self, world: LiveWorld) -> None:
        begun = world.now()
        while True:
            with suppress(
                TargetGone, DeadlineExceeded, TestbedError
            ):  # it may be paused or gone: shown as it was
                self._source |= await self._ask_source(world, "progress", ANSWER_WITHIN)
            counts = world.observer.counts
            self._progress.traffic(
                Traffic(
                    elapsed=world.now() - begun,
                    duration=self._prepared.duration,
                    issued=self._source["issued"],
                    done=self._source["done"],
                    failed=self._source["failed"],
                    tokens=self._source["tokens"],
                    handovers=counts["handover.committed"],
                    aborted=counts["handover.aborted"],
                    faults=tuple(self._faults.values()),
                )
            )
            await asyncio.sleep(LOOK_EVERY)

    async def _stop_wire(self, backend: Backend) -> None:
        stats = await backend.wire.stop()
        self._log.record(
            "wire.stopped",
            frames=stats.frames,
            overflowed=stats.overflowed,
            capture_dropped=stats.capture_dropped,
            lag_p50_ns=stats.lag_p50_ns,
            lag_p99_ns=stats.lag_p99_ns,
            lag_max_ns=stats.lag_max_ns,
            sched=stats.sched,
        )

    # What ends a run early

    def _watch(self, ended: asyncio.Future[str], source: asyncio.Future[Any], what: str) -> None:
        def tell(source: asyncio.Future[Any]) -> None:
            if not source.cancelled() and not ended.done():
                ended.set_result(str(source.exception() or f"the {what} ended: {source.result()}"))

        source.add_done_callback(tell)

    def _interrupted(self, number: int) -> None:
        self._outcome.interrupted = number
        self._log.record("run.interrupted", signal=signal.Signals(number).name)

    def _trouble(self, text: str) -> None:
        self._outcome.troubles.append(text)
        self._log.record("run.error", text=text)

    async def _undo(self, what: str, action: Callable[[], Awaitable[object]]) -> None:
        """One step of the undoing. Its failure is told and does not keep the others from being undone."""
        try:
            await action()
        except Exception as error:  # noqa: BLE001
            text = str(error) if isinstance(error, TestbedError) else traceback.format_exc()
            self._trouble(f"{what} could not be taken down: {text}; testbed gc removes what is left")

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "fault.begun":
            self._faults[event["id"]] = str(event.get("kind", "fault"))
        elif event["event"] in ("fault.healed", "fault.target-gone"):
            self._faults.pop(event["id"], None)
        self._progress.event(event)
