"""The streams of a node by id, and what is remembered of those that have moved or ended."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from connex.core.context import Context
from connex.core.endpoint import Endpoint, Inbound, Outbound
from connex.core.errors import LocalProtocolError, ResetCause
from connex.core.frames import Flag, Frame, FrameType
from connex.core.identity import EndpointName, StreamId
from connex.core.routing import Routing

LIMIT = Struct(">Q")


class Ended(NamedTuple):
    """What is remembered of a stream that is over; without a cause it was closed, with this cursor."""

    cause: ResetCause | None
    message: int
    offset: int


class StreamTable:
    """The streams that begin or end here, transfer streams of handovers included."""

    def __init__(self, context: Context, routing: Routing) -> None:
        self._context = context
        self._routing = routing
        self.outbound: dict[StreamId, Outbound] = {}
        self.inbound: dict[StreamId, Inbound] = {}
        self.moved_outbound: dict[StreamId, EndpointName] = {}
        self.moved_inbound: dict[StreamId, EndpointName] = {}
        self.ended_outbound: dict[StreamId, Ended] = {}
        self.ended_inbound: dict[StreamId, Ended] = {}

    def own(self, stream: StreamId) -> Outbound:
        out = self.outbound.get(stream)
        if out is None:
            raise LocalProtocolError(f"stream {stream:016x} is not open for sending here")
        return out

    def is_frozen(self, stream: Outbound | Inbound) -> bool:
        """Whether a handover holds the stream's own end: what it is may be on its way to another node already."""
        route = stream.route
        endpoint = self._routing.owned.get(route.sender if isinstance(stream, Outbound) else route.receiver)
        return endpoint is not None and endpoint.frozen

    def add_outbound(self, endpoint: Endpoint, out: Outbound) -> None:
        self.outbound[out.route.stream] = out
        endpoint.outbound[out.route.stream] = out

    def add_inbound(self, endpoint: Endpoint, into: Inbound) -> None:
        self.inbound[into.route.stream] = into
        endpoint.inbound[into.route.stream] = into

    def drop_outbound(self, out: Outbound) -> None:
        stream = out.route.stream
        self.outbound.pop(stream, None)
        endpoint = self._routing.owned.get(out.route.sender)
        if endpoint is not None:
            endpoint.outbound.pop(stream, None)
        self._context.scheduler.withdraw(out.node, out.route.traffic_class, out)
        self._context.settle("open", stream, "")
        self._context.timers.clear(("progress", stream, ""))
        self._context.timers.clear(("resolve", stream, "out"))

    def drop_inbound(self, into: Inbound) -> None:
        stream = into.route.stream
        self.inbound.pop(stream, None)
        endpoint = self._routing.owned.get(into.route.receiver)
        if endpoint is not None:
            endpoint.inbound.pop(stream, None)
        for key in (("ack", stream, ""), ("resolve", stream, "in"), ("linger", stream, "")):
            self._context.timers.clear(key)

    def offer(self, out: Outbound, now: int) -> None:
        """Let the scheduler have the stream if it may send, and watch its progress while anything is owed."""
        if out.wants_to_send(now):
            self._context.scheduler.ready(out.node, out.route.traffic_class, out)
        if out.opened and not out.timed and out.send.awaiting and not out.blocked:
            out.timed = True
            out.progress_at = now
            self._context.timers.set(("progress", out.route.stream, ""), now + out.wait)

    def acknowledge(self, into: Inbound, flags: Flag = Flag.NONE) -> None:
        receive = into.receive
        stream = into.route.stream
        if into.due:
            into.due = False
            self._context.timers.clear(("ack", stream, ""))
        into.acknowledged = True
        into.credit.update(receive.offset, receive.alone_until)
        if receive.finished:
            flags |= Flag.FIN
        self._context.post(
            into.node,
            Frame(
                FrameType.ACK,
                flags,
                into.route.traffic_class,
                stream,
                receive.message,
                receive.offset,
                receive.received,
                into.epoch,
                into.peer_epoch,
                LIMIT.pack(into.credit.advertise()),
            ),
        )
