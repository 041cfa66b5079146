"""What a handover does to the streams of an endpoint: stop, let go, take over, or go on."""

from __future__ import annotations

from connex.core.context import Context
from connex.core.credit import ReceiveCredit
from connex.core.endpoint import NEVER, Endpoint, Inbound, Outbound
from connex.core.events import (
    MessageReady,
    SendSpace,
    StreamMoved,
)
from connex.core.frames import Flag
from connex.core.identity import HandoverId, StreamId
from connex.core.memory import remember
from connex.core.opening import Opening
from connex.core.routing import Routing
from connex.core.state import MovedStream
from connex.core.stream import ReceiveStream, SendStream
from connex.core.table import StreamTable


class Moving:
    """Freezes, releases and adopts streams."""

    def __init__(self, context: Context, routing: Routing, table: StreamTable, opening: Opening) -> None:
        self._context = context
        self._routing = routing
        self._table = table
        self._opening = opening

    def freeze(self, endpoint: Endpoint) -> None:
        """Stop delivering and sending for the endpoint."""
        endpoint.frozen = True
        for out in endpoint.outbound.values():
            out.blocked = True
            self._context.scheduler.withdraw(out.node, out.route.traffic_class, out)
        for into in endpoint.inbound.values():
            into.serving = False
            self._context.timers.clear(("ack", into.route.stream, ""))
            into.due = False

    def thaw(self, endpoint: Endpoint, now: int) -> None:
        """Go on after a handover that was aborted: ask senders again for what was turned away meanwhile."""
        endpoint.frozen = False
        endpoint.in_doubt = False
        endpoint.handover = None
        for out in endpoint.outbound.values():
            out.blocked = False
            if out.opened and out.node:
                self._opening.go_on(out, now)
            if out.waiting:
                out.waiting = False
                self._context.emit(SendSpace(out.route.stream))
        for into in endpoint.inbound.values():
            into.serving = True
            self._table.acknowledge(into, Flag.RETRANSMIT)
            for _ in range(into.receive.ready):
                self._context.emit(MessageReady(into.route.stream))
        self._opening.end_orphans(endpoint, now)

    def renew(self, endpoint: Endpoint, handover: HandoverId, now: int) -> None:
        """Own on, still frozen, under an epoch that is nobody else's: the next one may have been another node's."""
        epoch = endpoint.epoch + 2
        for out in endpoint.outbound.values():
            out.sender_epoch = epoch
            out.confirmed_at = NEVER
            out.probe = None
            out.send.rewind()
        for into in endpoint.inbound.values():
            into.epoch = epoch
        self._routing.renew(endpoint, epoch, handover, now)

    def serve(self, endpoint: Endpoint, now: int) -> None:
        """Let those streams of an endpoint that has arrived go on whose other end may be served."""
        restriction = endpoint.restriction
        for out in endpoint.outbound.values():
            if out.blocked and (restriction is None or out.other in restriction.seen):
                out.blocked = False
                if out.opened and out.node:
                    self._opening.go_on(out, now)
                if out.waiting:
                    out.waiting = False
                    self._context.emit(SendSpace(out.route.stream))
        for into in endpoint.inbound.values():
            if not into.serving and (restriction is None or into.other in restriction.seen):
                into.serving = True
                for _ in range(into.receive.ready):
                    self._context.emit(MessageReady(into.route.stream))
        if restriction is None:
            self._opening.end_orphans(endpoint, now)
            for out in [one for one in endpoint.outbound.values() if not one.opened]:
                self._opening.send_open(out, now)

    def release(self, endpoint: Endpoint) -> None:
        """Forget the endpoint's streams: they go on elsewhere, and late frames of theirs are sent there."""
        for out in list(endpoint.outbound.values()):
            self._table.drop_outbound(out)
            remember(self._table.moved_outbound, out.route.stream, endpoint.name)
        for into in list(endpoint.inbound.values()):
            self._table.drop_inbound(into)
            remember(self._table.moved_inbound, into.route.stream, endpoint.name)

    def adopt(self, endpoint: Endpoint, moved: MovedStream, now: int) -> Outbound | Inbound:
        """Take over one stream of an endpoint that has just arrived; ``serve`` lets it go on."""
        route = moved.route
        config = self._context.config
        (self._table.moved_outbound if moved.outbound else self._table.moved_inbound).pop(route.stream, None)
        if moved.peer.node:
            self._routing.learn(moved.peer, "handover", now)
        peer = self._routing.table.get(moved.peer.endpoint)
        if moved.outbound:
            send = SendStream.restore(
                moved.message, moved.offset, moved.limit, moved.held, moved.fin, moved.fin_acknowledged
            )
            out = Outbound(route, send, endpoint.epoch, config)
            out.opened = out.accepted = moved.opened
            out.blocked = True
            self._table.add_outbound(endpoint, out)
        else:
            receive = ReceiveStream.restore(config.message, moved.message, moved.offset, moved.held, moved.fin)
            into = Inbound(
                route,
                receive,
                ReceiveCredit(config.classes[route.traffic_class].window, moved.limit),
                endpoint.epoch,
            )
            into.serving = False
            if receive.finished:
                into.finished_at = now
                self._context.timers.set(("linger", route.stream, ""), now + config.dead_after)
            self._table.add_inbound(endpoint, into)
        if moved.outbound or not receive.finished:
            # Of a stream that was delivered to its end the application has heard, where it was before.
            self._context.emit(
                StreamMoved(
                    route.stream,
                    "sender" if moved.outbound else "receiver",
                    route.sender,
                    route.receiver,
                    route.traffic_class,
                    route.label,
                    moved.message,
                    moved.offset,
                )
            )
        if moved.outbound:
            if peer is not None and not peer.gone:
                out.point_at(peer)
                if out.opened:
                    self._table.offer(out, now)
                else:
                    self._opening.send_open(out, now)
            else:
                self._opening.find_receiver(out, now)
            return out
        if peer is not None:
            into.point_at(peer)
        self._table.acknowledge(into)
        into.acknowledged = False
        return into

    def add_transfer(self, stream: Outbound | Inbound) -> None:
        """Carry the transfer stream of a handover."""
        if isinstance(stream, Outbound):
            self._table.outbound[stream.route.stream] = stream
        else:
            self._table.inbound[stream.route.stream] = stream

    def drop_transfer(self, handover: StreamId) -> None:
        out, into = self._table.outbound.get(handover), self._table.inbound.get(handover)
        if out is not None and not out.route.receiver:
            self._table.drop_outbound(out)
        if into is not None and not into.route.receiver:
            self._table.drop_inbound(into)
