"""One TCP connection: first its handshake, then frames in and buffers out.

Headers are read out of one reusable buffer, and so are small payloads. A large DATA payload is received straight
into the place that the
core names for it, so that its bytes are not copied after the kernel has handed them over.
"""

from __future__ import annotations

import asyncio
import time
from struct import Struct
from typing import Any, Protocol, cast

from connex.core.config import KIB, Config
from connex.core.errors import ChannelRefused, ConnexError, RemoteProtocolError
from connex.core.frames import HEADER_SIZE, Buffer, Frame, FrameType, class_limit, decode_header, encode
from connex.core.identity import NodeName, Peer, TrafficClass
from connex.runtime.engine import Engine
from connex.runtime.handshake import Acceptor, Initiator, Refusal
from connex.runtime.sockets import TUNINGS, tune

_LENGTH = Struct(">I")
_LENGTH_AT = 8
"""Where a header has the length of its payload."""
_DATA = int(FrameType.DATA)
_DIRECT = 8 * KIB
"""Payloads from this size on are received into their place; below, a copy costs less than another read."""
_PEEK = 4 * KIB
"""How much is read behind a large payload: the next header, and little of its payload, which has to be copied."""
_SMALL = 64 * KIB
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

    def refused(self, channel: Channel, text: str) -> None:
        """The handshake failed, or the other side broke the protocol: the channel ends."""
        ...

    def closed(self, channel: Channel, error: Exception | None) -> None:
        """The connection is gone."""
        ...


