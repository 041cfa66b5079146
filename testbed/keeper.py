"""Whoever holds a network answers for it on a socket: for ``up``'s daemon and for a run in the foreground alike.

One request per connection: a JSON object, for ``exec`` with the caller's stdin, stdout and stderr as descriptors.
Answers are JSON objects: ``{"ok": true, ...}`` or ``{"ok": false, "error": text}``; ``exec`` first answers with the
process's id and then with its exit status, and may be sent signals to pass on in between.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.world import TargetGone
from testbed.backends.netns import NetnsBackend
from testbed.deadline import SECOND
from testbed.errors import TestbedError
from testbed.registry import RunRecord

MESSAGE = 256 * 1024
ANSWER_WITHIN = 30 * SECOND
UNDONE_WITHIN_S = 30.0


class Keeper:
    """Serves one backend on the socket of its run."""

    def __init__(
        self,
        record: RunRecord,
        backend: NetnsBackend,
        configure: Callable[[str], Mapping[str, Any]] | None = None,
        verbs: Mapping[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] | None = None,
    ) -> None:
        """``configure(node)`` gives the configuration with which ``start`` starts a node; ``verbs`` are requests that
        are answered by others than the keeper.
        """
        self._record = record
        self._backend = backend
        self._configure = configure
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._tasks: set[asyncio.Task[None]] = set()
        self.down: asyncio.Event = asyncio.Event()
        """Set when somebody has asked for the end."""
        self.taken_down: asyncio.Event = asyncio.Event()
        """To be set when all is undone, for whoever waits for it."""
        self._verbs: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "status": self._status,
            "signal": self._signal,
            "impair": self._impair,
            "restore": self._restore,
            "block": self._block,
            "unblock": self._unblock,
            "stats": self._stats,
            "start": self._start,
            "down": self._down,
            **(verbs or {}),
        }

    def open(self) -> None:
        """Listen. A socket left by an earlier process with the same run id is replaced."""
        path = self._record.socket
        path.unlink(missing_ok=True)
        with _short(path) as address:
            self._listener.bind(address)
        self._listener.listen(64)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """Let go of the socket and of everyone who is being served."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._record.socket.unlink(missing_ok=True)
        self.taken_down.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE)
            task = asyncio.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            data, fds = await _receive(connection)
            try:
                if not data:
                    return
                request = json.loads(data)
                if request.get("do") == "exec":
                    await self._exec(connection, request, fds)
                    return
                verb = self._verbs.get(request.get("do", ""))
                if verb is None:
                    answer: dict[str, Any] = {"ok": False, "error": f"unknown request {request.get('do')!r}"}
                else:
                    answer = {"ok": True, **await verb(request)}
            except (TestbedError, TargetGone, ValueError, KeyError, TypeError) as error:
                answer = {"ok": False, "error": f"missing {error}" if isinstance(error, KeyError) else str(error)}
            finally:
                for fd in fds:
                    os.close(fd)
            message = json.dumps(answer).encode()
            if len(message) > MESSAGE:
                message = json.dumps({"ok": False, "error": f"the answer has {len(message)} bytes: too long"}).encode()
            with suppress(OSError):  # whoever asked may be gone
                connection.send(message)

    async def _exec(self, connection: socket.socket, request: dict[str, Any], fds: list[int]) -> None:
        """Run a command; pass on signals until it has ended. If the caller goes away, so does the command."""
        process = await self._backend.spawn(request["node"], request["argv"], fds)
        connection.send(json.dumps({"ok": True, "pid": process.pid}).encode())
        while not process.ended.done():
            message = asyncio.ensure_future(_receive(connection))
            waiting: set[asyncio.Future[Any]] = {message, process.ended}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not message.done():
                message.cancel()
                await asyncio.gather(message, return_exceptions=True)
            elif message.result()[0]:
                process.send(int(json.loads(message.result()[0])["signal"]), group=True)
            else:
                process.send(signal.SIGKILL, group=True)
                await process.ended
        with suppress(OSError):
            connection.send(json.dumps({"ok": True, "status": process.ended.result()}).encode())

    async def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"nodes": {name: self._backend.pid(name) for name in self._record.nodes}}

    async def _signal(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._backend.signal(request["node"], int(request["signal"]))
        return {}

    async def _impair(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._backend.wire.impair(request["link"], request["direction"], request["changes"])
        return {"impairment": asdict(await self._backend.wire.impairment(request["link"], request["direction"]))}

    async def _restore(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._backend.wire.restore(request["link"], request["direction"], request["fields"])
        return {"impairment": asdict(await self._backend.wire.impairment(request["link"], request["direction"]))}

    async def _block(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._backend.wire.block(request["name"], [(a, b) for a, b in request["pairs"]])
        return {}

    async def _unblock(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._backend.wire.unblock(request["name"])
        return {}

    async def _stats(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"stats": asdict(await self._backend.wire.stats())}

    async def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._configure is None:
            raise TestbedError("start: this run starts its nodes itself")
        return {"pid": await self._backend.start_node(request["node"], self._configure(request["node"]))}

    async def _down(self, _: dict[str, Any]) -> dict[str, Any]:
        self.down.set()
        await self.taken_down.wait()
        return {}


async def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The next message and its descriptors; empty when the other side is gone."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(connection, MESSAGE, 3)
        except BlockingIOError:
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(connection, _set, readable)
            try:
                await readable
            finally:
                loop.remove_reader(connection)
        except OSError:
            return b"", []
        else:
            return data, list(fds)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name for a socket's path that fits into the 108 bytes that an address has, however long the path is."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class KeeperClient:
    """Asks a keeper, from a command. Blocks; a command has nothing else to do."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with _short(self._record.socket) as address:
                connection.connect(address)
        except OSError as error:
            connection.close()
            raise TestbedError(
                f"{self._record.name} (run {self._record.run_id}) does not answer on {self._record.socket}:"
                f" {error.strerror}; testbed status shows its state, testbed gc collects it if it is stale"
            ) from error
        return connection

    def ask(self, do: str, timeout: int = ANSWER_WITHIN, **fields: Any) -> dict[str, Any]:
        """One request and its answer. Raises TestbedError with what the keeper says, or if it is silent for
        ``timeout`` ns.
        """
        with self._connect() as connection:
            connection.settimeout(timeout / SECOND)
            connection.send(json.dumps({"do": do, **fields}).encode())
            try:
                data = connection.recv(MESSAGE)
            except TimeoutError as error:
                raise TestbedError(f"{self._record.name}: no answer to {do} for {timeout / SECOND:g} s") from error
            return self._checked(data, do)

    def _checked(self, data: bytes, do: str) -> dict[str, Any]:
        if not data:
            raise TestbedError(f"{self._record.name}: the run has ended without an answer to {do}")
        answer: dict[str, Any] = json.loads(data)
        if not answer.pop("ok"):
            raise TestbedError(f"{self._record.name}: {answer['error']}")
        return answer

    def execute(self, node: str, argv: Sequence[str]) -> int:
        """Run a command inside a node, on this process's own stdin, stdout and stderr; returns its exit code
        (negative: the signal).
        """
        with self._connect() as connection:
            request = json.dumps({"do": "exec", "node": node, "argv": list(argv)}).encode()
            socket.send_fds(connection, [request], [0, 1, 2])
            self._checked(connection.recv(MESSAGE), "exec")
            passed_on = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGWINCH)

            def pass_on(number: int, _: object) -> None:
                with suppress(OSError):  # the keeper has gone, which the answer below says
                    connection.send(json.dumps({"signal": number}).encode())

            before = {number: signal.signal(number, pass_on) for number in passed_on}
            try:
                answer = self._checked(connection.recv(MESSAGE), "exec")
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
            return os.waitstatus_to_exitcode(answer["status"])


def daemonise(serve: Callable[[Callable[[dict[str, Any]], None]], None], log: Path) -> dict[str, Any]:
    """Run ``serve(tell)`` in a process of its own, apart from this terminal; returns the first object that it tells.

    ``serve`` runs after the fork, so it makes its event loop itself. Raises TestbedError with the log's last lines if
    it ends before it has told anything. What it tells may carry ``error``, which is raised here. If this process is
    interrupted meanwhile, the other one is sent SIGTERM, and its end is awaited.
    """
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.write(writer, b"%d\n" % os.getpid())
        _detach(log)

        def tell(what: dict[str, Any]) -> None:
            os.write(writer, json.dumps(what).encode())
            os.close(writer)

        status = 70
        try:
            serve(tell)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    told = b""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        try:
            os.wait()
            while piece := pipe.read(MESSAGE):
                told += piece
        except BaseException:
            while b"\n" not in told and (piece := pipe.read(MESSAGE)):
                told += piece
            _end(int(told.partition(b"\n")[0] or 0))
            raise
    _, _, answer = told.partition(b"\n")
    if not answer:
        words = log.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
        raise TestbedError(
            f"the process that should hold the network ended before it was ready; its log {log} says:\n{words}"
        )
    content: dict[str, Any] = json.loads(answer)
    if "error" in content:
        raise TestbedError(content["error"])
    return content


def _end(pid: int) -> None:
    """Ask the process that holds the network, or was about to, to undo everything, and wait until it is gone."""
    if not pid:
        return
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], UNDONE_WITHIN_S)[0]:
            raise TestbedError(
                f"process {pid} has not undone everything after {UNDONE_WITHIN_S:g} s; testbed gc --all removes it"
            )
    except ProcessLookupError:
        return
    finally:
        os.close(process)


def _detach(log: Path) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, fd in ((0, null), (1, output), (2, output)):
        os.dup2(fd, number)
