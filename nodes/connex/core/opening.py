"""How streams begin, and how they find the other end again when it has moved or its node is gone."""

from __future__ import annotations

from collections.abc import Callable

from connex.core import frames
from connex.core.binding import Binding
from connex.core.context import Context
from connex.core.credit import ReceiveCredit
from connex.core.endings import Endings
from connex.core.endpoint import Endpoint, Inbound, Outbound, Route
from connex.core.errors import LocalProtocolError, RemoteProtocolError, ResetCause
from connex.core.events import (
    StreamOpened,
)
from connex.core.frames import BodyReader, Flag, Frame, FrameType
from connex.core.identity import EndpointName, NodeName, Peer, StreamId, TrafficClass
from connex.core.refusals import DESTINATION_MOVED, RECEIVER, SENDER_MOVED, Refusals
from connex.core.routing import Routing
from connex.core.stream import ReceiveStream, SendStream
from connex.core.table import StreamTable
from connex.core.timers import Key


class Opening:
    """Opens streams, accepts them, and points them at the newest owner."""

    def __init__(
        self,
        context: Context,
        routing: Routing,
        table: StreamTable,
        refusals: Refusals,
        endings: Endings,
    ) -> None:
        self._context = context
        self._routing = routing
        self._table = table
        self._refusals = refusals
        self._endings = endings
        endings.on_disputed = self.send_open
        self.on_transfer_refused: Callable[[Outbound, int], None] = _nobody
        """Called when the other node knows no such transfer stream."""
        context.on_alarm("resolve", self._resolve_due)

    def open(
        self, endpoint: Endpoint, receiver: EndpointName, traffic_class: TrafficClass, label: str, now: int
    ) -> StreamId:
        if len(self._table.outbound) + len(self._table.inbound) >= self._context.config.streams:
            raise LocalProtocolError(
                f"open a stream to {receiver}: this node has {self._context.config.streams} streams already, its limit"
            )
        stream = self._context.draw(64) or 1
        out = Outbound(
            Route(stream, endpoint.name, receiver, traffic_class, label),
            SendStream(),
            endpoint.epoch,
            self._context.config,
        )
        out.blocked = endpoint.frozen
        self._table.add_outbound(endpoint, out)
        self.find_receiver(out, now)
        return stream

    def receive_open(self, node: NodeName, frame: Frame, now: int) -> None:
        body = BodyReader(frame.payload)
        sender, receiver, label, number, binding = (
            body.text(),
            body.text(),
            body.text(),
            body.number(1),
            body.binding(),
        )
        body.finish()
        if number not in (1, 2, 3) or binding.endpoint != sender or not sender or not receiver:
            raise RemoteProtocolError(
                f"OPEN of a stream from {sender!r} to {receiver!r} in class {number}: expected names and a class 1 to 3"
            )
        traffic_class = TrafficClass(number)
        endpoint = self._routing.owned.get(receiver)
        if endpoint is None or frame.destination_epoch != endpoint.epoch:
            owned = endpoint.epoch if endpoint else 0
            self._refusals.refuse(
                node,
                frame,
                "stale-destination" if endpoint else "not-owned",
                owned,
                receiver,
                DESTINATION_MOVED,
            )
            return
        self._routing.learn(binding, "open", now)
        known = self._routing.table.get(sender)
        if known is not None and known.epoch > binding.epoch:
            self._refusals.refuse(node, frame, "stale-sender", endpoint.epoch, sender, SENDER_MOVED)
            return
        into = self._table.inbound.get(frame.stream)
        if into is not None:
            if into.node == node and into.serving:
                self._table.acknowledge(into)
            return
        ended = self._table.ended_inbound.get(frame.stream)
        if ended is not None:
            self._refusals.answer_ended(node, frame, ended)
        elif endpoint.in_doubt:
            # Silence here could last for ever; a sender that is told so can try again.
            self._refusals.send_reset(
                node,
                RECEIVER,
                frame.stream,
                traffic_class,
                ResetCause.HANDOVER_IN_DOUBT,
                f"a handover of {receiver} is in doubt",
                endpoint.epoch,
            )
        elif endpoint.frozen or endpoint.restricted:
            return
        elif frame.offset or frame.message or frame.flags & Flag.RETRANSMIT:
            self._refusals.send_reset(
                node,
                RECEIVER,
                frame.stream,
                traffic_class,
                ResetCause.UNKNOWN_STREAM,
                f"{receiver} has no such stream",
                endpoint.epoch,
            )
        elif len(self._table.outbound) + len(self._table.inbound) >= self._context.config.streams:
            self._refusals.send_reset(
                node,
                RECEIVER,
                frame.stream,
                traffic_class,
                ResetCause.LIMIT_EXCEEDED,
                "streams of the node",
                endpoint.epoch,
            )
        else:
            config = self._context.config
            into = Inbound(
                Route(frame.stream, sender, receiver, traffic_class, label),
                ReceiveStream(config.message),
                ReceiveCredit(config.classes[traffic_class].window),
                endpoint.epoch,
            )
            into.point_at(binding)
            self._table.add_inbound(endpoint, into)
            self._context.emit(StreamOpened(frame.stream, "receiver", sender, receiver, traffic_class, label))
            self._table.acknowledge(into)
            into.acknowledged = False

    def receive_stale(self, node: NodeName, frame: Frame, now: int) -> None:
        body = BodyReader(frame.payload)
        binding, refused = body.binding(), body.number(1)
        body.finish()
        if binding.epoch:
            self._routing.told(node, binding)
            self._routing.learn(binding, "stale", now)
        out = self._table.outbound.get(frame.stream)
        if out is None or refused != DESTINATION_MOVED:
            return
        if not out.route.receiver:
            if out.node == node:
                self.on_transfer_refused(out, now)
            return
        if out.node == node and out.peer_epoch == frame.destination_epoch:
            # The node believed to own the receiver does not, and knows no better.
            if binding.endpoint:
                self._seek_owner(out, ResetCause.ENDPOINT_UNKNOWN, now)
            else:
                self.send_open(out, now)

    def learned(self, binding: Binding, now: int) -> None:
        """A newer owner of an endpoint: its streams go on there."""
        for out in [out for out in self._table.outbound.values() if out.route.receiver == binding.endpoint]:
            if binding.gone and self._table.is_frozen(out):
                continue
            if binding.gone:
                self._endings.end_outbound(
                    out, ResetCause.ENDPOINT_ENDED, f"{binding.endpoint} has ended", now, tell=False
                )
                continue
            self._context.scheduler.withdraw(out.node, out.route.traffic_class, out)
            out.point_at(binding)
            self._context.timers.clear(("resolve", out.route.stream, "out"))
            self.go_on(out, now)
        for into in [into for into in self._table.inbound.values() if into.route.sender == binding.endpoint]:
            if binding.gone and self._table.is_frozen(into):
                continue
            if binding.gone:
                self._endings.end_inbound(
                    into, ResetCause.ENDPOINT_ENDED, f"{binding.endpoint} has ended", now, tell=False
                )
                continue
            into.point_at(binding)
            self._context.timers.clear(("resolve", into.route.stream, "in"))
            if into.serving:
                self._table.acknowledge(into)
                into.acknowledged = False

    def end_orphans(self, endpoint: Endpoint, now: int) -> None:
        """The endpoint serves here from now on: end its streams whose other end has ended meanwhile."""
        for name in sorted({_other_end(stream) for stream in endpoint.streams()}):
            known = self._routing.table.get(name)
            if known is not None and known.gone:
                self.learned(known, now)

    def find_receiver(self, out: Outbound, now: int) -> None:
        known = self._routing.table.get(out.route.receiver)
        if known is not None and not known.gone:
            out.point_at(known)
            self.send_open(out, now)
        else:
            self._seek_owner(out, ResetCause.ENDPOINT_UNKNOWN, now)

    def _seek_owner(self, out: Outbound, cause: ResetCause, now: int) -> None:
        """Nobody is known to own the receiver: ask around, and reset the stream when nobody answers for too long."""
        if out.orphaned is not None:
            return
        out.orphaned = cause
        self._routing.resolve(out.route.receiver, now)
        wait = (
            self._context.config.resolve_for if cause is ResetCause.ENDPOINT_UNKNOWN else 2 * self._context.config.lease
        )
        self._context.timers.set(("resolve", out.route.stream, "out"), now + wait)

    def lost(self, peer: Peer, cause: ResetCause, now: int) -> None:
        """A node's life is over: its endpoints have moved, or their streams end."""
        for out in list(self._table.outbound.values()):
            if out.route.receiver and out.node == peer.node and out.incarnation == peer.incarnation:
                self._seek_owner(out, cause, now)
        for into in list(self._table.inbound.values()):
            if (
                into.route.receiver
                and into.node == peer.node
                and into.incarnation == peer.incarnation
                and into.orphaned is None
            ):
                into.orphaned = cause
                self._routing.resolve(into.route.sender, now)
                self._context.timers.set(("resolve", into.route.stream, "in"), now + 2 * self._context.config.lease)

    def _resolve_due(self, key: Key, now: int) -> None:
        _, stream, side = key
        assert isinstance(stream, int)
        out, into = self._table.outbound.get(stream), self._table.inbound.get(stream)
        one = out if side == "out" else into
        if one is not None and self._table.is_frozen(one):
            # Here or at the target of the handover: not while that is open.
            self._context.timers.set(key, now + self._context.config.lease)
            return
        if side == "out" and out is not None and out.orphaned is not None:
            self._endings.end_outbound(out, out.orphaned, f"no owner of {out.route.receiver} was found", now)
        if side == "in" and into is not None and into.orphaned is not None:
            self._endings.end_inbound(into, into.orphaned, f"no owner of {into.route.sender} was found", now)

    def go_on(self, out: Outbound, now: int) -> None:
        """The receiver has a new owner, or the sender a new node: send on; an idle stream asks whether it is known."""
        if not out.opened:
            self.send_open(out, now)
            return
        self._table.offer(out, now)
        if not out.send.awaiting and not out.blocked:
            out.verifying = True
            self._context.repeat("open", out.route.stream, "", lambda at: self._post_open(out, at), now)

    def send_open(self, out: Outbound, now: int) -> None:
        out.opened = False
        out.probe_at = now
        self._context.repeat("open", out.route.stream, "", lambda at: self._post_open(out, at), now)

    def _post_open(self, out: Outbound, now: int) -> None:
        endpoint = self._routing.owned.get(out.route.sender)
        if endpoint is None or endpoint.restricted or out.blocked or not out.node:
            return
        if not out.opened:
            out.probe_at = now
        route = out.route
        body = (
            frames.text(route.sender)
            + frames.text(route.receiver)
            + frames.text(route.label)
            + bytes((route.traffic_class,))
            + frames.binding(endpoint.binding(self._context.me))
        )
        send = out.send
        self._context.post(
            out.node,
            Frame(
                FrameType.OPEN,
                Flag.RETRANSMIT if out.accepted else Flag.NONE,
                route.traffic_class,
                route.stream,
                send.acknowledged_message,
                send.acknowledged_offset,
                0,
                out.sender_epoch,
                out.peer_epoch,
                body,
            ),
        )

    def opened(self, out: Outbound, now: int) -> None:
        self._context.settle("open", out.route.stream, "")
        out.verifying = False
        if out.opened:
            return
        out.opened = out.accepted = True
        out.confirmed_at = out.probe_at
        route = out.route
        self._context.emit(
            StreamOpened(route.stream, "sender", route.sender, route.receiver, route.traffic_class, route.label)
        )


def _other_end(stream: Outbound | Inbound) -> EndpointName:
    return stream.route.receiver if isinstance(stream, Outbound) else stream.route.sender


def _nobody(*_: object) -> None:
    """Until somebody listens."""
