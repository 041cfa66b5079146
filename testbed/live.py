"""A running topology as the faults see it: node processes over their control sockets, links over the wire."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults.world import Event, TargetGone
from testbed.backends.backend import Backend
from testbed.control import ControlClient, ControlClosed
from testbed.deadline import SECOND, deadline
from testbed.errors import NodeFailed, TestbedError
from testbed.observer import Observer
from testbed.plan import Plan
from testbed.run_folder import EventLog, RunFolder

READY_WITHIN = 15 * SECOND
"""A node must have joined the others by then."""
STOP_WITHIN = 5 * SECOND
"""A node that was asked to stop must be gone by then, or it is killed."""
ANSWER_WITHIN = 5 * SECOND
POLL = 0.02
"""Seconds between two looks at something that is only shown, never announced."""

ENDING = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT, signal.SIGSEGV})
ENDING_COMMANDS = frozenset({"leave", "stop"})


class _Life:
    """One life of a node's process."""

    def __init__(self) -> None:
        self.pid = 0
        self.expected_to_end = False
        self.gone = asyncio.Event()
        self.control: ControlClient | None = None
        self.journal: ControlClient | None = None


class LiveWorld:
    """``faults.world.World`` on a backend."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        folder: RunFolder,
        log: EventLog,
        configure: Callable[[str, Mapping[str, str]], Mapping[str, Any]],
        *,
        members: bool = True,
    ) -> None:
        """``configure(node, owners)`` gives the content of a node's ``node.json``. Without ``members`` the nodes have
        static addresses and need not find each other.
        """
        self._members = members
        self._plan = plan
        self._backend = backend
        self._folder = folder
        self._log = log
        self._configure = configure
        self._lives: dict[str, _Life] = {}
        self.observer = Observer()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set to an exception when a node's process ends that nobody has told to."""
        self._exits = asyncio.create_task(self._watch_exits(), name="exits of nodes")

    # What the faults read

    def now(self) -> int:
        return time.monotonic_ns()

    def running(self) -> Sequence[str]:
        return sorted(name for name, life in self._lives.items() if life.pid and not life.gone.is_set())

    def endpoints(self) -> Mapping[str, str]:
        return self.observer.owners

    async def wait_event(self, match: Mapping[str, Any], count: int = 1) -> Event:
        return await self.observer.wait(match, count)

    def record(self, event: str, **fields: Any) -> None:
        self._log.record(event, **fields)

    # Links

    async def impair(self, link: str, direction: str, changes: Mapping[str, int | float | bool]) -> None:
        await self._backend.wire.impair(link, direction, changes)
        there = await self._backend.wire.impairment(link, direction)
        missed = {name: value for name, value in changes.items() if getattr(there, name) != value}
        if missed:
            raise NodeFailed(f"link {link} {direction}: asked for {missed}, but the wire has {there}")

    async def restore(self, link: str, direction: str, fields: Sequence[str]) -> None:
        await self._backend.wire.restore(link, direction, fields)

    async def block(self, name: str, pairs: Sequence[tuple[str, str]]) -> None:
        await self._backend.wire.block(
            name,
            [
                (origin.port, destination.port)
                for first, second in pairs
                for origin in self._plan.nodes[first].interfaces
                for destination in self._plan.nodes[second].interfaces
            ],
        )

    async def unblock(self, name: str) -> None:
        await self._backend.wire.unblock(name)

    # Processes

    async def start(self, node: str) -> None:
        """Start the process, listen to its journal, and wait until it has found the nodes that run.

        Raises TargetGone where something that is meant to end it does so meanwhile.
        """
        try:
            await self._launch(node)
            await self.wait_joined([node])
        except (NodeFailed, ControlClosed) as error:
            life = self._lives[node]
            if life.expected_to_end:
                raise TargetGone(f"{node} was ended while it started") from error
            if isinstance(error, NodeFailed):
                raise
            raise NodeFailed(f"{node} ended while it started; {self._last_words(node)}") from error

    async def _launch(self, node: str) -> None:
        if node in self.running():
            raise NodeFailed(f"{node} is running already")
        life = self._lives[node] = _Life()
        life.pid = await self._backend.start_node(node, self._configure(node, self.endpoints()))
        self.record("node.started", node=node, pid=life.pid)
        socket = self._folder.node(node) / "control.sock"
        try:
            life.control = await ControlClient.connect(node, socket)
            life.journal = await ControlClient.connect(node, socket, lambda line: self.observer.take_line(node, line))
            await life.journal.request("subscribe", ANSWER_WITHIN)
            status = await life.control.request("status", ANSWER_WITHIN)
        except ControlClosed as error:
            raise NodeFailed(f"{node} ended while it started; {self._last_words(node)}") from error
        for endpoint, owned in status["endpoints"].items():
            self.observer.owns(endpoint, owned["epoch"], node)

    async def start_all(self, nodes: Sequence[str]) -> None:
        """Start these nodes side by side and wait until each has found the others."""
        try:
            async with asyncio.TaskGroup() as group:
                for node in nodes:
                    group.create_task(self._launch(node), name=f"start {node}")
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the first; the others followed from it or say the same
        await self.wait_joined(nodes)

    async def wait_joined(self, nodes: Sequence[str]) -> None:
        """Wait until each of these nodes knows all that run. Raises DeadlineExceeded: who lacks whom."""
        if not self._members:
            return
        missing: dict[str, list[str]] = {}

        def say() -> str:
            return "nodes that have not found each other: " + "; ".join(
                f"{node} lacks {', '.join(others)}" for node, others in sorted(missing.items())
            )

        async with deadline(READY_WITHIN, say):
            for node in nodes:
                while others := sorted(set(self.running()) - await self._known_to(node)):
                    missing[node] = others
                    await asyncio.sleep(POLL)
                missing.pop(node, None)

    async def signal(self, node: str, signal: int) -> None:
        life = self._life(node)
        if signal in ENDING:
            life.expected_to_end = True
        await self._backend.signal(node, signal)
        await self._wait_effect(node, life, signal)

    async def wait_exit(self, node: str, timeout: int) -> None:
        life = self._lives.get(node)
        if life is None:
            return
        async with deadline(timeout, f"{node} (pid {life.pid}) is still running"):
            await life.gone.wait()

    async def command(self, node: str, request: Mapping[str, Any], timeout: int) -> Mapping[str, Any]:
        life = self._life(node)
        if request.get("do") in ENDING_COMMANDS:
            life.expected_to_end = True
        if life.control is None:
            raise TargetGone(f"{node} is not ready yet")
        try:
            return await life.control.send(request, timeout)
        except ControlClosed as error:
            raise TargetGone(str(error)) from error

    async def stop(self) -> None:
        """Stop every node: first ask, then kill. Returns when all are gone."""
        running = self._backend.running()  # those that were cut short while they started, too
        for node in running:
            self._lives[node].expected_to_end = True
            for number in (
                signal.SIGTERM,
                signal.SIGCONT,
            ):  # a stopped process takes its signals when it goes on
                await self._signal_if_there(node, number)
        try:
            await self._wait_all_gone(running, "asked to stop")
        except TimeoutError:
            late = self._backend.running()
            self.record("node.killed", nodes=late, cause=f"did not stop within {STOP_WITHIN / SECOND:g} s")
            for node in late:
                await self._signal_if_there(node, signal.SIGKILL)
            await self._wait_all_gone(late, "killed")

    async def aclose(self) -> None:
        """Let go of every connection. The processes are the backend's."""
        self._exits.cancel()
        await asyncio.gather(self._exits, return_exceptions=True)
        for life in self._lives.values():
            await _close(life)
        if self.failed.done():
            self.failed.exception()  # seen

    # Inside

    def _life(self, node: str) -> _Life:
        life = self._lives.get(node)
        if life is None or life.gone.is_set() or not life.pid:
            raise TargetGone(f"{node} is not running")
        return life

    async def _known_to(self, node: str) -> set[str]:
        life = self._life(node)
        if life.control is None:
            return set()
        status = await life.control.request("status", ANSWER_WITHIN)
        return {member["node"] for member in status["members"] if member["state"] == "alive"} | {node}

    async def _wait_effect(self, node: str, life: _Life, number: int) -> None:
        """A signal that stops, continues or kills has its effect before this returns."""
        if number == signal.SIGKILL:
            async with deadline(ANSWER_WITHIN, f"{node} (pid {life.pid}) is still there after SIGKILL"):
                await life.gone.wait()
        elif number in (signal.SIGSTOP, signal.SIGCONT):
            stopped = number == signal.SIGSTOP
            wanted = "stopped" if stopped else "going on"
            async with deadline(ANSWER_WITHIN, f"{node} (pid {life.pid}) is not {wanted}"):
                while not life.gone.is_set() and (_state(life.pid) == "T") is not stopped:
                    await asyncio.sleep(0.001)

    async def _signal_if_there(self, node: str, number: int) -> None:
        with suppress(TargetGone):  # it may end at any moment; that is heard of a little later
            await self._backend.signal(node, number)

    async def _wait_all_gone(self, nodes: Sequence[str], why: str) -> None:
        async with asyncio.timeout(STOP_WITHIN / SECOND):
            for node in nodes:
                await self._lives[node].gone.wait()

    async def _watch_exits(self) -> None:
        while True:
            node, pid, wait_status = await self._backend.exits.get()
            life = self._lives.get(node)
            if life is None or (life.pid and life.pid != pid):
                continue  # an earlier life, told about already
            status = os.waitstatus_to_exitcode(wait_status)
            life.gone.set()
            expected = life.expected_to_end or self._dragged_along()
            self.record("node.exited", node=node, pid=pid, status=status, expected=expected)
            if not expected and not self.failed.done():
                how = f"by signal {-status}" if status < 0 else f"with status {status}"
                self.failed.set_exception(NodeFailed(f"{node} ended by itself, {how}; {self._last_words(node)}"))
            await _close(life)

    def _dragged_along(self) -> bool:
        """Whether node processes end now because of the testbed: what started them has died, or all is taken down."""
        try:
            return self._backend.nursery_failed.done()
        except TestbedError:
            return True

    def _last_words(self, node: str) -> str:
        path = self._folder.node(node) / "stderr.log"
        words = _tail(path)
        return f"its last words ({path}):\n{words}" if words else f"it wrote nothing to {path}"


async def _close(life: _Life) -> None:
    for connection in (life.control, life.journal):
        if connection is not None:
            await connection.aclose()


def _state(pid: int) -> str:
    """The state letter of a process (see proc(5)), or nothing where it has gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def _tail(path: Path, most: int = 2000) -> str:
    """The last bytes of a file, from a line's start."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return text.strip()
