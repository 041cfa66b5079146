"""One stream, seen from its sender and from its receiver: bytes and messages by absolute numbers, and nothing else.

These two classes know no node, no epoch and no time, and hold no line about moving: their state is a handful of
numbers and bytes that mean the same wherever they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from connex.core.errors import LocalProtocolError, RemoteProtocolError
from connex.core.frames import Buffer

Allocate = Callable[[int], "bytearray | memoryview"]


class Held(NamedTuple):
    """A message, or the first bytes of one, as it is held on either side: bytes [start, start + len(payload)) of
    [start, end).
    """

    number: int
    start: int
    end: int
    payload: Buffer


class Piece(NamedTuple):
    """What one DATA frame carries."""

    message: int
    offset: int
    end: int
    payload: Buffer
    fin: bool
    repeated: bool


class SendStream:
    """The sender's side: keeps every message until it has been acknowledged as delivered."""

    __slots__ = (
        "_at",
        "_fin_sent",
        "_position",
        "_unacknowledged",
        "acknowledged_message",
        "acknowledged_offset",
        "fin",
        "fin_acknowledged",
        "limit",
        "next_message",
        "next_offset",
        "received",
        "sent",
    )

    def __init__(self, message: int = 0, offset: int = 0, limit: int = 0) -> None:
        self.acknowledged_message = message
        self.acknowledged_offset = offset
        self.next_message = message
        self.next_offset = offset
        self.received = offset
        """Offset up to which the receiver is known to hold the stream, delivered or not."""
        self.limit = limit
        self.sent = offset
        """Highest offset ever put into a frame."""
        self.fin: tuple[int, int] | None = None
        self.fin_acknowledged = False
        self._fin_sent = False
        self._unacknowledged: deque[Held] = deque()
        self._position = 0
        """Index of the message that is sent next, and the offset in the stream where its next frame begins."""
        self._at = offset

    @property
    def buffered(self) -> int:
        """Bytes that wait for acknowledgement."""
        return self.next_offset - self.acknowledged_offset

    @property
    def at(self) -> int:
        """Offset at which the next frame begins."""
        return self._at

    @property
    def in_flight(self) -> bool:
        """Whether anything that was sent is not known to be received (an empty message and the end count as in flight
        until acknowledged).
        """
        return self._at > self.received or self._position > 0 or self._fin_sent

    @property
    def finished(self) -> bool:
        return self.fin_acknowledged

    @property
    def pending(self) -> bool:
        """Whether there is something that credit allows to send."""
        if self._position < len(self._unacknowledged):
            held = self._unacknowledged[self._position]
            return self._at < self.limit or held.start == held.end
        return self.fin is not None and not self._fin_sent

    @property
    def awaiting(self) -> bool:
        """Whether an acknowledgement is still owed."""
        return bool(self._unacknowledged) or (self.fin is not None and not self.fin_acknowledged)

    def write(self, payload: Buffer) -> int:
        """Append a message; returns its number. The buffer must not change until it has been acknowledged."""
        if self.fin is not None:
            raise LocalProtocolError("send on a stream that has been closed")
        number = self.next_message
        start = self.next_offset
        self.next_offset = end = start + len(payload)
        self.next_message = number + 1
        self._unacknowledged.append(Held(number, start, end, payload))
        return number

    def write_through(self, payload: Buffer, size: int, most: int) -> int:
        """``write``, and count it as put into one frame, if nothing waits before it, credit allows and no more than
        ``most`` bytes wait for acknowledgement then: returns its offset, or -1 and nothing has changed.
        """
        messages = self._unacknowledged
        start = self.next_offset
        end = start + size
        if (
            self._position != len(messages)
            or end > self.limit
            or end - self.acknowledged_offset > most
            or self.fin is not None
        ):
            return -1
        messages.append(Held(self.next_message, start, end, payload))
        self.next_message += 1
        self._position += 1
        self.next_offset = self._at = self.sent = end
        return start

    def finish(self) -> None:
        """No message follows."""
        if self.fin is None:
            self.fin = (self.next_message, self.next_offset)

    def next_piece(self, most: int) -> Piece | None:
        """The next frame's content, at most ``most`` bytes and within the credit; None if there is nothing to send
        now.
        """
        messages = self._unacknowledged
        if self._position >= len(messages):
            if self.fin is None or self._fin_sent:
                return None
            self._fin_sent = True
            message, offset = self.fin
            return Piece(message, offset, offset, b"", True, False)
        number, start, end, payload = messages[self._position]
        at = self._at
        stop = at + most
        if stop >= end:
            stop = end
        if stop > self.limit:
            stop = self.limit
            if stop <= at and end > start:
                return None
        if at != start or stop != end:
            payload = memoryview(payload)[at - start : stop - start]
        if stop >= end:
            self._position += 1
        self._at = stop
        repeated = stop <= self.sent and end > start
        if stop > self.sent:
            self.sent = stop
        return Piece(number, at, end, payload, False, repeated)

    def acknowledge(self, message: int, offset: int, received: int, limit: int, fin: bool) -> bool:
        """Take an acknowledgement; says whether it was news. Raises RemoteProtocolError if it claims what was never
        written.
        """
        if offset > self.next_offset or message > self.next_message or received > self.next_offset or received < offset:
            raise RemoteProtocolError(
                f"acknowledgement of message {message}, bytes {offset} (received {received}):"
                f" only {self.next_message} messages and {self.next_offset} bytes were written"
            )
        news = False
        if limit > self.limit:
            self.limit = limit
            news = True
        messages = self._unacknowledged
        while messages and messages[0].number < message:
            messages.popleft()
            self._position -= 1
            news = True
        if self._position < 0:
            self._position = 0
            self._at = messages[0].start if messages else self.next_offset
        if message > self.acknowledged_message:
            self.acknowledged_message = message
            self.acknowledged_offset = offset
            if self.sent < offset:
                self.sent = offset
        if received > self.received:
            self.received = received
            news = True
            if received > self._at:
                self.seek(received)
        if fin and self.fin is not None and not self.fin_acknowledged and not messages:
            self.fin_acknowledged = news = True
        return news

    def seek(self, offset: int) -> None:
        """Send again from ``offset``, or from what is not acknowledged if that is later."""
        self._fin_sent = self.fin_acknowledged
        self._position = 0
        for held in self._unacknowledged:
            if held.end > offset or held.start == held.end == offset:
                self._at = max(held.start, offset)
                return
            self._position += 1
        self._at = self.next_offset

    def rewind(self) -> None:
        """Resume from the last acknowledged offset; what was received beyond it is no longer relied upon."""
        self.received = self.acknowledged_offset
        self.seek(self.acknowledged_offset)

    def unacknowledged(self) -> list[Held]:
        return list(self._unacknowledged)

    @classmethod
    def restore(
        cls,
        message: int,
        offset: int,
        limit: int,
        held: list[Held],
        fin: tuple[int, int] | None,
        fin_acknowledged: bool,
    ) -> SendStream:
        """A stream that goes on elsewhere from its acknowledged cursor."""
        stream = cls(message, offset, limit)
        stream._unacknowledged.extend(held)
        if held:
            stream.next_message, stream.next_offset = held[-1].number + 1, held[-1].end
        stream.fin, stream.fin_acknowledged = fin, fin_acknowledged
        stream._fin_sent = fin_acknowledged
        return stream


