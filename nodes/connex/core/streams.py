"""All streams of a node: what their frames do, and how they begin, are reset and end."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple, TypeVar

from connex.core import frames
from connex.core.binding import Binding
from connex.core.context import Context
from connex.core.credit import ReceiveCredit
from connex.core.endpoint import NEVER, Endpoint, Inbound, Outbound, Route
from connex.core.errors import LocalProtocolError, RemoteProtocolError, ResetCause
from connex.core.events import (
    FrameRefused,
    MessageReady,
    SendSpace,
    StreamClosed,
    StreamMoved,
    StreamOpened,
    StreamWasReset,
)
from connex.core.frames import BodyReader, Buffer, Flag, Frame, FrameType
from connex.core.identity import EndpointName, NodeName, Peer, StreamId, TrafficClass
from connex.core.routing import Routing
from connex.core.state import MovedStream
from connex.core.stream import Arrival, ReceiveStream, SendStream
from connex.core.timers import Key

_T = TypeVar("_T")
_LIMIT = Struct(">Q")
_REMEMBERED = 8192
"""Ended and moved streams that are remembered, so that late frames of theirs get the right answer."""
_RESET_REPEATS = 20
_DESTINATION_MOVED, _SENDER_MOVED = 1, 2
_SENDER, _RECEIVER = 1, 2


class Message(NamedTuple):
    """A message that the application has taken. ``offset`` is that of its first byte in the stream."""

    stream: StreamId
    number: int
    offset: int
    payload: Buffer


class _Ended(NamedTuple):
    cause: ResetCause | None
    message: int
    offset: int


class Streams:
    """The streams that begin or end at endpoints of this node, and the transfer streams of handovers."""

    def __init__(self, context: Context, routing: Routing, peers: Callable[[NodeName], Peer | None]) -> None:
        self._context = context
        self._routing = routing
        self._peer = peers
        self.outbound: dict[StreamId, Outbound] = {}
        self.inbound: dict[StreamId, Inbound] = {}
        self.on_transfer: Callable[[Inbound, int], None] = _nobody
        """Called when a transfer stream has a complete record."""
        self.on_progress: Callable[[Outbound, int], None] = _nobody
        """Called when a transfer stream was acknowledged further."""
        self._moved_outbound: dict[StreamId, EndpointName] = {}
        self._moved_inbound: dict[StreamId, EndpointName] = {}
        self._ended_outbound: dict[StreamId, _Ended] = {}
        self._ended_inbound: dict[StreamId, _Ended] = {}
        self._causes: dict[tuple[str, StreamId], ResetCause] = {}
        context.on_alarm("ack", self._ack_due)
        context.on_alarm("progress", self._progress_due)
        context.on_alarm("resolve", self._resolve_due)
        context.on_alarm("linger", self._linger_due)

    # Commands

    def open(
        self, endpoint: Endpoint, receiver: EndpointName, traffic_class: TrafficClass, label: str, now: int
    ) -> StreamId:
        if len(self.outbound) + len(self.inbound) >= self._context.config.streams:
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
        self._add_outbound(endpoint, out)
        self._find_receiver(out, now)
        return stream

    def write(self, stream: StreamId, payload: Buffer, now: int) -> int:
        out = self._own(stream)
        if out.blocked:
            raise LocalProtocolError(
                f"send on stream {stream:016x}: endpoint {out.route.sender} is frozen by a handover"
            )
        if len(payload) > self._context.config.message:
            raise LocalProtocolError(f"message of {len(payload)} bytes: the limit is {self._context.config.message}")
        number = out.send.write(payload)
        self._offer(out, now)
        return number

    def can_send(self, stream: StreamId, size: int) -> bool:
        """Whether ``size`` more bytes may be written now; if not, SendSpace says when to try again."""
        out = self._own(stream)
        room = not out.blocked and (
            not out.send.buffered or out.send.buffered + size <= self._context.config.send_buffer
        )
        out.waiting = not room
        return room

    def finish(self, stream: StreamId, now: int) -> None:
        out = self._own(stream)
        out.send.finish()
        self._offer(out, now)

    def reset(self, stream: StreamId, cause: ResetCause, text: str, now: int) -> None:
        """End the stream on both sides, with the cause."""
        out, into = self.outbound.get(stream), self.inbound.get(stream)
        if out is None and into is None:
            raise LocalProtocolError(f"reset stream {stream:016x}: no such stream here")
        if out is not None:
            self.end_outbound(out, cause, text, now)
        if into is not None:
            self.end_inbound(into, cause, text, now)

    def take(self, stream: StreamId, now: int) -> Message | None:
        into = self.inbound.get(stream)
        if into is None or not into.serving:
            return None
        receive = into.receive
        held = receive.take()
        if held is None:
            return None
        if into.credit.update(receive.offset, receive.alone_until) or not into.acknowledged:
            self._acknowledge(into)
        elif not into.due:
            into.due = True
            self._context.timers.set(("ack", stream, ""), now + self._context.config.ack_delay)
        if receive.finished:
            self._finish_inbound(into, now)
        return Message(stream, held.number, held.start, held.payload)

    def place(self, node: NodeName, frame: Frame, length: int) -> memoryview | None:
        into = self.inbound.get(frame.stream)
        if into is None or not self._admitted(into, node, frame):
            return None
        return into.receive.place(frame.message, frame.offset, frame.end, length, into.credit.limit)

    # Frames

    def receive_data(self, node: NodeName, frame: Frame, now: int) -> None:
        into = self.inbound.get(frame.stream)
        if into is None:
            self._refuse_unknown(node, frame)
            return
        if not self._admitted(into, node, frame) and not self._reconsider(into, node, frame, now):
            return
        receive, credit = into.receive, into.credit
        try:
            arrival = receive.receive(
                frame.message,
                frame.offset,
                frame.end,
                frame.payload,
                bool(frame.flags & Flag.FIN),
                credit.limit,
            )
        except RemoteProtocolError as error:
            self.end_inbound(into, ResetCause.PROTOCOL_ERROR, str(error), now)
            return
        if arrival is Arrival.COMPLETE:
            if into.route.receiver == "":
                self.on_transfer(into, now)
            elif frame.flags & Flag.FIN:
                if receive.finished:
                    self._finish_inbound(into, now)
            else:
                self._context.emit(MessageReady(frame.stream))
        elif arrival is Arrival.GAP:
            if into.gap != receive.received:
                into.gap = receive.received
                self._acknowledge(into, Flag.RETRANSMIT)
            return
        if (
            arrival is Arrival.DUPLICATE
            or not into.route.receiver
            or credit.update(receive.offset, receive.alone_until)
            or not into.acknowledged
        ):
            self._acknowledge(into)
        elif not into.due:
            into.due = True
            self._context.timers.set(("ack", frame.stream, ""), now + self._context.config.ack_delay)

    def receive_ack(self, node: NodeName, frame: Frame, now: int) -> None:
        out = self.outbound.get(frame.stream)
        if out is None:
            self._answer_unknown_ack(node, frame, now)
            return
        if frame.sender_epoch > out.peer_epoch and out.route.receiver:
            peer = self._peer(node)
            if peer is not None:
                self._routing.learn(Binding(out.route.receiver, frame.sender_epoch, *peer), "frame", now)
        if frame.sender_epoch != out.peer_epoch or node != out.node:
            return
        if len(frame.payload) != _LIMIT.size:
            raise RemoteProtocolError(
                f"acknowledgement with a body of {len(frame.payload)} bytes: expected {_LIMIT.size}"
            )
        send = out.send
        (limit,) = _LIMIT.unpack(frame.payload)
        news = send.acknowledge(frame.message, frame.offset, frame.end, limit, bool(frame.flags & Flag.FIN))
        if not out.opened:
            self._opened(out, now)
        if frame.flags & Flag.RETRANSMIT:
            send.seek(frame.end)
            out.probe = None
        out.confirm(now, self._context.config.retransmit)
        if news:
            out.progress_at = now
        if send.finished:
            self._close_outbound(out)
            return
        if out.waiting and send.buffered < self._context.config.send_buffer:
            out.waiting = False
            self._context.emit(SendSpace(frame.stream))
        self._offer(out, now)
        if not out.route.receiver:
            self.on_progress(out, now)

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
            self._refuse(
                node,
                frame,
                "stale-destination" if endpoint else "not-owned",
                owned,
                receiver,
                _DESTINATION_MOVED,
            )
            return
        self._routing.learn(binding, "open", now)
        known = self._routing.table.get(sender)
        if known is not None and known.epoch > binding.epoch:
            self._refuse(node, frame, "stale-sender", endpoint.epoch, sender, _SENDER_MOVED)
            return
        into = self.inbound.get(frame.stream)
        if into is not None:
            if into.node == node and into.serving:
                self._acknowledge(into)
            return
        ended = self._ended_inbound.get(frame.stream)
        if ended is not None:
            self._answer_ended(node, frame, ended)
        elif endpoint.frozen or endpoint.restricted:
            return
        elif frame.offset or frame.message:
            self._send_reset(
                node,
                _RECEIVER,
                frame.stream,
                traffic_class,
                ResetCause.UNKNOWN_STREAM,
                f"{receiver} has no such stream",
                endpoint.epoch,
            )
        elif len(self.outbound) + len(self.inbound) >= self._context.config.streams:
            self._send_reset(
                node,
                _RECEIVER,
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
            self._add_inbound(endpoint, into)
            self._context.emit(StreamOpened(frame.stream, "receiver", sender, receiver, traffic_class, label))
            self._acknowledge(into)
            into.acknowledged = False

    def receive_stale(self, node: NodeName, frame: Frame, now: int) -> None:
        body = BodyReader(frame.payload)
        binding, refused = body.binding(), body.number(1)
        body.finish()
        if binding.epoch:
            self._routing.learn(binding, "stale", now)
        out = self.outbound.get(frame.stream)
        if out is None or not out.route.receiver or refused != _DESTINATION_MOVED:
            return
        if out.node == node and out.peer_epoch == frame.destination_epoch:
            # The node believed to own the receiver does not, and knows no better.
            if binding.endpoint:
                self._seek_owner(out, ResetCause.ENDPOINT_UNKNOWN, now)
            else:
                self._send_open(out, now)

    def receive_reset(self, node: NodeName, frame: Frame, now: int) -> None:
        if frame.flags & Flag.REPLY:
            self._context.settle("reset", frame.stream, node)
            return
        body = BodyReader(frame.payload)
        code, side, text = body.number(1), body.number(1), body.text(2)
        body.finish()
        try:
            cause = ResetCause(code)
        except ValueError as error:
            raise RemoteProtocolError(f"RESET with cause {code}") from error
        self._context.post(node, Frame(FrameType.RESET, Flag.REPLY, frame.traffic_class, frame.stream))
        out = self.outbound.get(frame.stream) if side == _RECEIVER else None
        into = self.inbound.get(frame.stream) if side == _SENDER else None
        other = out or into
        if other is None:
            return
        peer = self._peer(node)
        if frame.sender_epoch > other.peer_epoch and peer is not None:
            endpoint = other.route.receiver if side == _RECEIVER else other.route.sender
            self._routing.learn(Binding(endpoint, frame.sender_epoch, *peer), "frame", now)
        if other.node != node or other.peer_epoch != frame.sender_epoch:
            return
        if out is not None:
            self.end_outbound(out, cause, text, now, tell=False)
        elif into is not None:
            self.end_inbound(into, cause, text, now, tell=False)

    # Whether a frame is for us

    @staticmethod
    def _admitted(into: Inbound, node: NodeName, frame: Frame) -> bool:
        return (
            frame.destination_epoch == into.epoch
            and frame.sender_epoch == into.peer_epoch
            and into.serving
            and into.node == node
        )

    def _reconsider(self, into: Inbound, node: NodeName, frame: Frame, now: int) -> bool:
        """A frame that does not fit at first sight: refuse it, or learn from it."""
        if not into.route.receiver:
            return False
        if frame.destination_epoch != into.epoch:
            self._refuse(node, frame, "stale-destination", into.epoch, into.route.receiver, _DESTINATION_MOVED)
            return False
        if not into.serving:
            return False
        if frame.sender_epoch > into.peer_epoch:
            peer = self._peer(node)
            if peer is not None:
                self._routing.learn(Binding(into.route.sender, frame.sender_epoch, *peer), "frame", now)
        if frame.sender_epoch == into.peer_epoch and node == into.node:
            return True
        self._refuse(node, frame, "stale-sender", into.epoch, into.route.sender, _SENDER_MOVED)
        return False

    def _refuse(
        self, node: NodeName, frame: Frame, reason: str, owned: int, endpoint: EndpointName, which: int
    ) -> None:
        refused = frame.destination_epoch if which == _DESTINATION_MOVED else frame.sender_epoch
        self._context.emit(FrameRefused(frame.stream, reason, refused, owned, node))
        known = self._routing.table.get(endpoint) or Binding(endpoint, 0, "", 0, "")
        body = frames.binding(known) + bytes((which,))
        self._context.post(
            node, Frame(FrameType.STALE, 0, frame.traffic_class, frame.stream, 0, 0, 0, owned, refused, body)
        )

    def _refuse_unknown(self, node: NodeName, frame: Frame) -> None:
        ended = self._ended_inbound.get(frame.stream)
        if ended is not None:
            self._answer_ended(node, frame, ended)
            return
        endpoint = self._moved_inbound.get(frame.stream, "")
        self._refuse(
            node,
            frame,
            "stale-destination" if endpoint else "unknown-stream",
            0,
            endpoint,
            _DESTINATION_MOVED,
        )

    def _answer_ended(self, node: NodeName, frame: Frame, ended: _Ended) -> None:
        if ended.cause is None:
            self._context.post(
                node,
                Frame(
                    FrameType.ACK,
                    Flag.FIN,
                    frame.traffic_class,
                    frame.stream,
                    ended.message,
                    ended.offset,
                    ended.offset,
                    frame.destination_epoch,
                    frame.sender_epoch,
                    _LIMIT.pack(ended.offset),
                ),
            )
        else:
            self._send_reset(
                node,
                _RECEIVER,
                frame.stream,
                frame.traffic_class,
                ended.cause,
                "the stream was reset before",
                frame.destination_epoch,
            )

    def _answer_unknown_ack(self, node: NodeName, frame: Frame, now: int) -> None:
        endpoint = self._moved_outbound.get(frame.stream)
        ended = self._ended_outbound.get(frame.stream)
        if endpoint is not None:
            known = self._routing.table.get(endpoint) or Binding(endpoint, 0, "", 0, "")
            body = frames.binding(known) + bytes((_SENDER_MOVED,))
            self._context.post(
                node,
                Frame(
                    FrameType.STALE,
                    0,
                    frame.traffic_class,
                    frame.stream,
                    0,
                    0,
                    0,
                    0,
                    frame.destination_epoch,
                    body,
                ),
            )
        elif ended is None or ended.cause is not None:
            cause = ended.cause if ended and ended.cause else ResetCause.UNKNOWN_STREAM
            self._send_reset(
                node, _SENDER, frame.stream, frame.traffic_class, cause, "no such stream here", frame.destination_epoch
            )

    # Bindings

    def learned(self, binding: Binding, now: int) -> None:
        """A newer owner of an endpoint: its streams go on there."""
        for out in [out for out in self.outbound.values() if out.route.receiver == binding.endpoint]:
            if binding.gone:
                self.end_outbound(out, ResetCause.ENDPOINT_ENDED, f"{binding.endpoint} has ended", now, tell=False)
                continue
            self._context.scheduler.withdraw(out.node, out.route.traffic_class, out)
            out.point_at(binding)
            self._context.timers.clear(("resolve", out.route.stream, "out"))
            if out.opened:
                self._offer(out, now)
            else:
                self._send_open(out, now)
        for into in [into for into in self.inbound.values() if into.route.sender == binding.endpoint]:
            if binding.gone:
                self.end_inbound(into, ResetCause.ENDPOINT_ENDED, f"{binding.endpoint} has ended", now, tell=False)
                continue
            into.point_at(binding)
            self._context.timers.clear(("resolve", into.route.stream, "in"))
            if into.serving:
                self._acknowledge(into)
                into.acknowledged = False

    def _find_receiver(self, out: Outbound, now: int) -> None:
        known = self._routing.table.get(out.route.receiver)
        if known is not None and not known.gone:
            out.point_at(known)
            self._send_open(out, now)
        else:
            self._seek_owner(out, ResetCause.ENDPOINT_UNKNOWN, now)

    def _seek_owner(self, out: Outbound, cause: ResetCause, now: int) -> None:
        """Nobody is known to own the receiver: ask around, and reset the stream when nobody answers for too long."""
        if out.orphaned:
            return
        out.orphaned = True
        self._routing.resolve(out.route.receiver, now)
        wait = (
            self._context.config.resolve_for if cause is ResetCause.ENDPOINT_UNKNOWN else 2 * self._context.config.lease
        )
        self._causes[("out", out.route.stream)] = cause
        self._context.timers.set(("resolve", out.route.stream, "out"), now + wait)

    def lost(self, peer: Peer, cause: ResetCause, now: int) -> None:
        """A node's life is over: its endpoints have moved, or their streams end."""
        for out in list(self.outbound.values()):
            if out.route.receiver and out.node == peer.node and out.incarnation == peer.incarnation:
                self._seek_owner(out, cause, now)
        for into in list(self.inbound.values()):
            if (
                into.route.receiver
                and into.node == peer.node
                and into.incarnation == peer.incarnation
                and not into.orphaned
            ):
                into.orphaned = True
                self._routing.resolve(into.route.sender, now)
                self._causes[("in", into.route.stream)] = cause
                self._context.timers.set(("resolve", into.route.stream, "in"), now + 2 * self._context.config.lease)

    def _resolve_due(self, key: Key, now: int) -> None:
        _, stream, side = key
        assert isinstance(stream, int)
        cause = self._causes.pop((side, stream), ResetCause.UNREACHABLE)
        out, into = self.outbound.get(stream), self.inbound.get(stream)
        if side == "out" and out is not None and out.orphaned:
            self.end_outbound(out, cause, f"no owner of {out.route.receiver} was found", now)
        if side == "in" and into is not None and into.orphaned:
            self.end_inbound(into, cause, f"no owner of {into.route.sender} was found", now)

    # Moving

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
        endpoint.handover = None
        for out in endpoint.outbound.values():
            out.blocked = False
            self._offer(out, now)
            if out.waiting:
                out.waiting = False
                self._context.emit(SendSpace(out.route.stream))
        for into in endpoint.inbound.values():
            into.serving = True
            self._acknowledge(into, Flag.RETRANSMIT)
            if into.receive.ready:
                self._context.emit(MessageReady(into.route.stream))

    def release(self, endpoint: Endpoint) -> None:
        """Forget the endpoint's streams: they go on elsewhere, and late frames of theirs are sent there."""
        for out in list(endpoint.outbound.values()):
            self._drop_outbound(out)
            _remember(self._moved_outbound, out.route.stream, endpoint.name)
        for into in list(endpoint.inbound.values()):
            self._drop_inbound(into)
            _remember(self._moved_inbound, into.route.stream, endpoint.name)

    def adopt(self, endpoint: Endpoint, moved: MovedStream, now: int) -> None:
        """Take over one stream of an endpoint that has just arrived."""
        route = moved.route
        config = self._context.config
        (self._moved_outbound if moved.outbound else self._moved_inbound).pop(route.stream, None)
        if moved.peer.node:
            self._routing.learn(moved.peer, "handover", now)
        peer = self._routing.table.get(moved.peer.endpoint)
        if moved.outbound:
            send = SendStream.restore(
                moved.message, moved.offset, moved.limit, moved.held, moved.fin, moved.fin_acknowledged
            )
            out = Outbound(route, send, endpoint.epoch, config)
            out.opened = moved.opened
            self._add_outbound(endpoint, out)
        else:
            receive = ReceiveStream.restore(config.message, moved.message, moved.offset, moved.held, moved.fin)
            into = Inbound(
                route,
                receive,
                ReceiveCredit(config.classes[route.traffic_class].window, moved.limit),
                endpoint.epoch,
            )
            if receive.finished:
                into.finished_at = now
                self._context.timers.set(("linger", route.stream, ""), now + config.dead_after)
            self._add_inbound(endpoint, into)
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
                    self._offer(out, now)
                else:
                    self._send_open(out, now)
            else:
                self._find_receiver(out, now)
        else:
            if peer is not None:
                into.point_at(peer)
            self._acknowledge(into)
            into.acknowledged = False
            for _ in range(len(receive.undelivered())):
                self._context.emit(MessageReady(route.stream))

    def end_all(self, endpoint: Endpoint, cause: ResetCause, text: str, now: int, tell: bool = True) -> None:
        """Reset every stream of the endpoint, and tell the other ends unless they know better."""
        for out in list(endpoint.outbound.values()):
            self.end_outbound(out, cause, text, now, tell)
        for into in list(endpoint.inbound.values()):
            self.end_inbound(into, cause, text, now, tell)

    def add_transfer(self, stream: Outbound | Inbound) -> None:
        """Carry the transfer stream of a handover."""
        if isinstance(stream, Outbound):
            self.outbound[stream.route.stream] = stream
        else:
            self.inbound[stream.route.stream] = stream

    def drop_transfer(self, handover: StreamId) -> None:
        out, into = self.outbound.get(handover), self.inbound.get(handover)
        if out is not None and not out.route.receiver:
            self._drop_outbound(out)
        if into is not None and not into.route.receiver:
            self._drop_inbound(into)

    # Ends

    def end_outbound(self, out: Outbound, cause: ResetCause, text: str, now: int, tell: bool = True) -> None:
        self._drop_outbound(out)
        _remember(self._ended_outbound, out.route.stream, _Ended(cause, 0, 0))
        self._context.emit(StreamWasReset(out.route.stream, "sender", cause, text))
        if tell and out.node:
            self._send_reset(
                out.node, _SENDER, out.route.stream, out.route.traffic_class, cause, text, out.sender_epoch, now
            )

    def end_inbound(self, into: Inbound, cause: ResetCause, text: str, now: int, tell: bool = True) -> None:
        self._drop_inbound(into)
        if into.finished_at is not None:
            return
        _remember(self._ended_inbound, into.route.stream, _Ended(cause, 0, 0))
        self._context.emit(StreamWasReset(into.route.stream, "receiver", cause, text))
        if tell and into.node:
            self._send_reset(
                into.node, _RECEIVER, into.route.stream, into.route.traffic_class, cause, text, into.epoch, now
            )

    def _close_outbound(self, out: Outbound) -> None:
        self._drop_outbound(out)
        _remember(self._ended_outbound, out.route.stream, _Ended(None, 0, 0))
        self._context.emit(StreamClosed(out.route.stream, "sender", out.send.next_message, out.send.next_offset))

    def _finish_inbound(self, into: Inbound, now: int) -> None:
        """All is delivered. The stream lingers for a while, so that it moves with its endpoint should the sender not
        know of its end yet.
        """
        self._acknowledge(into)
        if into.finished_at is None:
            into.finished_at = now
            self._context.emit(StreamClosed(into.route.stream, "receiver", into.receive.message, into.receive.offset))
            self._context.timers.set(("linger", into.route.stream, ""), now + self._context.config.dead_after)

    def _linger_due(self, key: Key, now: int) -> None:
        assert isinstance(key[1], int)
        into = self.inbound.get(key[1])
        if into is not None and not into.serving:
            self._context.timers.set(key, now + self._context.config.dead_after)
        elif into is not None:
            self._drop_inbound(into)
            _remember(
                self._ended_inbound,
                into.route.stream,
                _Ended(None, into.receive.message, into.receive.offset),
            )

    def _drop_outbound(self, out: Outbound) -> None:
        stream = out.route.stream
        self.outbound.pop(stream, None)
        endpoint = self._routing.owned.get(out.route.sender)
        if endpoint is not None:
            endpoint.outbound.pop(stream, None)
        self._context.scheduler.withdraw(out.node, out.route.traffic_class, out)
        self._context.settle("open", stream, "")
        self._context.timers.clear(("progress", stream, ""))
        self._context.timers.clear(("resolve", stream, "out"))

    def _drop_inbound(self, into: Inbound) -> None:
        stream = into.route.stream
        self.inbound.pop(stream, None)
        endpoint = self._routing.owned.get(into.route.receiver)
        if endpoint is not None:
            endpoint.inbound.pop(stream, None)
        for key in (("ack", stream, ""), ("resolve", stream, "in"), ("linger", stream, "")):
            self._context.timers.clear(key)

    def _send_reset(
        self,
        node: NodeName,
        side: int,
        stream: StreamId,
        traffic_class: int,
        cause: ResetCause,
        text: str,
        epoch: int,
        now: int | None = None,
    ) -> None:
        """Say that the stream is over: once in answer to a frame, or (with ``now``) until it is acknowledged."""
        body = bytes((cause, side)) + frames.text(text, 2)
        frame = Frame(FrameType.RESET, 0, traffic_class, stream, 0, 0, 0, epoch, 0, body)
        if now is None:
            self._context.post(node, frame)
        else:
            self._context.repeat(
                "reset", stream, node, lambda _: self._context.post(node, frame), now, most=_RESET_REPEATS
            )

    # Sending

    def _own(self, stream: StreamId) -> Outbound:
        out = self.outbound.get(stream)
        if out is None:
            raise LocalProtocolError(f"stream {stream:016x} is not open for sending here")
        return out

    def _add_outbound(self, endpoint: Endpoint, out: Outbound) -> None:
        self.outbound[out.route.stream] = out
        endpoint.outbound[out.route.stream] = out

    def _add_inbound(self, endpoint: Endpoint, into: Inbound) -> None:
        self.inbound[into.route.stream] = into
        endpoint.inbound[into.route.stream] = into

    def _offer(self, out: Outbound, now: int) -> None:
        """Let the scheduler have the stream if it may send, and watch its progress while anything is owed."""
        if out.wants_to_send(now):
            self._context.scheduler.ready(out.node, out.route.traffic_class, out)
        if out.opened and not out.timed and out.send.awaiting and not out.blocked:
            out.timed = True
            out.progress_at = now
            self._context.timers.set(("progress", out.route.stream, ""), now + out.wait)

    def _send_open(self, out: Outbound, now: int) -> None:
        out.opened = False
        out.probe_at = now
        self._context.repeat("open", out.route.stream, "", lambda at: self._post_open(out, at), now)

    def _post_open(self, out: Outbound, now: int) -> None:
        endpoint = self._routing.owned.get(out.route.sender)
        if endpoint is None or endpoint.restricted or out.blocked or not out.node:
            return
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
                0,
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

    def _opened(self, out: Outbound, now: int) -> None:
        out.opened = True
        out.confirmed_at = out.probe_at
        self._context.settle("open", out.route.stream, "")
        route = out.route
        self._context.emit(
            StreamOpened(route.stream, "sender", route.sender, route.receiver, route.traffic_class, route.label)
        )

    def _acknowledge(self, into: Inbound, flags: Flag = Flag.NONE) -> None:
        receive = into.receive
        stream = into.route.stream
        if into.due:
            into.due = False
            self._context.timers.clear(("ack", stream, ""))
        into.acknowledged = True
        into.credit.update(receive.offset, receive.alone_until)
        if receive.finished:
            flags = flags | Flag.FIN
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
                _LIMIT.pack(into.credit.advertise()),
            ),
        )

    def _ack_due(self, key: Key, now: int) -> None:
        assert isinstance(key[1], int)
        into = self.inbound.get(key[1])
        if into is not None and into.serving:
            into.due = False
            self._acknowledge(into)

    def _progress_due(self, key: Key, now: int) -> None:
        assert isinstance(key[1], int)
        out = self.outbound[key[1]]
        if not out.send.awaiting or out.blocked:
            out.timed = False
            return
        if now - out.progress_at >= out.wait:
            if out.send.in_flight:
                out.doubt(self._context.config.retransmit_most)
            out.progress_at = now
            self._offer(out, now)
        self._context.timers.set(key, out.progress_at + out.wait)

    def channel_lost(self, node: NodeName, traffic_class: TrafficClass, now: int) -> None:
        """What was in flight on the channel may be lost: resume from the acknowledged offsets."""
        for out in self.outbound.values():
            if out.node == node and out.route.traffic_class == traffic_class and out.opened:
                out.confirmed_at = NEVER
                out.probe = None
                out.send.rewind()
                self._offer(out, now)


def _remember(table: dict[StreamId, _T], stream: StreamId, what: _T) -> None:
    table[stream] = what
    if len(table) > _REMEMBERED:
        del table[next(iter(table))]


def _nobody(*_: object) -> None:
    """Until somebody listens."""
