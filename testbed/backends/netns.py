"""The netns backend: network namespaces, the wire between them, and node processes inside."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from faults.world import TargetGone
from testbed.backends.namespace import Namespaces
from testbed.backends.processes import Process, Processes
from testbed.backends.sniffer import Point, Sniffer
from testbed.backends.wire import Wire
from testbed.control import ControlClient, ControlClosed
from testbed.deadline import SECOND, deadline
from testbed.errors import NodeFailed, TestbedError
from testbed.plan import Plan
from testbed.registry import RUN_MARK, kill_processes
from testbed.run_folder import write_json

PROGRAM = "pipeline.worker"
READY_WITHIN = 15 * SECOND
LOOK_AFTER, LOOK_AT_LEAST_EVERY = 0.003, 0.05
"""Seconds between two looks at a node that starts: seldom enough not to slow a hundred of them down."""


class NetnsBackend:
    """A plan made real on this machine. ``up`` first, ``down`` last and always; ``down`` may be repeated."""

    capabilities = frozenset({"impair", "block", "signal", "restart", "capture-wire", "capture-node", "exec"})

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        *,
        capture: str = "wire",
        fifo: bool = True,
        offloads: bool = True,
        program: str = PROGRAM,
    ) -> None:
        """``capture``: ``wire``, ``node`` (independently, at the nodes' own interfaces) or ``none``. ``offloads``
        must be off if any
        link may treat frames one by one."""
        self._plan = plan
        self._folder = folder
        self._capture = capture
        self._fifo = fifo
        self._offloads = offloads
        self._program = program
        self._namespaces = Namespaces(plan)
        self._processes: Processes | None = None
        self._wire: Wire | None = None
        self._sniffer: Sniffer | None = None
        self._nodes: dict[str, Process] = {}
        self.exits: asyncio.Queue[tuple[str, int, int]] = asyncio.Queue()

    @property
    def wire(self) -> Wire:
        if self._wire is None:
            raise TestbedError("there is no network: it is not up")
        return self._wire

    @property
    def nursery_failed(self) -> asyncio.Future[None]:
        """Done, with a TestbedError, when the parent of the node processes has died, and all of them with it."""
        if self._processes is None:
            raise TestbedError("no node can run: the network is not up")
        return self._processes.failed

    @property
    def sniffer(self) -> Sniffer | None:
        """The independent capture, where ``capture`` is ``node``."""
        return self._sniffer

    async def up(self) -> None:
        """Make the network and start what relays and captures its frames; no node runs yet."""
        (self._folder / "captures").mkdir(exist_ok=True)
        (self._folder / "nodes").mkdir(exist_ok=True)
        launching = asyncio.create_task(
            Processes.launch([self._program], self._folder / "nursery.log", {RUN_MARK: self._plan.run_id})
        )
        try:
            await _to_the_end(asyncio.to_thread(self._namespaces.make, self._offloads))
            files = {
                port: self._folder / "captures" / f"{interface.node}.{interface.name}.pcapng"
                for port, interface in self._plan.interfaces.items()
            }
            if self._capture == "node":
                points = {
                    port: Point(self._namespaces.nodes[interface.node], interface.name, files[port])
                    for port, interface in self._plan.interfaces.items()
                }
                self._sniffer = await Sniffer.start(points, log=self._folder / "sniffer.log")
            self._wire = await Wire.start(
                self._plan.fabric,
                {port: interface.kernel_name for port, interface in self._plan.interfaces.items()},
                self._namespaces.fabric,
                captures=files if self._capture == "wire" else None,
                log=self._folder / "wire.log",
                fifo=self._fifo,
            )
        finally:
            # Awaited in any case, so that ``down`` finds what it has to end.
            self._processes = await launching
        self._processes.on_exit = self._exited

    async def down(self) -> None:
        """Undo everything in reverse order."""
        if self._processes is not None:
            processes, self._processes = self._processes, None
            await processes.close()
            # What was run by ``exec`` may have left processes of its own behind, which keep a namespace alive.
            await asyncio.to_thread(kill_processes, self._plan.run_id)
            self._nodes.clear()
        if self._wire is not None:
            await self._wire.kill()
        if self._sniffer is not None:
            await self._sniffer.kill()
        self._namespaces.close()

    async def sniff(self, nodes: Sequence[str], folder: Path) -> Sniffer:
        """Begin an independent capture at the interfaces of these nodes, one file each in ``folder``. Whoever asks for
        it stops it, before ``down``. Raises TestbedError for an unknown node.
        """
        if unknown := sorted(set(nodes) - set(self._namespaces.nodes)):
            known = ", ".join(sorted(self._plan.nodes))
            raise TestbedError(f"capture: there is no node {unknown[0]!r} here; there are {known}")
        points = {
            port: Point(
                self._namespaces.nodes[interface.node],
                interface.name,
                folder / f"{interface.node}.{interface.name}.pcapng",
            )
            for port, interface in self._plan.interfaces.items()
            if interface.node in nodes
        }
        return await Sniffer.start(points, log=folder / "sniffer.log")

    async def start_node(self, name: str, config: Mapping[str, Any]) -> int:
        """Start the node's process, for the first time or again, and wait until it answers on its control socket.
        Returns its id.

        Raises NodeFailed if it ends instead, DeadlineExceeded if it does neither.
        """
        if self._processes is None:
            raise TestbedError(f"start {name}: the network is not up")
        if name in self._nodes:
            raise NodeFailed(f"start {name}: it is running already, as process {self._nodes[name].pid}")
        folder = self._folder / "nodes" / name
        folder.mkdir(exist_ok=True)
        control = folder / "control.sock"
        control.unlink(missing_ok=True)
        write_json(folder / "node.json", config)
        process = await self._processes.start(
            name,
            self._program,
            ["node.json"],
            namespace=self._namespaces.nodes[name],
            cwd=folder.absolute(),
            env={RUN_MARK: self._plan.run_id, **self._plan.nodes[name].env},
        )
        if not process.ended.done():
            self._nodes[name] = process
        async with deadline(READY_WITHIN, f"{name} (pid {process.pid}) does not answer on {control}"):
            pause = LOOK_AFTER
            while not (control.exists() and await self._answers(name, control)):
                if process.ended.done():
                    raise NodeFailed(f"{name} ended while it started; see {folder / 'stderr.log'}")
                await asyncio.sleep(pause)
                pause = min(1.5 * pause, LOOK_AT_LEAST_EVERY)
        return process.pid

    @staticmethod
    async def _answers(name: str, path: Path) -> bool:
        try:
            client = await ControlClient.connect(name, path)
        except NodeFailed:
            return False  # bound, but not listening yet
        try:
            await client.request("hello", READY_WITHIN)
        except ControlClosed:
            return False  # it ends, which whoever waits for it is about to see
        finally:
            await client.aclose()
        return True

    def _exited(self, name: str, pid: int, status: int) -> None:
        process = self._nodes.get(name)
        if process is not None and process.pid == pid:
            del self._nodes[name]
        self.exits.put_nowait((name, pid, status))

    async def signal(self, name: str, sig: int) -> None:
        """Send a signal to the node's process. Raises TargetGone if it does not run."""
        process = self._nodes.get(name)
        if process is None or not process.send(sig):
            raise TargetGone(f"{name} is not running")

    def pid(self, name: str) -> int | None:
        process = self._nodes.get(name)
        return process.pid if process is not None else None

    def running(self) -> list[str]:
        return sorted(self._nodes)

    async def wait_exit(self, name: str, timeout: int) -> int:
        """Wait until the node's process is gone; returns its wait status (0 if it did not run)."""
        process = self._nodes.get(name)
        if process is None:
            return 0
        async with deadline(timeout, f"{name} (pid {process.pid}) is still running"):
            return await asyncio.shield(process.ended)

    async def spawn(self, name: str, argv: Sequence[str], fds: Sequence[int]) -> Process:
        """Run a command inside the node's namespace, on these three descriptors. Raises TestbedError for an unknown
        node.
        """
        if self._processes is None or name not in self._namespaces.nodes:
            known = ", ".join(sorted(self._plan.nodes))
            raise TestbedError(f"exec: there is no node {name!r} here; there are {known}")
        folder = self._folder / "nodes" / name
        folder.mkdir(exist_ok=True)
        return await self._processes.execute(
            argv,
            namespace=self._namespaces.nodes[name],
            cwd=folder.absolute(),
            env={RUN_MARK: self._plan.run_id, "TESTBED_NODE": name, "PS1": f"{name}$ "},
            fds=fds,
        )


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work in a thread; if cancelled, only after it has ended, so that what it made can be undone."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
