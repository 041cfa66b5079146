"""One run: from resolved inputs to a folder that can be judged.

Whatever happens on the way (a node that ends, a wire that dies, Ctrl-C at any moment), faults are healed,
everything that was made is undone in reverse order, and the folder says what happened.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from faults.injector import Injector
from faults.world import TargetGone
from testbed.deadline import SECOND, deadline
from testbed.errors import DeadlineExceeded, TestbedError
from testbed.live import ANSWER_WITHIN, LiveWorld
from testbed.prepare import Prepared, surroundings
from testbed.progress import Progress, Traffic
from testbed.run_folder import EventLog, RunFolder, write_json
from testbed.running import RunningTopology
from testbed.signals import interruption
from testbed.workload import workers

FINISH_WITHIN = 20 * SECOND
"""All requests must be answered or reset this long after the source has stopped issuing."""
SCENARIO_SLACK = 30 * SECOND
"""Faults must be over this long after the end of the scenario."""
LOOK_EVERY = 0.25
"""Seconds between two looks at how far the workload has come."""


class Run:
    """Conducts one run. Used once."""

    def __init__(self, prepared: Prepared, folder: RunFolder, log: EventLog, progress: Progress) -> None:
        self._prepared = prepared
        self._folder = folder
        self._log = log
        self._progress = progress
        self._over = False
        self._faults: dict[Any, str] = {}
        self._source: dict[str, Any] = {"issued": 0, "done": 0, "failed": 0, "tokens": 0}
        log.listener = self._on_event

    async def conduct(self, running: RunningTopology) -> int | None:
        """Everything from the first object made to the last one undone.

        Returns the number of the signal that interrupted it, if one did. All else that went wrong is in the events.
        """
        with interruption(self._progress.phase) as interrupted:
            async with running:
                await running.carry(self._work(running), interrupted)
                if not self._over:
                    self._stopped("the run was broken off")
                self._progress.phase("taking everything down")
            if interrupted.done() and not running.kept:
                name = signal.Signals(interrupted.result()).name
                self._log.record("run.interrupted", signal=name)
            self._log.record("run.finished")
            return interrupted.result() if interrupted.done() and not running.kept else None

    async def _work(self, running: RunningTopology) -> None:
        prepared = self._prepared
        injector = Injector(running.world, prepared.scenario, prepared.seed, surroundings(prepared.plan))
        write_json(self._folder.schedule, injector.schedule)
        self._progress.phase(f"making the network of {prepared.plan.topology}")
        await running.make_network()
        names = workers(prepared.plan)
        self._progress.phase(f"starting {', '.join(names)}")
        running.watch(running.world.failed)
        await running.start_nodes(names)
        await self._traffic(running.world, injector)
        if prepared.keep:
            running.kept = True
            self._progress.phase(f"kept up: end it with Ctrl-C or testbed down {prepared.name}")
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
            missing = None
        except (TargetGone, DeadlineExceeded) as error:
            missing = str(error)
            with suppress(TargetGone, DeadlineExceeded):
                self._source |= await self._ask_source(world, "progress", ANSWER_WITHIN)
        self._stopped(missing)

    def _stopped(self, missing: str | None) -> None:
        """Mark the end of the traffic: what happens to streams from now on is the nodes being stopped."""
        self._over = True
        counts = {name: self._source[name] for name in ("issued", "done", "failed", "tokens")}
        self._log.record("traffic.stopped", complete=missing is None, missing=missing, **counts)

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
            with suppress(TargetGone, DeadlineExceeded, TestbedError):  # it may be paused or gone: shown as it was
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

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "fault.begun":
            self._faults[event["id"]] = str(event.get("kind", "fault"))
        elif event["event"] in ("fault.healed", "fault.target-gone"):
            self._faults.pop(event["id"], None)
        self._progress.event(event)
