"""An endpoint as the application that it belongs to holds it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from connex.core.endpoint import Route
from connex.core.errors import ConnexError, LocalProtocolError
from connex.core.identity import EndpointName, NodeName, StreamId, TrafficClass
from connex.runtime.engine import Engine
from connex.runtime.errors import EndpointMoved
from connex.runtime.region import Budget, StateRegion
from connex.runtime.stream import InboundStream, Message, OutboundStream, Stream, StreamTable

Hook = Callable[[], Awaitable[None] | None]


class Endpoint:
    """A named, mobile identity that this node serves. Made by ``Node.host``, or by a handover that brought it here.

    Messages are taken by iteration (``async for message in endpoint``), or by a callback (``on_message``), which is
    faster. While a handover holds the endpoint nothing is delivered and sends wait; afterwards it goes on here or is
    released.
    """

    def __init__(self, engine: Engine, table: StreamTable, name: EndpointName, epoch: int) -> None:
        self.name = name
        self.epoch = epoch
        self.application: Any = None
        """What the arrival factory returned, or whatever the application keeps here."""
        self.frozen = False
        self.released: str | None = None
        """Why this node does not serve it any more; None while it does."""
        self.regions: dict[str, StateRegion] = {}
        self.outbound: dict[StreamId, OutboundStream] = {}
        self.inbound: dict[StreamId, InboundStream] = {}
        self.delivered = 0
        """Messages delivered here."""
        self._engine = engine
        self._table = table
        self.budget = Budget(engine.config.region)
        self.callback: Callable[[Message], None] | None = None
        """What ``on_message`` was given."""
        self._arriving = False
        self._moved: EndpointMoved | None = None
        self._ready: dict[InboundStream, None] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.freeze_hook: Hook | None = None
        self.thaw_hook: Hook | None = None
        self.release_hook: Callable[[str], None] | None = None
        self._opened_hook: Callable[[InboundStream], None] | None = None
        self._ended_hook: Callable[[Stream], None] | None = None
        self._postponed: list[Callable[[], None]] = []
        """What was asked for while a handover held the endpoint."""

    def __repr__(self) -> str:
        state = f"released: {self.released}" if self.released else "frozen" if self.frozen else "served"
        return f"<Endpoint {self.name!r} epoch {self.epoch}, {state}>"

    # Sending

    async def open_stream(
        self, receiver: EndpointName, traffic_class: TrafficClass = TrafficClass.TOKEN, label: str = ""
    ) -> OutboundStream:
        """Open a stream to another endpoint, wherever it is, and wait until it is accepted there.

        Raises StreamReset (``endpoint-unknown``) if nobody is found to own it within ``Config.resolve_for``.
        """
        stream = self.start_stream(receiver, traffic_class, label)
        await stream.opened()
        return stream

    def start_stream(
        self, receiver: EndpointName, traffic_class: TrafficClass = TrafficClass.TOKEN, label: str = ""
    ) -> OutboundStream:
        """The same without waiting: messages may be sent at once and leave when the stream is accepted."""
        self._check()
        engine = self._engine
        now = engine.now()
        ident = engine.core.open_stream(self.name, receiver, traffic_class, label, now)
        stream = OutboundStream(engine, self, Route(ident, self.name, receiver, traffic_class, label))
        stream.expect_opening()
        self.outbound[ident] = stream
        self._table.outbound[ident] = stream
        engine.touched(now)
        return stream

    # Receiving

    def on_message(self, callback: Callable[[Message], None]) -> None:
        """Deliver every message by calling ``callback``, at once and in order. It must not block; what it raises is
        reported to the event loop's exception handler, and the message counts as delivered.
        """
        self.callback = callback
        if not self._arriving:
            self._begin_direct()

    async def receive(self) -> Message:
        """The next message of any stream, taking turns between streams. Raises EndpointMoved once the endpoint is not
        served here any more.
        """
        while True:
            message = self._next()
            if message is not None:
                return message
            self._check()
            waiter: asyncio.Future[None] = self._engine.loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self._wake()
                raise

    async def __aiter__(self) -> AsyncIterator[Message]:
        """All messages, until the endpoint is not served here any more (``released`` says why)."""
        while True:
            try:
                message = await self.receive()
            except EndpointMoved:
                return
            yield message

    # State

    def region(self, name: str, size: int = 0) -> StateRegion:
        """The state region of that name; made with ``size`` zero bytes if there is none (one that arrived keeps its
        size).
        """
        region = self.regions.get(name)
        if region is None:
            self._check()
            if not 0 < len(name.encode()) <= 255:
                raise LocalProtocolError(f"region {name!r} of endpoint {self.name}: expected a name of 1 to 255 bytes")
            region = self.regions[name] = StateRegion(name, size, self._engine.config.block, self.budget)
        return region

    # Hooks

    def on_freeze(self, hook: Hook) -> None:
        """Called when a handover takes the endpoint: stop and bring the regions up to date. The handover goes on when
        it returns (or, of a coroutine, ends); if it raises, the handover is cancelled. It must not wait for a ``send``
        of this endpoint: these wait for the handover.
        """
        self.freeze_hook = hook

    def on_thaw(self, hook: Hook) -> None:
        """Called when a handover that had frozen the endpoint was given up: it goes on here."""
        self.thaw_hook = hook

    def on_release(self, hook: Callable[[str], None]) -> None:
        """Called with the cause (``handover``, ``fenced``, ``ended``) when this node does not serve the endpoint any
        more. Its regions are still as they were; after this call they are empty, and their memory is given back.
        """
        self.release_hook = hook

    def on_stream(self, hook: Callable[[InboundStream], None]) -> None:
        """Called for every stream that is opened to this endpoint, before its first message, and at once for those
        there are.
        """
        self._opened_hook = hook
        for stream in list(self.inbound.values()):
            self._engine.guard(hook, stream)

    def on_stream_end(self, hook: Callable[[Stream], None]) -> None:
        """Called when a stream of this endpoint ends, from either side; its ``error`` is None or the StreamReset."""
        self._ended_hook = hook

    async def end(self) -> None:
        """The endpoint exists no longer anywhere: its streams are reset with the cause ``endpoint-ended``."""
        self._check()
        now = self._engine.now()
        self._engine.core.end(self.name, now)
        self._engine.touched(now)

    def _check(self) -> None:
        if self._moved is not None:
            raise self._moved

    def _begin_direct(self) -> None:
        """From now on messages go to the callback at once; first what became complete before it was there."""
        for ident, inbound in self.inbound.items():
            self._engine.direct[ident] = inbound.deliver
        while self._ready and self.callback is not None:
            stream = next(iter(self._ready))
            del self._ready[stream]
            while (message := stream.take()) is not None:
                self.call_back(message)

    def _next(self) -> Message | None:
        while self._ready and not self._arriving:
            stream = next(iter(self._ready))
            del self._ready[stream]
            message = stream.take()
            if message is not None:
                self._ready[stream] = None
                return message
        return None

    # Called by the runtime

    def begin_arrival(self, regions: dict[str, StateRegion], budget: Budget) -> None:
        """The endpoint has just arrived with these regions; nothing is delivered until ``finish_arrival``."""
        self._arriving = True
        self.regions, self.budget = regions, budget

    def finish_arrival(self) -> None:
        self._arriving = False
        if self.callback is not None:
            self._begin_direct()
        elif self._ready:
            self._wake()

    def add_inbound(self, stream: InboundStream) -> None:
        self.inbound[stream.id] = stream
        if self.callback is not None and not self._arriving:
            self._engine.direct[stream.id] = stream.deliver
        if self._opened_hook is not None:
            self._engine.guard(self._opened_hook, stream)

    def message_ready(self, stream: InboundStream) -> None:
        """One message of the stream is complete: deliver it, or tell who waits."""
        callback = self.callback
        if callback is None or self._arriving:
            if not stream.wake():
                self._ready[stream] = None
                self._wake()
            return
        message = stream.take()
        if message is not None:
            self.call_back(message)

    def call_back(self, message: Message) -> None:
        """Give a message to the callback."""
        try:
            self.callback(message)  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001 - the application's, reported and not ours to judge
            self.report(error)

    def report(self, error: Exception) -> None:
        """The callback has raised."""
        self._engine.report(f"on_message of endpoint {self.name}", error)

    def stream_ended(self, stream: Stream, error: ConnexError | None) -> None:
        table: dict[StreamId, Any] = self.outbound if isinstance(stream, OutboundStream) else self.inbound
        table.pop(stream.id, None)
        if isinstance(stream, InboundStream):
            self._ready.pop(stream, None)
        stream.finish_with(error)
        if self._ended_hook is not None:
            self._engine.guard(self._ended_hook, stream)

    def when_served(self, what: Callable[[], None]) -> None:
        """Do it now, or when a handover that holds the endpoint has been given up; not at all if it moves."""
        if self._engine.core.is_frozen(self.name):
            self._postponed.append(what)
        else:
            what()

    def thaw(self) -> None:
        """It goes on here."""
        self.frozen = False
        postponed, self._postponed = self._postponed, []
        for what in postponed:
            what()

    def release(self, cause: str, node: NodeName, error: ConnexError | None = None) -> None:
        """This node does not serve the endpoint any more: all who wait are told."""
        self.released = cause
        self.frozen = False
        self._moved = EndpointMoved(self.name, node, cause)
        for stream in [*self.outbound.values(), *self.inbound.values()]:
            stream.finish_with(error or self._moved)
        self._ready.clear()
        while self._waiters:
            self._wake()
        if self.release_hook is not None:
            self._engine.guard(self.release_hook, cause)
        # Gigabytes of state must not wait until the garbage collector looks at what an application has left in cycles.
        for region in self.regions.values():
            region.let_go()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
