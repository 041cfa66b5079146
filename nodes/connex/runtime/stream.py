"""The two sides of a stream as an application holds them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, NamedTuple

from connex.core.endpoint import Route
from connex.core.errors import ConnexError, LocalProtocolError
from connex.core.frames import Buffer
from connex.core.identity import StreamId
from connex.runtime.engine import Engine
from connex.runtime.errors import WouldWait

if TYPE_CHECKING:
    from connex.runtime.endpoint import Endpoint

_ALL = 1 << 62
_new = tuple.__new__
"""Makes a named tuple in half the time."""


class Message(NamedTuple):
    """A message that was delivered. ``payload`` is the receiver's to keep (of a large message: a writable buffer of
    its own).
    """

    payload: Buffer
    stream: InboundStream
    number: int
    """Place in the stream, from 0."""


class Stream:
    """What both sides have: who talks to whom, and how it ended."""

    __slots__ = ("ended", "endpoint", "engine", "error", "id", "label", "receiver", "sender", "traffic_class")

    def __init__(self, engine: Engine, endpoint: Endpoint, route: Route) -> None:
        self.engine = engine
        self.endpoint = endpoint
        """The endpoint of this side."""
        self.id, self.sender, self.receiver, self.traffic_class, self.label = route
        self.ended = False
        """Whether nothing moves on it any more from here."""
        self.error: ConnexError | None = None
        """Why it ended: None for its regular end, else StreamReset, EndpointMoved or NodeClosed."""

    def __repr__(self) -> str:
        state = f" ended: {self.error or 'regularly'}" if self.ended else ""
        return (
            f"<{type(self).__name__} {self.id:016x} {self.sender} -> {self.receiver} {self.traffic_class.name}{state}>"
        )

    def reset(self, text: str = "") -> None:
        """Give the stream up on both sides, with the cause ``cancelled`` and this text.

        While a handover holds the endpoint, this waits for its outcome: if the endpoint moves, the stream goes on where
        it is then, and can be given up there.
        """
        self._check()
        self.endpoint.when_served(lambda: self._reset(text))

    def _reset(self, text: str) -> None:
        if self.ended:
            return
        now = self.engine.now()
        self.engine.core.reset(self.id, text, now)
        self.engine.touched(now)

    def _check(self) -> None:
        if self.ended:
            raise self.error or LocalProtocolError(f"stream {self.id:016x} to {self.receiver} has ended")

    def finish_with(self, error: ConnexError | None) -> None:
        """The stream has ended (called by the runtime)."""
        self.ended = True
        self.error = error


class OutboundStream(Stream):
    """The sending side: ``await stream.send(payload)``, and ``await stream.close()`` when nothing follows."""

    __slots__ = ("_closing", "_flushing", "_opening", "_queue", "offset")

    def __init__(self, engine: Engine, endpoint: Endpoint, route: Route, offset: int = 0) -> None:
        super().__init__(engine, endpoint, route)
        self.offset = offset
        """Bytes handed over so far."""
        self._queue: deque[tuple[asyncio.Future[int], Buffer]] = deque()
        self._flushing: list[asyncio.Future[None]] = []
        self._opening: asyncio.Future[None] | None = None
        self._closing: asyncio.Future[None] | None = None

    async def send(self, payload: Buffer, *, borrow: bool = False) -> int:
        """Send one message, waiting for room if need be; returns its number.

        ``bytes`` are kept by reference. Other buffers are copied, unless ``borrow`` is set: then they must not change
        until ``await stream.flush()`` (or ``close()``) has returned. Raises StreamReset or EndpointMoved if the stream
        is over here; cancelled while it waits, the message is not sent.
        """
        data = _stable(payload, borrow)
        number = None if self._queue or self.ended else self._try(data)
        if number is None:
            self._check()
            turn: asyncio.Future[int] = self.engine.loop.create_future()
            self._queue.append((turn, data))
            return await turn
        return number

    def send_nowait(self, payload: Buffer, *, borrow: bool = False) -> int:
        """The same without waiting, for callbacks. Raises WouldWait if there is no room or a handover holds the
        endpoint.
        """
        if type(payload) is not bytes:
            payload = _stable(payload, borrow)
        number = None if self._queue or self.ended else self._try(payload)
        if number is None:
            self._check()
            raise WouldWait(
                f"stream to {self.receiver}: no room for {len(payload)} bytes now;"
                " await send(), or send less than is taken at the other end"
            )
        return number

    async def opened(self) -> None:
        """Wait until the receiver has accepted the stream. Raises StreamReset if nobody owns it (after
        ``Config.resolve_for``).
        """
        if self._opening is not None:
            await asyncio.shield(self._opening)
        self._check_error()

    async def flush(self) -> None:
        """Wait until the receiving application has all that was sent. Raises StreamReset or EndpointMoved."""
        while not self.ended and (self._queue or not self.engine.core.can_send(self.id, _ALL)):
            waiter: asyncio.Future[None] = self.engine.loop.create_future()
            self._flushing.append(waiter)
            await waiter
        self._check_error()

    def finish(self) -> None:
        """Say that no message follows, without waiting. Raises LocalProtocolError while a ``send`` still waits.

        While a handover holds the endpoint, this waits for its outcome, as ``reset`` does.
        """
        self._check()
        if self._queue:
            raise LocalProtocolError(
                f"close the stream to {self.receiver}: {len(self._queue)} sends still wait for room; await them first"
            )
        if self._closing is not None:
            return
        self._closing = self.engine.loop.create_future()
        self.endpoint.when_served(self._finish)

    def _finish(self) -> None:
        if self.ended:
            return
        now = self.engine.now()
        self.engine.core.close(self.id, now)
        self.engine.touched(now)

    async def close(self) -> None:
        """End the stream and wait until the receiver has everything. Raises StreamReset or EndpointMoved."""
        if not self.ended:
            self.finish()
            if self._closing is not None:
                await asyncio.shield(self._closing)
        self._check_error()

    def _check_error(self) -> None:
        if self.error is not None:
            raise self.error

    def _try(self, data: Buffer) -> int | None:
        """Send if there is room; else None, and ``has_space`` is called when there is."""
        engine = self.engine
        now = engine.moment if engine.draining else monotonic_ns()
        number = engine.core.try_send(self.id, data, now)
        if number is None:
            return None
        if engine.journal.active:
            engine.journal.sent(now, self.id, number, self.offset, data, self.endpoint.epoch)
        self.offset += len(data)
        if not engine.draining:
            engine.touched(now)
        return number

    # Called by the runtime

    def expect_opening(self) -> None:
        """Let ``opened`` wait."""
        self._opening = self.engine.loop.create_future()

    def was_opened(self) -> None:
        opening, self._opening = self._opening, None
        _settle(opening)

    def has_space(self) -> None:
        """There is room again: send what waits, in order."""
        while self._queue and not self.ended:
            turn, data = self._queue[0]
            if turn.done():
                self._queue.popleft()
                continue
            number = self._try(data)
            if number is None:
                return
            self._queue.popleft()
            turn.set_result(number)
        if self._flushing and (self.ended or self.engine.core.can_send(self.id, _ALL)):
            self._wake_flushing()

    def finish_with(self, error: ConnexError | None) -> None:
        super().finish_with(error)
        waiting, self._queue = self._queue, deque()
        for turn, _ in waiting:
            if not turn.done():
                turn.set_exception(error or LocalProtocolError(f"stream to {self.receiver} has ended"))
        opening, self._opening = self._opening, None
        _settle(opening)
        _settle(self._closing)
        self._wake_flushing()

    def _wake_flushing(self) -> None:
        waiting, self._flushing = self._flushing, []
        for waiter in waiting:
            _settle(waiter)


class InboundStream(Stream):
    """The receiving side. ``async for message in stream`` takes its messages alone and raises StreamReset if it is
    reset.
    """

    __slots__ = ("_waiters",)

    def __init__(self, engine: Engine, endpoint: Endpoint, route: Route) -> None:
        super().__init__(engine, endpoint, route)
        self._waiters: deque[asyncio.Future[None]] = deque()

    def receive_into(self, allocate: Callable[[int], bytearray | memoryview]) -> None:
        """Let ``allocate(size)`` provide the buffers for messages of more than one frame: writable, of at least
        ``size`` bytes.

        The buffer belongs to Connex until its message is delivered or the stream ends. Called again for every such
        message. If it raises, or gives a buffer that does not fit, the stream is reset.
        """
        self._check()

        def checked(size: int) -> bytearray | memoryview:
            try:
                view = memoryview(allocate(size)).cast("B")
                if view.readonly or len(view) < size:
                    raise ValueError(f"a buffer of {len(view)} bytes (read-only: {view.readonly}) for {size}")
            except Exception as error:  # noqa: BLE001 - the application's; it costs the stream and nothing else
                self.engine.report(f"receive_into of the stream from {self.sender}", error)
                self.engine.loop.call_soon(self._give_up, f"no buffer for a message of {size} bytes: {error}")
                return bytearray(size)
            return view

        self.engine.core.set_allocator(self.id, checked)

    def _give_up(self, text: str) -> None:
        if not self.ended:
            self.reset(text)

    def take(self) -> Message | None:
        """The next complete message, if there is one: taking it is its delivery."""
        engine = self.engine
        now = engine.moment if engine.draining else monotonic_ns()
        message = engine.core.consume(self.id, now)
        if message is None:
            return None
        _, number, offset, payload = message
        if engine.journal.active:
            engine.journal.delivered(now, self.id, number, offset, payload, self.endpoint.epoch)
        self.endpoint.delivered += 1
        if not engine.draining:
            engine.touched(now)
        return Message(payload, self, number)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while True:
            message = self.take()
            if message is not None:
                return message
            if self.ended:
                if self.error is None:
                    raise StopAsyncIteration
                raise self.error
            waiter: asyncio.Future[None] = self.engine.loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self.wake()
                raise

    # Called by the runtime

    def deliver(self, number: int, offset: int, payload: bytes) -> None:
        """Give a message that has just been delivered to the endpoint's callback."""
        engine, endpoint = self.engine, self.endpoint
        if engine.journal.active:
            engine.journal.delivered(engine.moment, self.id, number, offset, payload, endpoint.epoch)
        endpoint.delivered += 1
        try:
            endpoint.callback(_new(Message, (payload, self, number)))  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001 - the application's, reported and not ours to judge
            endpoint.report(error)

    def wake(self) -> bool:
        """A message is ready: let one who waits for this stream take it; says whether there was one."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return True
        return False

    def finish_with(self, error: ConnexError | None) -> None:
        super().finish_with(error)
        while self.wake():
            pass


class StreamTable:
    """All streams of a node by id. Both sides of one may be here."""

    def __init__(self) -> None:
        self.outbound: dict[StreamId, OutboundStream] = {}
        self.inbound: dict[StreamId, InboundStream] = {}


def _stable(payload: Buffer, borrow: bool) -> Buffer:
    if type(payload) is bytes:
        return payload
    return memoryview(payload).cast("B") if borrow else bytes(payload)


def _settle(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
