"""One TCP connection: first its handshake, then frames in and buffers out.

Frames of the CONTROL and TOKEN classes are small, and are taken as they come out of the event loop. Channels of the
other classes leave the reading to a BulkReader once they are open.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from time import monotonic_ns
from typing import Any, Protocol, cast

from connex.core.config import KIB, Config
from connex.core.errors import ChannelRefused, ConnexError, RemoteProtocolError
from connex.core.frames import HEADER_SIZE, Buffer, Frame, class_limit, decode_header, encode
from connex.core.identity import NodeName, Peer, TrafficClass
from connex.runtime.bulk import BulkReader
from connex.runtime.engine import Engine
from connex.runtime.handshake import FINAL, Acceptor, Initiator, Refusal, TurnedAway
from connex.runtime.sockets import TUNINGS, tune

_LENGTH = Struct(">I")
_LENGTH_AT = 8
"""Where a header has the length of its payload."""
_JOIN = 4 * KIB
"""Buffers that are together smaller are joined before they are written."""


class Owner(Protocol):
    """What keeps the channels of a node."""

    config: Config
    engine: Engine

    def connected(self, channel: Channel) -> None:
        """A connection is there and its handshake begins. Raises Refusal."""
        ...

    def opened(self, channel: Channel) -> None:
        """The handshake has succeeded: ``channel.peer`` is known. Raises ChannelRefused."""
        ...

    def writable(self, channel: Channel, writable: bool) -> None:
        """The channel takes no more for now, or again."""
        ...

    def refused(self, channel: Channel, text: str, final: bool = False) -> None:
        """The handshake failed, or the other side broke the protocol: the channel ends."""
        ...

    def closed(self, channel: Channel, error: Exception | None) -> None:
        """The connection is gone."""
        ...


class Channel(asyncio.Protocol):
    """One connection of one traffic class with one peer."""

    def __init__(self, owner: Owner, handshake: Initiator | Acceptor) -> None:
        self.peer: Peer | None = None
        """Who is at the other side, once that is proven."""
        self.node: NodeName = ""
        """Its name, once the channel is open."""
        self.traffic_class = handshake.traffic_class
        self.initiated = isinstance(handshake, Initiator)
        self.attempt: Any = None
        """The owner's note of why it was opened, if this side opened it."""
        self.address = "an unconnected socket"
        self.bulk: BulkReader | None = None
        """Who reads, if the class is one of large payloads."""
        self.paused = False
        """Whether the process holds more unwritten bytes than it should."""
        self.over = False
        """Nothing is taken from it or written to it any more."""
        self.received_frames = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self._owner = owner
        self._engine = owner.engine
        self._handshake = handshake
        self._transport: asyncio.Transport | None = None
        self._limit = class_limit(TrafficClass.CONTROL)
        self._rest = b""
        """The beginning of a frame whose end has not come yet."""

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.address = f"{name[0]}:{name[1]}" if name else "a socket without a name"
        try:
            self._owner.connected(self)
        except Refusal as refusal:
            self._refuse(refusal)
            return
        if self.initiated:
            self._tune()
        self._send(self._handshake.start())

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        self._transport = None
        self._owner.closed(self, exc)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.paused = True
        if self.node and not self.over:
            self._owner.writable(self, False)

    def resume_writing(self) -> None:
        self.paused = False
        if self.node and not self.over:
            self._owner.writable(self, True)

    def finish(self) -> None:
        """End the connection once all that was written has left; what still arrives is dropped."""
        self.over = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def abort(self) -> None:
        """End the connection at once."""
        self.over = True
        if self._transport is not None:
            self._transport.abort()

    def _tune(self) -> None:
        """Set up the socket for the traffic class, which is known now."""
        assert self._transport is not None
        tune(self._transport.get_extra_info("socket"), self.traffic_class, self._owner.config)
        high = TUNINGS[self.traffic_class].high
        self._transport.set_write_buffer_limits(high=high, low=high // 4)

    # Writing

    def write(self, buffers: list[Buffer]) -> None:
        """Write the buffers in order, large ones without copying. They must not change until the peer has acknowledged
        them.
        """
        transport = self._transport
        if transport is None or self.over:
            return
        if len(buffers) == 2:
            size = len(buffers[0]) + len(buffers[1])
        else:
            size = sum(map(len, buffers))
        self.sent_bytes += size
        if size <= _JOIN:
            transport.write(b"".join(buffers))
        else:
            transport.writelines(buffers)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were written and not taken by the kernel yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # Reading

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self.received_bytes += size
        if self.over:
            return
        try:
            length = size - HEADER_SIZE
            if self.node and length >= 0 and not self._rest and _LENGTH.unpack_from(data, _LENGTH_AT)[0] == length:
                # Exactly one frame: the usual case of small messages.
                self.received_frames += 1
                if length > self._limit:
                    self.check_length(length)
                self._engine.receive(self.node, decode_header(data, 0, data[HEADER_SIZE:])[0], monotonic_ns())
                return
            self._parse(self._rest + data if self._rest else data)
        except Refusal as refusal:
            self._refuse(refusal)
        except ConnexError as error:
            self.violated(error)

    def _parse(self, data: bytes) -> None:
        """Take every frame that is complete and keep the rest."""
        start = 0
        while len(data) - start >= HEADER_SIZE:
            header, length = decode_header(data, start)
            self.check_length(length)
            body = start + HEADER_SIZE
            if len(data) - body < length:
                break
            start = body + length
            self.take(header._replace(payload=data[body:start]) if length else header)
            if self.over:
                return
            if self.bulk is not None:
                self.bulk.begin(memoryview(data)[start:])
                return
        self._rest = data[start:]

    def check_length(self, length: int) -> None:
        """Raise RemoteProtocolError if a payload is longer than the class of the channel allows."""
        if length > self._limit:
            raise RemoteProtocolError(
                f"frame of {length} bytes on a channel of class {self.traffic_class.name}: the limit is {self._limit}"
            )

    def take(self, frame: Frame) -> None:
        """Give a frame to the core, or to the handshake while that lasts. Raises ConnexError."""
        self.received_frames += 1
        if self.node:
            self._engine.receive(self.node, frame, monotonic_ns())
        else:
            self._shake(frame)

    # The handshake

    def _shake(self, frame: Frame) -> None:
        handshake = self._handshake
        answers = handshake.receive(frame)
        if not self.initiated and answers:
            self.traffic_class = handshake.traffic_class
            self._tune()
        self._send(answers)
        if handshake.peer is None:
            return
        self.peer = handshake.peer
        self._limit = class_limit(self.traffic_class)
        if self.traffic_class > TrafficClass.TOKEN:
            assert self._transport is not None
            self.bulk = BulkReader(self, self._engine, self._limit)
            self._transport.set_protocol(self.bulk)
        self.node = handshake.peer.node
        self._owner.opened(self)

    def _send(self, frames: list[Frame]) -> None:
        if frames:
            self.write([encode(frame) for frame in frames])

    def _refuse(self, refusal: Refusal) -> None:
        """Say why, and end the connection."""
        self._owner.refused(self, str(refusal), refusal.code in FINAL)
        self._send([refusal.answer])
        self.finish()

    def violated(self, error: ConnexError) -> None:
        """The other side broke the protocol, or refused this one."""
        refused = isinstance(error, ChannelRefused)
        text = str(error) if refused else f"protocol error: {error}"
        self._owner.refused(self, text, isinstance(error, TurnedAway))
        self.abort()
