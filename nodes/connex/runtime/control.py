"""The control socket: JSON lines over a UNIX socket, for whoever runs the node (never on the network the node serves).

A request is ``{"id": 1, "do": "status", ...}``; its answer ``{"id": 1, "ok": true, ...}`` or ``{"id": 1, "ok": false,
"error": "..."}``. Requests of one connection are carried out side by side, so answers may come in another order.
``subscribe`` adds every journal record from then on as ``{"journal": {...}}``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from inspect import isawaitable
from pathlib import Path
from typing import Any, cast

from connex.core.config import MIB
from connex.core.errors import ConnexError
from connex.runtime.journal import Journal

_log = logging.getLogger("connex")

Answer = Mapping[str, Any] | None
Handler = Callable[[dict[str, Any]], Answer | Awaitable[Answer]]
"""Takes the request; what it returns is added to the answer, and what it raises becomes the error."""

LINE_LIMIT = 1 * MIB
_BACKLOG_LIMIT = 64 * MIB
"""Bytes that a subscriber may be behind before it is cut off."""


class ControlError(ConnexError):
    """The control socket cannot be made, or a request does not make sense."""


class ControlServer:
    """The control socket of one node. ``add`` commands before or after it has been opened."""

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._handlers: dict[str, Handler] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._path: Path | None = None

    def add(self, name: str, handler: Handler) -> None:
        """Serve requests with ``"do": name``. Raises ControlError if the name is taken."""
        if name in self._handlers or name == "subscribe":
            raise ControlError(f"control command {name!r} is there already; give the new one another name")
        self._handlers[name] = handler

    async def open(self, path: Path, journal: Journal) -> None:
        """Listen on ``path``, with ``journal`` for those who subscribe; a socket that a dead process left there is
        replaced. Raises ControlError.
        """
        try:
            sock = _bind(path)
        except OSError as error:
            raise ControlError(
                f"control socket {path}: {error.strerror}; expected a folder that exists and may be written"
            ) from error
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=sock)
        self._path = path
        self._journal = journal

    async def close(self) -> None:
        """Stop listening, end every connection after its last answer, and remove the socket."""
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.closed()
        if self._server is not None:
            await self._server.wait_closed()
        if self._path is not None:
            with suppress(FileNotFoundError):
                self._path.unlink()
            self._path = None

    # For connections

    def joined(self, connection: _Connection) -> None:
        self._connections.add(connection)

    def left(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if self._journal is not None:
            self._journal.unsubscribe(connection.forward)

    def subscribe(self, connection: _Connection) -> None:
        assert self._journal is not None
        self._journal.unsubscribe(connection.forward)
        self._journal.subscribe(connection.forward)

    async def carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, without its id."""
        handler = self._handlers.get(str(request.get("do")))
        if handler is None:
            known = ", ".join(sorted([*self._handlers, "subscribe"]))
            raise ControlError(f"no command {request.get('do')!r}; there are: {known}")
        result = handler(request)
        if isawaitable(result):
            result = await result
        return dict(result or {})


class _Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: ControlServer) -> None:
        self._control = server
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        self._control.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._control.left(self)
        for task in self._tasks:
            task.cancel()
        if not self._gone.done():
            self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_LIMIT:
            self._send(
                {"ok": False, "error": f"a line of more than {LINE_LIMIT} bytes; expected one JSON object a line"}
            )
            self.close()
            return
        for line in lines:
            if line.strip():
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("not an object")
        except ValueError as error:
            self._send(
                {"ok": False, "error": f"not a request: {error}; expected a JSON object a line, as in {_EXAMPLE}"}
            )
            return
        if request.get("do") == "subscribe":
            self._answer(request, {})
            self._control.subscribe(self)
            return
        task = asyncio.get_running_loop().create_task(self._carry_out(request))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _carry_out(self, request: dict[str, Any]) -> None:
        try:
            answer = await self._control.carry_out(request)
        except Exception as error:  # noqa: BLE001 - whatever went wrong is what the one who asked wants to know
            text = str(error) if isinstance(error, ConnexError) else f"{type(error).__name__}: {error}"
            self._send({"id": request.get("id"), "ok": False, "error": text})
            return
        self._answer(request, answer)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._closing and not self._tasks and self._transport is not None:
            self._transport.close()

    def _answer(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        self._send({"id": request.get("id"), "ok": True} | answer)

    def _send(self, message: dict[str, Any]) -> None:
        if self._transport is not None:
            self._transport.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def forward(self, lines: str) -> None:
        """Pass journal records on."""
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() > _BACKLOG_LIMIT:
            _log.warning("a subscriber to the journal is %d bytes behind and is cut off", _BACKLOG_LIMIT)
            self._transport.abort()
            return
        self._transport.write("".join(f'{{"journal":{line}}}\n' for line in lines.splitlines()).encode())

    def close(self) -> None:
        """End the connection once the requests under way have been answered."""
        self._closing = True
        if not self._tasks and self._transport is not None:
            self._transport.close()

    async def closed(self) -> None:
        try:
            await asyncio.wait_for(asyncio.shield(self._gone), 1.0)
        except TimeoutError:
            for task in self._tasks:
                task.cancel()
            if self._transport is not None:
                self._transport.abort()
            await self._gone


_EXAMPLE = '{"id": 1, "do": "status"}'


def _bind(path: Path) -> socket.socket:
    """A socket bound to the path, which may be longer than the 107 bytes that an address holds: it is reached through
    its open folder.
    """
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        sock.close()
        raise
    finally:
        os.close(folder)
    return sock
