"""One stream on one TCP connection: a length and a message, again and again.

The first message, a JSON object, says who talks to whom; a single byte back says that the endpoint is served there.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import cast

from pipeline.port import Buffer

LARGEST = 1 << 30
ACCEPTED = b"\x01"
HIGH_WATER = 1024 * 1024
"""Bytes that the process holds for the kernel before messages wait."""
UNACKNOWLEDGED_MS = 5_000
"""A peer that has acknowledged nothing for this long is gone."""
_JOIN = 16 * 1024
_LENGTH = struct.Struct("!I")

Take = Callable[[str, Buffer], None]


class Outgoing(asyncio.Protocol):
    """``pipeline.port.Outbound`` on a connection that this side has opened."""

    def __init__(
        self,
        sender: str,
        receiver: str,
        on_open: Callable[[Outgoing], None],
        on_settled: Callable[[Outgoing], None],
        on_end: Callable[[Outgoing, str], None],
    ) -> None:
        self.receiver = receiver
        self.is_open = False
        self.waiting: list[bytes] = []
        self._sender = sender
        self._on_open, self._on_settled, self._on_end = on_open, on_settled, on_end
        self._paused = False
        self._transport: asyncio.Transport | None = None

    def put(self, message: bytes) -> None:
        transport = self._transport
        if self._paused or transport is None:
            self.waiting.append(message)
        elif len(message) <= _JOIN:
            transport.write(_LENGTH.pack(len(message)) + message)
        else:
            transport.writelines((_LENGTH.pack(len(message)), message))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has types of its own
        tune(self._transport)
        self.put(json.dumps({"from": self._sender, "to": self.receiver}).encode())

    def data_received(self, data: bytes) -> None:
        if not self.is_open and data == ACCEPTED:
            self.is_open = True
            self._on_open(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        pending = deque(self.waiting)
        self.waiting.clear()
        while pending and not self._paused:
            self.put(pending.popleft())
        self.waiting[:0] = pending
        if not self.waiting:
            self._on_settled(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._transport = None
        self._on_end(self, str(exc) if exc else "the connection was closed at the other end")


class Incoming(asyncio.Protocol):
    """A connection that another node has opened; ``route(sender, receiver)`` gives what takes its messages, or None."""

    def __init__(
        self,
        route: Callable[[Incoming, str, str], Take | None],
        on_end: Callable[[Incoming, str], None],
    ) -> None:
        self.sender = ""
        self.receiver = ""
        self._route, self._on_end = route, on_end
        self._take: Take | None = None
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        """The beginning of a length."""
        self._message = bytearray()
        """A message of which a part has come."""
        self._missing = 0

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has types of its own
        tune(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        view = memoryview(data)
        position = 0
        if self._missing:
            position = min(self._missing, len(view))
            self._message += view[:position]
            self._missing -= position
            if self._missing:
                return
            message, self._message = self._message, bytearray()
            self._complete(message)
        while len(view) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(view, position)
            if length > LARGEST:
                self.abort()
                return
            position += _LENGTH.size
            if len(view) - position < length:
                self._message = bytearray(view[position:])
                self._missing = length - len(self._message)
                return
            self._complete(view[position : position + length])
            position += length
        self._rest = bytes(view[position:])

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_end(self, str(exc) if exc else "the connection was closed at the other end")

    def _complete(self, message: Buffer) -> None:
        if self._take is not None:
            self._take(self.sender, message)
            return
        who = json.loads(bytes(message))
        self.sender, self.receiver = who["from"], who["to"]
        self._take = self._route(self, self.sender, self.receiver)
        if self._transport is None:
            return
        if self._take is None:
            self._transport.abort()
        else:
            self._transport.write(ACCEPTED)


def tune(transport: asyncio.Transport) -> None:
    """Small messages leave at once, and a peer that has vanished is noticed."""
    connection: socket.socket = transport.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    transport.set_write_buffer_limits(high=HIGH_WATER)
