"""Reading a channel of large payloads: each is received straight into the place that the core names for it, so that
its bytes are not copied after the kernel has handed them over. Headers and small payloads go through one reusable
buffer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from connex.core.config import KIB
from connex.core.errors import ConnexError
from connex.core.frames import HEADER_SIZE, Frame, FrameType, decode_header
from connex.runtime.engine import Engine

if TYPE_CHECKING:
    from connex.runtime.channel import Channel

_DATA = int(FrameType.DATA)
_DIRECT = 8 * KIB
"""Payloads from this size on are received into their place; below, a copy costs less than another read."""
_PEEK = 4 * KIB
"""How much is read behind a large payload: the next header, and little of its payload, which has to be copied."""


class BulkReader(asyncio.BufferedProtocol):
    """Takes over the reading of an open channel; everything else stays with the channel."""

    def __init__(self, channel: Channel, engine: Engine, limit: int) -> None:
        self._channel = channel
        self._engine = engine
        self._size = HEADER_SIZE + limit
        self._view = memoryview(bytearray(self._size))
        self._end = 0
        """What was read and not parsed yet lies in _view[:_end]."""
        self._window = self._stop = _PEEK
        """Where the next read ends in _view: usually the window, further if the frame at the front needs it."""
        self._target: memoryview | None = None
        """Where the payload of _header is received, _filled bytes of it already."""
        self._filled = 0
        self._header = Frame(0)
        self._revoked = False
        """The payload that is being received goes nowhere."""

    # The channel's own

    def connection_lost(self, exc: Exception | None) -> None:
        if self._target is not None and not self._revoked:
            self._engine.placed(self._header.stream)
        self._target = None
        self._channel.connection_lost(exc)

    def eof_received(self) -> bool:
        return self._channel.eof_received()

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    # Reading

    def begin(self, rest: memoryview) -> None:
        """Start with what was read behind the handshake."""
        while rest and not self._channel.over:
            buffer = self.get_buffer(-1)
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            rest = rest[size:]
            self._updated(size)

    def get_buffer(self, sizehint: int) -> memoryview:
        target = self._target
        if target is not None:
            return target[self._filled :] if self._filled else target
        return self._view[self._end : self._stop]

    def buffer_updated(self, nbytes: int) -> None:
        self._channel.received_bytes += nbytes
        self._updated(nbytes)

    def _updated(self, nbytes: int) -> None:
        if self._channel.over:
            self._end = self._filled = 0
            return
        try:
            if self._target is None:
                self._end += nbytes
                self._parse()
            else:
                self._filled += nbytes
                if self._filled == len(self._target):
                    self._complete(self._target)
        except ConnexError as error:
            self._channel.violated(error)

    def _complete(self, target: memoryview) -> None:
        self._target = None
        self._window = self._stop = _PEEK
        if self._revoked:
            self._revoked = False
            return
        self._engine.placed(self._header.stream)
        self._channel.take(self._header._replace(payload=target))

    def _parse(self) -> None:
        """Take every frame that is complete, and see to it that the next read fits the rest."""
        full = self._end >= self._window
        view, start, needed = self._view, 0, HEADER_SIZE
        while self._end - start >= HEADER_SIZE:
            header, length = decode_header(view, start)
            self._channel.check_length(length)
            body = start + HEADER_SIZE
            end = body + length
            if end > self._end:
                if length >= _DIRECT and self._place(header, length, view[body : self._end]):
                    return
                needed += length
                break
            start = end
            self._channel.take(header._replace(payload=view[body:end]) if length else header)
            if self._channel.over:
                return
        rest = self._end - start
        if rest and start:
            view[:rest] = view[start : self._end]
        self._end = rest
        if full:
            # As much came as was asked for: small frames in a row, or one that has no place.
            self._window = self._size
        self._stop = max(self._window, needed)

    def _place(self, header: Frame, length: int, beginning: memoryview) -> bool:
        """Receive the rest of this payload into the core's own place for it, if it has one."""
        if header.type != _DATA:
            return False
        target = self._engine.placement(self._channel.node, header, length, self)
        if target is None:
            return False
        have = len(beginning)
        target[:have] = beginning
        self._header, self._target, self._filled = header, target, have
        self._end = 0
        return True

    def revoke(self) -> None:
        """Receive the rest of the present payload elsewhere and drop its frame: its place belongs to another now."""
        if self._target is not None:
            self._target = memoryview(bytearray(len(self._target)))
            self._revoked = True