class Arrival(Enum):
    """What became of the content of a DATA frame."""

    COMPLETE = "complete"
    """In order, and it completed a message (or the stream)."""
    PARTIAL = "partial"
    DUPLICATE = "duplicate"
    GAP = "gap"
    """It lies ahead of what has been received, or beyond the credit: the sender must go back."""


_COMPLETE = Arrival.COMPLETE


class ReceiveStream:
    """The receiver's side: puts pieces into messages, in order, each once, and hands them out."""

    __slots__ = (
        "_buffer",
        "_complete",
        "_end",
        "_received_message",
        "_start",
        "_view",
        "allocate",
        "fin",
        "message",
        "message_limit",
        "offset",
        "received",
    )

    def __init__(self, message_limit: int, message: int = 0, offset: int = 0) -> None:
        self.message_limit = message_limit
        self.message = message
        """Delivered to the application: this many messages, this many bytes."""
        self.offset = offset
        self.received = offset
        """Received in order up to this offset."""
        self.fin: tuple[int, int] | None = None
        self.allocate: Allocate = bytearray
        """Gives the buffer for a message of so many bytes that arrives in pieces."""
        self._complete: deque[Held] = deque()
        self._received_message = message
        self._buffer: bytearray | memoryview | None = None
        self._view = memoryview(b"")
        self._start = self._end = 0

    @property
    def ready(self) -> int:
        """How many complete messages wait."""
        return len(self._complete)

    @property
    def finished(self) -> bool:
        """Whether the application has all there will ever be."""
        return self.fin is not None and self.message == self.fin[0]

    @property
    def alone_until(self) -> int:
        """End of the message being received if nothing complete waits before it, else 0."""
        return self._end if self._buffer is not None and not self._complete else 0

    def place(self, message: int, offset: int, end: int, length: int, limit: int) -> memoryview | None:
        """Where the payload of the very next piece may be received directly; None if it is not that or ends its
        message at once.
        """
        if message != self._received_message or offset != self.received or offset + length > min(end, limit):
            return None
        if self._buffer is None:
            if offset + length == end:
                return None
            self._begin(offset, end)
        elif end != self._end:
            return None
        return self._view[offset - self._start : offset - self._start + length]

    def receive(self, message: int, offset: int, end: int, payload: Buffer, fin: bool, limit: int) -> Arrival:
        """Take the content of one DATA frame. Raises RemoteProtocolError if it contradicts what came before."""
        expected = self._received_message
        if message != expected:
            return Arrival.DUPLICATE if message < expected else Arrival.GAP
        if fin:
            return self._receive_fin(message, offset)
        if self.fin is not None and message >= self.fin[0]:
            raise RemoteProtocolError(f"message {message} after the end of the stream at {self.fin[0]}")
        received = self.received
        stop = offset + len(payload)
        if stop > end:
            raise RemoteProtocolError(f"bytes [{offset}, {stop}) of a message that ends at {end}")
        if offset > received or stop > limit:
            return Arrival.GAP
        if self._buffer is None:
            if offset == received and stop == end:
                self._complete.append(Held(message, offset, end, bytes(payload)))
                self._received_message = message + 1
                self.received = end
                return _COMPLETE
            if offset < received:
                raise RemoteProtocolError(f"message {message} begins at {offset}: expected {received}")
            self._begin(offset, end)
        elif end != self._end:
            raise RemoteProtocolError(f"message {message} ends at {end}: expected {self._end}")
        if stop <= received:
            return Arrival.DUPLICATE
        start = self._start
        target = self._view[received - start : stop - start]
        source = memoryview(payload)[received - offset :]
        if not _same_memory(target, source):
            target[:] = source
        self.received = stop
        if stop < end:
            return Arrival.PARTIAL
        assert self._buffer is not None
        self._complete.append(Held(message, start, end, self._buffer))
        self._received_message = message + 1
        self._buffer, self._view = None, memoryview(b"")
        return Arrival.COMPLETE

    def pass_through(self, message: int, offset: int, end: int) -> bool:
        """Count a message that arrived whole as received and delivered, if it is the next and none waits."""
        if (
            message != self._received_message
            or offset != self.received
            or self._complete
            or self._buffer is not None
            or self.fin is not None
        ):
            return False
        self.message = self._received_message = message + 1
        self.offset = self.received = end
        return True

    def _receive_fin(self, message: int, offset: int) -> Arrival:
        if self.fin is not None:
            return Arrival.DUPLICATE
        if offset != self.received or self._buffer is not None:
            return Arrival.GAP
        self.fin = (message, offset)
        return Arrival.COMPLETE

    def _begin(self, start: int, end: int) -> None:
        size = end - start
        if size > self.message_limit:
            raise RemoteProtocolError(f"message of {size} bytes: the limit is {self.message_limit}")
        self._buffer = self.allocate(size)
        view = memoryview(self._buffer).cast("B")
        if view.readonly or len(view) < size:
            raise LocalProtocolError(
                f"the buffer given for a message of {size} bytes is read-only or has only {len(view)} bytes"
            )
        self._view = view[:size]
        if len(view) > size:
            self._buffer = self._view
        self._start, self._end = start, end

    def take(self) -> Held | None:
        """The next complete message; taking it is its delivery."""
        if not self._complete:
            return None
        held = self._complete.popleft()
        self.message = held.number + 1
        self.offset = held.end
        return held

    def undelivered(self) -> list[Held]:
        """What was received and not delivered; the last may be the beginning of a message."""
        held = list(self._complete)
        if self._buffer is not None and self.received > self._start:
            held.append(Held(self._received_message, self._start, self._end, self._view[: self.received - self._start]))
        return held

    @classmethod
    def restore(
        cls, message_limit: int, message: int, offset: int, held: list[Held], fin: tuple[int, int] | None
    ) -> ReceiveStream:
        """A stream that goes on elsewhere from its delivered cursor."""
        stream = cls(message_limit, message, offset)
        for number, start, end, payload in held:
            stream.receive(number, start, end, payload, False, end)
        stream.fin = fin
        return stream


def _same_memory(target: memoryview, source: memoryview) -> bool:
    """Whether a payload was received directly into its place (see ``ReceiveStream.place``).

    Only a view that ``place`` gave out is writable and backed by the same object at the same position; the runtime
    marks it by passing that very object on, so identity of the exporter and equal length are enough.
    """
    return source.obj is target.obj and not source.readonly and len(source) == len(target)
