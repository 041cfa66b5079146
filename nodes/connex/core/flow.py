"""DATA and ACK: what moves on streams that are open."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from connex.core.binding import Binding
from connex.core.context import Context
from connex.core.endings import Endings
from connex.core.endpoint import NEVER, Inbound, Outbound
from connex.core.errors import LocalProtocolError, RemoteProtocolError, ResetCause
from connex.core.events import (
    MessageReady,
    SendSpace,
)
from connex.core.frames import Buffer, Flag, Frame
from connex.core.identity import EndpointName, NodeName, Peer, StreamId, TrafficClass
from connex.core.opening import Opening
from connex.core.refusals import DESTINATION_MOVED, SENDER_MOVED, Refusals
from connex.core.routing import Routing
from connex.core.stream import Arrival
from connex.core.table import LIMIT, StreamTable
from connex.core.timers import Key

_FIN, _RETRANSMIT = int(Flag.FIN), int(Flag.RETRANSMIT)
_COMPLETE, _GAP, _DUPLICATE = Arrival.COMPLETE, Arrival.GAP, Arrival.DUPLICATE
"""Plain numbers and names, because operators and look-ups of enumerations are slow and these serve every frame."""


class Message(NamedTuple):
    """A message that the application has taken. ``offset`` is that of its first byte in the stream."""

    stream: StreamId
    number: int
    offset: int
    payload: Buffer


class Flow:
    """Sends, receives, acknowledges, and resumes after silence."""

    def __init__(
        self,
        context: Context,
        routing: Routing,
        table: StreamTable,
        refusals: Refusals,
        endings: Endings,
        opening: Opening,
        peers: Callable[[NodeName], Peer | None],
    ) -> None:
        self._context = context
        self._routing = routing
        self._table = table
        self._refusals = refusals
        self._endings = endings
        self._opening = opening
        self._peer = peers
        self.on_transfer: Callable[[Inbound, int], None] = _nobody
        """Called when a transfer stream has a complete record."""
        self.on_progress: Callable[[Outbound, int], None] = _nobody
        """Called when a transfer stream was acknowledged further."""
        self.on_addressed: Callable[[EndpointName, NodeName, int], bool] = _nobody_serves
        """Called when a frame comes for a stream that is not served; says whether it is served now."""
        context.on_alarm("ack", self._ack_due)
        context.on_alarm("progress", self._progress_due)

    def write(self, stream: StreamId, payload: Buffer, now: int) -> int:
        out = self._table.own(stream)
        if out.blocked and self._table.is_frozen(out):
            raise LocalProtocolError(
                f"send on stream {stream:016x}: endpoint {out.route.sender} is frozen by a handover"
            )
        if len(payload) > self._context.config.message:
            raise LocalProtocolError(f"message of {len(payload)} bytes: the limit is {self._context.config.message}")
        number = out.send.write(payload)
        self._table.offer(out, now)
        return number

    def try_write(self, stream: StreamId, payload: Buffer, now: int) -> int | None:
        """``write`` if ``can_send``, in one step."""
        out = self._table.outbound.get(stream) or self._table.own(stream)
        send = out.send
        size = len(payload)
        limits = self._context.config
        buffered = send.next_offset - send.acknowledged_offset
        if out.blocked or (buffered and buffered + size > limits.send_buffer):
            out.waiting = True
            return None
        if size > limits.message:
            raise LocalProtocolError(f"message of {size} bytes: the limit is {limits.message}")
        number = send.write(payload)
        self._table.offer(out, now)
        return number

    def can_send(self, stream: StreamId, size: int) -> bool:
        """Whether ``size`` more bytes may be written now; if not, SendSpace says when to try again."""
        out = self._table.own(stream)
        room = not out.blocked and (
            not out.send.buffered or out.send.buffered + size <= self._context.config.send_buffer
        )
        out.waiting = not room
        return room

    def finish(self, stream: StreamId, now: int) -> None:
        out = self._table.own(stream)
        if self._table.is_frozen(out):
            raise LocalProtocolError(f"close stream {stream:016x}: endpoint {out.route.sender} is frozen by a handover")
        out.send.finish()
        self._table.offer(out, now)

    def take(self, stream: StreamId, now: int) -> Message | None:
        into = self._table.inbound.get(stream)
        if into is None or not into.serving:
            return None
        receive = into.receive
        held = receive.take()
        if held is None:
            return None
        if into.credit.update(receive.offset, receive.alone_until) or not into.acknowledged:
            self._table.acknowledge(into)
        elif not into.due:
            into.due = True
            self._context.timers.set(("ack", stream, ""), now + self._context.config.ack_delay)
        if receive.finished:
            self._endings.finish_inbound(into, now)
        return Message(stream, held.number, held.start, held.payload)

    def place(self, node: NodeName, frame: Frame, length: int) -> memoryview | None:
        into = self._table.inbound.get(frame.stream)
        if into is None or not self._admitted(into, node, frame):
            return None
        return into.receive.place(frame.message, frame.offset, frame.end, length, into.credit.limit)

    def receive_data(self, node: NodeName, frame: Frame, now: int) -> None:
        into = self._table.inbound.get(frame.stream)
        if into is None:
            self._refusals.refuse_unknown(node, frame)
            return
        _, flags, _, _, number, offset, end, sender_epoch, destination_epoch, payload = frame
        if (
            destination_epoch != into.epoch or sender_epoch != into.peer_epoch or into.node != node or not into.serving
        ) and not self._reconsider(into, node, frame, now):
            return
        receive, credit = into.receive, into.credit
        try:
            arrival = receive.receive(number, offset, end, payload, bool(flags & _FIN), credit.limit)
        except RemoteProtocolError as error:
            self._endings.end_inbound(into, ResetCause.PROTOCOL_ERROR, str(error), now)
            return
        if arrival is _COMPLETE:
            if into.route.receiver == "":
                self.on_transfer(into, now)
            elif flags & _FIN:
                if receive.finished:
                    self._endings.finish_inbound(into, now)
            else:
                self._context.emit(MessageReady(frame.stream))
        elif arrival is _GAP:
            if into.gap != receive.received:
                into.gap = receive.received
                self._table.acknowledge(into, Flag.RETRANSMIT)
            return
        if (
            arrival is _DUPLICATE
            or not into.route.receiver
            or credit.update(receive.offset, receive.alone_until)
            or not into.acknowledged
        ):
            self._table.acknowledge(into)
        elif not into.due:
            into.due = True
            self._context.timers.set(("ack", frame.stream, ""), now + self._context.config.ack_delay)

    def receive_ack(self, node: NodeName, frame: Frame, now: int) -> None:
        out = self._table.outbound.get(frame.stream)
        if out is None:
            self._refusals.answer_unknown_acknowledgement(node, frame, now)
            return
        if frame.sender_epoch > out.peer_epoch and out.route.receiver:
            peer = self._peer(node)
            if peer is not None:
                self._routing.learn(Binding(out.route.receiver, frame.sender_epoch, *peer), "frame", now)
        if frame.sender_epoch != out.peer_epoch or node != out.node:
            return
        if out.blocked and frame.destination_epoch == out.sender_epoch:
            self.on_addressed(out.route.sender, node, now)
        if len(frame.payload) != LIMIT.size:
            raise RemoteProtocolError(
                f"acknowledgement with a body of {len(frame.payload)} bytes: expected {LIMIT.size}"
            )
        send = out.send
        (limit,) = LIMIT.unpack(frame.payload)
        news = send.acknowledge(frame.message, frame.offset, frame.end, limit, bool(frame.flags & _FIN))
        if not out.opened or out.verifying:
            self._opening.opened(out, now)
        if frame.flags & _RETRANSMIT:
            send.seek(frame.end)
            out.probe = None
        out.confirm(now, self._context.config.retransmit)
        if news:
            out.progress_at = now
        if send.finished:
            self._endings.close_outbound(out)
            return
        if out.waiting and send.buffered < self._context.config.send_buffer:
            out.waiting = False
            self._context.emit(SendSpace(frame.stream))
        self._table.offer(out, now)
        if not out.route.receiver:
            self.on_progress(out, now)

    def _admitted(self, into: Inbound, node: NodeName, frame: Frame) -> bool:
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
            self._refusals.refuse(node, frame, "stale-destination", into.epoch, into.route.receiver, DESTINATION_MOVED)
            return False
        if frame.sender_epoch > into.peer_epoch:
            peer = self._peer(node)
            if peer is not None:
                self._routing.learn(Binding(into.route.sender, frame.sender_epoch, *peer), "frame", now)
        if frame.sender_epoch == into.peer_epoch and node == into.node:
            return into.serving or (self.on_addressed(into.route.receiver, node, now) and into.serving)
        if not into.serving:
            return False
        self._refusals.refuse(node, frame, "stale-sender", into.epoch, into.route.sender, SENDER_MOVED)
        return False

    def _ack_due(self, key: Key, now: int) -> None:
        assert isinstance(key[1], int)
        into = self._table.inbound.get(key[1])
        if into is not None and into.serving:
            into.due = False
            self._table.acknowledge(into)

    def _progress_due(self, key: Key, now: int) -> None:
        assert isinstance(key[1], int)
        out = self._table.outbound[key[1]]
        if not out.send.awaiting or out.blocked:
            out.timed = False
            return
        if now - out.progress_at >= out.wait:
            if out.send.in_flight:
                out.doubt(self._context.config.retransmit_most)
            out.progress_at = now
            self._table.offer(out, now)
        self._context.timers.set(key, out.progress_at + out.wait)

    def channel_lost(self, node: NodeName, traffic_class: TrafficClass, now: int) -> None:
        """What was in flight on the channel may be lost: resume from the acknowledged offsets."""
        for out in self._table.outbound.values():
            if out.node == node and out.route.traffic_class == traffic_class and out.opened:
                out.confirmed_at = NEVER
                out.probe = None
                out.send.rewind()
                self._table.offer(out, now)


def _nobody(*_: object) -> None:
    """Until somebody listens."""


def _nobody_serves(*_: object) -> bool:
    return False
