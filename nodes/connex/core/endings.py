"""How streams end: closed with everything delivered, or reset with a cause, on both sides."""

from __future__ import annotations

from collections.abc import Callable

from connex.core.binding import Binding
from connex.core.context import Context
from connex.core.endpoint import Endpoint, Inbound, Outbound
from connex.core.errors import LocalProtocolError, RemoteProtocolError, ResetCause
from connex.core.events import (
    StreamClosed,
    StreamWasReset,
)
from connex.core.frames import BodyReader, Flag, Frame, FrameType
from connex.core.identity import NodeName, Peer, StreamId
from connex.core.memory import remember
from connex.core.refusals import RECEIVER, RESET_REPEATS, SENDER, Refusals
from connex.core.routing import Routing
from connex.core.table import Ended, StreamTable
from connex.core.timers import Key


class Endings:
    """Ends streams and says so."""

    def __init__(
        self,
        context: Context,
        routing: Routing,
        table: StreamTable,
        refusals: Refusals,
        peers: Callable[[NodeName], Peer | None],
    ) -> None:
        self._context = context
        self._routing = routing
        self._table = table
        self._refusals = refusals
        self._peer = peers
        self.on_disputed: Callable[[Outbound, int], None] = _nobody
        """Called when an earlier owner of the receiver says that the stream has ended."""
        context.on_alarm("linger", self._linger_due)

    def reset(self, stream: StreamId, cause: ResetCause, text: str, now: int) -> None:
        """End the stream on both sides, with the cause."""
        out, into = self._table.outbound.get(stream), self._table.inbound.get(stream)
        if out is None and into is None:
            raise LocalProtocolError(f"reset stream {stream:016x}: no such stream here")
        for one in (out, into):
            if one is not None and self._table.is_frozen(one):
                raise LocalProtocolError(f"reset stream {stream:016x}: its endpoint is frozen by a handover")
        if out is not None:
            self.end_outbound(out, cause, text, now)
        if into is not None:
            self.end_inbound(into, cause, text, now)

    def end_all(self, endpoint: Endpoint, cause: ResetCause, text: str, now: int, tell: bool = True) -> None:
        """Reset every stream of the endpoint, and tell the other ends unless they know better."""
        for out in list(endpoint.outbound.values()):
            self.end_outbound(out, cause, text, now, tell)
        for into in list(endpoint.inbound.values()):
            self.end_inbound(into, cause, text, now, tell)

    def end_outbound(self, out: Outbound, cause: ResetCause, text: str, now: int, tell: bool = True) -> None:
        self._table.drop_outbound(out)
        remember(self._table.ended_outbound, out.route.stream, Ended(cause, 0, 0))
        self._context.emit(StreamWasReset(out.route.stream, "sender", cause, text))
        if tell and out.node:
            self._refusals.send_reset(
                out.node, SENDER, out.route.stream, out.route.traffic_class, cause, text, out.sender_epoch, now
            )

    def end_inbound(self, into: Inbound, cause: ResetCause, text: str, now: int, tell: bool = True) -> None:
        self._table.drop_inbound(into)
        if into.finished_at is not None:
            return
        remember(self._table.ended_inbound, into.route.stream, Ended(cause, 0, 0))
        self._context.emit(StreamWasReset(into.route.stream, "receiver", cause, text))
        if tell and into.node:
            self._refusals.send_reset(
                into.node, RECEIVER, into.route.stream, into.route.traffic_class, cause, text, into.epoch, now
            )

    def give_up(self, stream: Outbound | Inbound, cause: ResetCause, text: str, now: int) -> None:
        """Reset one side of a stream."""
        if isinstance(stream, Outbound):
            self.end_outbound(stream, cause, text, now)
        else:
            self.end_inbound(stream, cause, text, now)

    def close_outbound(self, out: Outbound) -> None:
        self._table.drop_outbound(out)
        remember(self._table.ended_outbound, out.route.stream, Ended(None, 0, 0))
        self._context.emit(StreamClosed(out.route.stream, "sender", out.send.next_message, out.send.next_offset))

    def finish_inbound(self, into: Inbound, now: int) -> None:
        """All is delivered. The stream lingers for a while, so that it moves with its endpoint should the sender not
        know of its end yet.
        """
        self._table.acknowledge(into)
        if into.finished_at is None:
            into.finished_at = now
            self._context.emit(StreamClosed(into.route.stream, "receiver", into.receive.message, into.receive.offset))
            self._context.timers.set(("linger", into.route.stream, ""), now + self._context.config.dead_after)

    def _linger_due(self, key: Key, now: int) -> None:
        assert isinstance(key[1], int)
        into = self._table.inbound.get(key[1])
        if into is not None and not into.serving:
            self._context.timers.set(key, now + self._context.config.dead_after)
        elif into is not None:
            self._table.drop_inbound(into)
            remember(
                self._table.ended_inbound,
                into.route.stream,
                Ended(None, into.receive.message, into.receive.offset),
            )

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
        out = self._table.outbound.get(frame.stream) if side == RECEIVER else None
        into = self._table.inbound.get(frame.stream) if side == SENDER else None
        other = out or into
        if other is not None and self._table.is_frozen(other):
            return  # said again, it finds the stream where it is then
        self._context.post(node, Frame(FrameType.RESET, Flag.REPLY, frame.traffic_class, frame.stream))
        if other is None:
            self._pass_on(frame, side, now)
            return
        peer = self._peer(node)
        if frame.sender_epoch > other.peer_epoch and peer is not None:
            endpoint = other.route.receiver if side == RECEIVER else other.route.sender
            self._routing.learn(Binding(endpoint, frame.sender_epoch, *peer), "frame", now)
        if other.node != node or other.peer_epoch != frame.sender_epoch:
            # From an owner of before: whether the stream has ended, the present one must say.
            if out is not None and not out.blocked:
                self.on_disputed(out, now)
            elif into is not None and into.serving:
                self._table.acknowledge(into)
            return
        if out is not None:
            self.end_outbound(out, cause, text, now, tell=False)
        elif into is not None:
            self.end_inbound(into, cause, text, now, tell=False)

    def _pass_on(self, frame: Frame, side: int, now: int) -> None:
        """The stream has moved on meanwhile: tell its new owner, who asks whoever has ended it."""
        moved = self._table.moved_outbound if side == RECEIVER else self._table.moved_inbound
        known = self._routing.table.get(moved.get(frame.stream, ""))
        if known is None or known.gone or known.life == self._context.me.life:
            return
        told = frame._replace(payload=bytes(frame.payload))
        self._context.repeat(
            "reset", frame.stream, known.node, lambda _: self._context.post(known.node, told), now, most=RESET_REPEATS
        )


def _nobody(*_: object) -> None:
    """Until somebody listens."""
