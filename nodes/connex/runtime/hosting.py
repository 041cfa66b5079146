"""The endpoints that this node serves, their streams, and what the events of the core mean for them."""

from __future__ import annotations

import asyncio

from connex.core import events
from connex.core.endpoint import Route
from connex.core.errors import ConnexError, StreamReset
from connex.core.identity import EndpointName
from connex.runtime.endpoint import Endpoint
from connex.runtime.engine import Engine
from connex.runtime.errors import NodeClosed
from connex.runtime.stream import InboundStream, OutboundStream, StreamTable


class Hosting:
    """Endpoints by name and streams by id."""

    def __init__(self, engine: Engine) -> None:
        self.endpoints: dict[EndpointName, Endpoint] = {}
        self.streams = StreamTable()
        self.delivered = 0
        """Messages delivered to endpoints that are not here any more."""
        self._engine = engine
        self._joining: list[asyncio.Future[None]] = []

    def epoch_of(self, endpoint: EndpointName) -> int:
        """The epoch under which the endpoint is owned here; 0 if it is not."""
        hosted = self.endpoints.get(endpoint)
        return hosted.epoch if hosted is not None else 0

    # Joining

    async def joined(self) -> None:
        """Wait until the first exchange with a seed is over, or nobody was found."""
        while self._engine.core.joining:
            waiter: asyncio.Future[None] = self._engine.loop.create_future()
            self._joining.append(waiter)
            self._engine.on_settled = self._settled
            await waiter

    def _settled(self) -> None:
        if not self._engine.core.joining:
            self._engine.on_settled = None
            self._wake_joining()

    def _wake_joining(self) -> None:
        waiting, self._joining = self._joining, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    # Endpoints

    def hosted(self, event: events.EndpointHosted) -> Endpoint:
        endpoint = Endpoint(self._engine, self.streams, event.endpoint, event.epoch)
        self.endpoints[event.endpoint] = endpoint
        return endpoint

    def resumed(self, event: events.EndpointResumed) -> None:
        """A handover in doubt has ended here."""
        endpoint = self.endpoints.get(event.endpoint)
        if endpoint is not None:
            endpoint.epoch = event.epoch

    def released(self, event: events.EndpointReleased) -> None:
        endpoint = self.endpoints.pop(event.endpoint, None)
        if endpoint is None:
            return
        self._forget_streams(endpoint)
        self.delivered += endpoint.delivered
        known = self._engine.core.binding(event.endpoint)
        node = known.node if known is not None and known.node != self._engine.core.me.node else ""
        endpoint.release(event.cause, node)

    def close(self) -> None:
        """The node is being closed: nobody waits for ever."""
        error = NodeClosed(f"node {self._engine.core.me.node} was closed")
        for endpoint in list(self.endpoints.values()):
            self._forget_streams(endpoint)
            endpoint.release("closed", "", error)
        self.endpoints.clear()
        self._wake_joining()

    def _forget_streams(self, endpoint: Endpoint) -> None:
        for stream in endpoint.outbound:
            self.streams.outbound.pop(stream, None)
        for stream in endpoint.inbound:
            self.streams.inbound.pop(stream, None)
            self._engine.direct.pop(stream, None)
            self._engine.revoke(stream)

    # Streams

    def opened(self, event: events.StreamOpened) -> None:
        if event.side == "sender":
            stream = self.streams.outbound.get(event.stream)
            if stream is not None:
                stream.was_opened()
        elif event.receiver in self.endpoints and event.stream not in self.streams.inbound:
            self._add_inbound(event)

    def moved(self, event: events.StreamMoved) -> None:
        """A stream came with an endpoint."""
        if event.side == "receiver":
            self._add_inbound(event)
            return
        endpoint = self.endpoints[event.sender]
        written = self._engine.core.written(event.stream)
        stream = OutboundStream(self._engine, endpoint, _route(event), written)
        self.streams.outbound[event.stream] = endpoint.outbound[event.stream] = stream

    def _add_inbound(self, event: events.StreamOpened | events.StreamMoved) -> None:
        endpoint = self.endpoints[event.receiver]
        stream = InboundStream(self._engine, endpoint, _route(event))
        self.streams.inbound[event.stream] = stream
        endpoint.add_inbound(stream)

    def closed(self, event: events.StreamClosed) -> None:
        self._ended(event.stream, event.side, None)

    def reset(self, event: events.StreamWasReset) -> None:
        self._ended(event.stream, event.side, StreamReset(event.cause, event.text))

    def _ended(self, ident: int, side: str, error: ConnexError | None) -> None:
        stream: InboundStream | OutboundStream | None
        if side == "sender":
            stream = self.streams.outbound.pop(ident, None)
        else:
            stream = self.streams.inbound.pop(ident, None)
            self._engine.direct.pop(ident, None)
            self._engine.revoke(ident)
        if stream is not None:
            stream.endpoint.stream_ended(stream, error)


def _route(event: events.StreamOpened | events.StreamMoved) -> Route:
    return Route(event.stream, event.sender, event.receiver, event.traffic_class, event.label)