class Channel(asyncio.BufferedProtocol):
    """One connection of one traffic class with one peer."""

    def __init__(self, owner: Owner, handshake: Initiator | Acceptor) -> None:
        self.peer: Peer | None = None
        """Who is at the other side, once that is proven."""
        self.traffic_class = handshake.traffic_class
        self.initiated = isinstance(handshake, Initiator)
        self.attempt: Any = None
        """The owner's note of why it was opened, if this side opened it."""
        self.address = "an unconnected socket"
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
        self._node: NodeName = ""
        """The peer's name while the channel is open."""
        self._transport: asyncio.Transport | None = None
        self._limit = class_limit(TrafficClass.CONTROL)
        self._size = _SMALL
        self._view = memoryview(bytearray(_SMALL))
        self._start = self._end = 0
        """What was read and not parsed yet lies in _view[_start:_end]."""
        self._window = self._stop = _SMALL
        """Where the next read ends in _view: usually the window, further if the frame at the front needs it."""
        self._target: memoryview | None = None
        """Where the payload of _header is received, _filled bytes of it already."""
        self._filled = 0
        self._header = Frame(0)
        self._revoked = False
        """The payload that is being received goes nowhere."""

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
        if self._target is not None and not self._revoked:
            self._engine.placed(self._header.stream)
        self._target = None
        self._owner.closed(self, exc)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.paused = True
        if self._node and not self.over:
            self._owner.writable(self, False)

    def resume_writing(self) -> None:
        self.paused = False
        if self._node and not self.over:
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
        """Write the buffers in order, large ones without copying. They must not change until the peer has
        acknowledged them.
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

    def get_buffer(self, sizehint: int) -> memoryview:
        target = self._target
        if target is not None:
            return target[self._filled :] if self._filled else target
        if self._end or self._stop != self._size:
            return self._view[self._end : self._stop]
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        if self.over:
            self._start = self._end = self._filled = 0
            return
        try:
            target = self._target
            if target is None:
                self._end += nbytes
                if self._end < HEADER_SIZE or not self._parse_one():
                    self._parse()
                return
            self._filled += nbytes
            if self._filled == len(target):
                self._target = None
                self._window = self._stop = _PEEK
                if self._revoked:
                    self._revoked = False
                    return
                self._engine.placed(self._header.stream)
                self._take(self._header._replace(payload=target))
        except Refusal as refusal:
            self._refuse(refusal)
        except ConnexError as error:
            self._violated(error)

    def _parse_one(self) -> bool:
        """Take the frame that the buffer holds, if it is exactly one: the usual case of small messages."""
        end = self._end
        length = end - HEADER_SIZE
        if length > _DIRECT or self._start or not self._node:
            return False
        data = bytes(self._view[:end])
        if _LENGTH.unpack_from(data, _LENGTH_AT)[0] != length:
            return False
        self._end = 0
        self.received_frames += 1
        frame, _ = decode_header(data, 0, data[HEADER_SIZE:])
        self._engine.receive(self._node, frame, time.monotonic_ns())
        return True

    def _parse(self) -> None:
        """Take every frame that is complete, and see to it that the next read fits the rest."""
        full = self._end >= self._window
        needed = HEADER_SIZE
        while self._end - self._start >= HEADER_SIZE:
            start, view = self._start, self._view
            body = start + HEADER_SIZE
            (length,) = _LENGTH.unpack_from(view, start + _LENGTH_AT)
            end = body + length
            if length > self._limit or end > self._end:
                header, length = decode_header(view, start)
                if length > self._limit:
                    raise RemoteProtocolError(
                        f"frame of {length} bytes on a channel of class {self.traffic_class.name}:"
                        f" the limit is {self._limit}"
                    )
                if length >= _DIRECT and self._place(header, length, view[body : self._end]):
                    return
                needed += length
                break
            self._start = end
            self._take(decode_header(view, start, view[body:end])[0])
            if self.over:
                return
        rest = self._end - self._start
        if rest and self._start:
            self._view[:rest] = self._view[self._start : self._end]
        self._start, self._end = 0, rest
        if full:
            # As much came as was asked for: small frames in a row, or one that has no place.
            self._window = self._size
        self._stop = max(self._window, needed)

    def _place(self, frame: Frame, length: int, beginning: memoryview) -> bool:
        """Receive the rest of this payload into the core's own place for it, if it has one."""
        if not self._node or frame.type != _DATA:
            return False
        target = self._engine.placement(self._node, frame, length, self)
        if target is None:
            return False
        have = len(beginning)
        target[:have] = beginning
        self._header, self._target, self._filled = frame, target, have
        self._start = self._end = 0
        return True

    def revoke(self) -> None:
        """Receive the rest of the present payload elsewhere and drop its frame: its place belongs to another now."""
        if self._target is not None:
            self._target = memoryview(bytearray(len(self._target)))
            self._revoked = True

    def _take(self, frame: Frame) -> None:
        self.received_frames += 1
        if self._node:
            self._engine.receive(self._node, frame, time.monotonic_ns())
        else:
            self._shake(frame)

    # The handshake

    def _shake(self, frame: Frame) -> None:
        handshake = self._handshake
        answers = handshake.receive(frame)
        if not self.initiated and self.traffic_class != handshake.traffic_class:
            self.traffic_class = handshake.traffic_class
        if not self.initiated and answers:
            self._tune()
        self._send(answers)
        if handshake.peer is None:
            return
        self.peer = handshake.peer
        self._limit = class_limit(self.traffic_class)
        if HEADER_SIZE + self._limit > self._size:
            rest = self._view[self._start : self._end]
            self._size = HEADER_SIZE + self._limit
            self._view = memoryview(bytearray(self._size))
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
            self._window = _PEEK
        self._node = handshake.peer.node
        self._owner.opened(self)

    def _send(self, frames: list[Frame]) -> None:
        if frames:
            self.write([encode(frame) for frame in frames])

    def _refuse(self, refusal: Refusal) -> None:
        """Say why, and end the connection."""
        self._owner.refused(self, str(refusal))
        self._send([refusal.answer])
        self.finish()

    def _violated(self, error: ConnexError) -> None:
        refused = isinstance(error, ChannelRefused)
        self._owner.refused(self, str(error) if refused else f"protocol error: {error}")
        self.abort()
