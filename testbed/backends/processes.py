"""The processes of nodes, started through the warm parent, each inside its node's namespace."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.backends.nursery import MESSAGE
from testbed.deadline import SECOND, deadline
from testbed.errors import CannotRun, NodeFailed, TestbedError

START_WITHIN = 10 * SECOND


class Process:
    """One process: its id, a descriptor that stands for it and nothing else, and its end."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Its wait status, once it is over."""

    def send(self, number: int, *, group: bool = False) -> bool:
        """Send a signal; says whether it was still there. Never meets another process that got the same id.

        ``group``: to all processes of its group as well, as a terminal does.
        """
        if self._pidfd < 0:
            return False
        try:
            if group:
                signal.pidfd_send_signal(self._pidfd, 0)  # it is there, so its group is no other's
                os.killpg(self.pid, number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def finish(self, status: int) -> None:
        os.close(self._pidfd)
        self._pidfd = -1
        if not self.ended.done():
            self.ended.set_result(status)


class Processes:
    """The warm parent and what it has started."""

    def __init__(self, parent: asyncio.subprocess.Process, connection: socket.socket) -> None:
        self._parent = parent
        self._connection = connection
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting: dict[Any, asyncio.Future[tuple[int, int]]] = {}
        self._alive: dict[tuple[Any, int], Process] = {}
        self._count = 0
        self.on_exit: Callable[[str, int, int], None] = lambda name, pid, status: None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set to an exception when the warm parent dies, and with it all nodes."""
        connection.setblocking(False)
        asyncio.get_running_loop().add_reader(connection, self._readable)

    @classmethod
    async def launch(cls, preload: Sequence[str], log: Path, mark: Mapping[str, str]) -> Processes:
        """Start the warm parent. ``mark`` goes into the environment of everything it starts."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = ["-m", "testbed.backends.nursery", str(theirs.fileno()), str(os.getpid()), *preload]
        with log.open("ab") as output, theirs:
            parent = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **mark},
            )
        processes = cls(parent, ours)
        try:
            async with deadline(START_WITHIN, f"the parent of node processes has not started; see {log}"):
                await processes._ready
        except BaseException:
            await processes.close()
            raise
        return processes

    async def start(
        self, name: str, program: str, argv: Sequence[str], *, namespace: int, cwd: Path, env: Mapping[str, str]
    ) -> Process:
        """Fork a node. Its output goes to ``stdout.log`` and ``stderr.log`` in ``cwd``."""
        request = {"start": name, "program": program, "argv": list(argv), "cwd": str(cwd), "env": dict(env)}
        with (cwd / "stdout.log").open("ab") as out, (cwd / "stderr.log").open("ab") as errors:
            return await self._request(name, request, [namespace, out.fileno(), errors.fileno()])

    async def execute(
        self, argv: Sequence[str], *, namespace: int, cwd: Path, env: Mapping[str, str], fds: Sequence[int]
    ) -> Process:
        """Run any command in a node's namespace, on the caller's stdin, stdout and stderr."""
        self._count += 1
        request = {"exec": self._count, "argv": list(argv), "cwd": str(cwd), "env": dict(env)}
        return await self._request(self._count, request, [namespace, *fds])

    async def _request(self, key: Any, request: dict[str, Any], fds: list[int]) -> Process:
        answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._starting[key] = answer
        message = json.dumps(request).encode()
        if len(message) > MESSAGE:
            raise CannotRun(
                f"start {key}: {len(message)} bytes of arguments and environment, at most {MESSAGE} are possible"
            )
        try:
            async with deadline(
                START_WITHIN, f"start {key}: the parent of node processes (pid {self._parent.pid}) does not answer"
            ):
                await self._send(message, fds)
                pid, pidfd = await answer
        finally:
            self._starting.pop(key, None)
        process = self._alive[key, pid] = Process(pid, pidfd)
        return process

    async def _send(self, message: bytes, fds: list[int]) -> None:
        while True:
            try:
                socket.send_fds(self._connection, [message], fds)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                raise TestbedError(
                    f"the parent of node processes (pid {self._parent.pid}) is gone: {error.strerror}"
                ) from error

    def _readable(self) -> None:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._connection, MESSAGE, 1)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._lost()
                return
            self._take(json.loads(data), fds)

    def _take(self, message: dict[str, Any], fds: list[int]) -> None:
        if "ready" in message:
            self._ready.set_result(None)
        elif "started" in message:
            answer = self._starting.get(message["started"])
            if answer is not None and not answer.done():
                answer.set_result((message["pid"], fds[0]))
        elif "error" in message:
            answer = self._starting.get(message["of"])
            if answer is not None and not answer.done():
                answer.set_exception(NodeFailed(message["error"]))
        else:
            asyncio.get_running_loop().call_soon(self._ended, message["exited"], message["pid"], message["status"])

    def _ended(self, key: Any, pid: int, status: int) -> None:
        process = self._alive.pop((key, pid), None)
        if process is None:
            # It ended before whoever started it got to know of it: let them first.
            asyncio.get_running_loop().call_soon(self._ended, key, pid, status)
            return
        process.finish(status)
        if isinstance(key, str):
            self.on_exit(key, pid, status)

    def _lost(self) -> None:
        asyncio.get_running_loop().remove_reader(self._connection)
        error = TestbedError(f"the parent of node processes (pid {self._parent.pid}) has ended, and all nodes with it")
        for (key, pid), process in list(self._alive.items()):
            del self._alive[key, pid]
            process.finish(signal.SIGKILL)
            if isinstance(key, str):
                self.on_exit(key, pid, signal.SIGKILL)
        waiting: list[asyncio.Future[Any]] = [self._ready, self.failed, *self._starting.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()

    async def close(self) -> None:
        """Kill everything that is still there, and the parent."""
        for process in list(self._alive.values()):
            process.send(signal.SIGKILL)
        if not self.failed.done():
            self.failed.cancel()
            asyncio.get_running_loop().remove_reader(self._connection)
        self._connection.close()
        if self._parent.returncode is None:
            # It ends by itself when its socket closes; the kernel then kills what it had started.
            try:
                async with asyncio.timeout(2):
                    await self._parent.wait()
            except TimeoutError:
                self._parent.kill()
        await self._parent.wait()
