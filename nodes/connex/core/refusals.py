"""What late and misdirected frames are answered with."""

from __future__ import annotations

from connex.core import frames
from connex.core.binding import Binding
from connex.core.context import Context
from connex.core.errors import ResetCause
from connex.core.events import (
    FrameRefused,
)
from connex.core.frames import Flag, Frame, FrameType
from connex.core.identity import EndpointName, NodeName, StreamId
from connex.core.routing import Routing
from connex.core.table import LIMIT, Ended, StreamTable

RESET_REPEATS = 20
DESTINATION_MOVED, SENDER_MOVED = 1, 2
SENDER, RECEIVER = 1, 2


class Refusals:
    """STALE and RESET as answers, from what is known and remembered."""

    def __init__(self, context: Context, routing: Routing, table: StreamTable) -> None:
        self._context = context
        self._routing = routing
        self._table = table

    def refuse(self, node: NodeName, frame: Frame, reason: str, owned: int, endpoint: EndpointName, which: int) -> None:
        refused = frame.destination_epoch if which == DESTINATION_MOVED else frame.sender_epoch
        self._context.emit(FrameRefused(frame.stream, reason, refused, owned, node))
        known = self._routing.table.get(endpoint) or Binding(endpoint, 0, "", 0, "")
        body = frames.binding(known) + bytes((which,))
        self._context.post(
            node, Frame(FrameType.STALE, 0, frame.traffic_class, frame.stream, 0, 0, 0, owned, refused, body)
        )

    def refuse_unknown(self, node: NodeName, frame: Frame) -> None:
        ended = self._table.ended_inbound.get(frame.stream)
        if ended is not None:
            self.answer_ended(node, frame, ended)
            return
        endpoint = self._table.moved_inbound.get(frame.stream, "")
        if endpoint in self._routing.owned:
            # It has come back, and this stream not with it.
            text = f"{endpoint} has no such stream"
            cause = ResetCause.UNKNOWN_STREAM
            epoch = frame.destination_epoch
            self.send_reset(node, RECEIVER, frame.stream, frame.traffic_class, cause, text, epoch)
            return
        self.refuse(
            node,
            frame,
            "stale-destination" if endpoint else "unknown-stream",
            0,
            endpoint,
            DESTINATION_MOVED,
        )

    def answer_ended(self, node: NodeName, frame: Frame, ended: Ended) -> None:
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
                    LIMIT.pack(ended.offset),
                ),
            )
        else:
            self.send_reset(
                node,
                RECEIVER,
                frame.stream,
                frame.traffic_class,
                ended.cause,
                "the stream was reset before",
                frame.destination_epoch,
            )

    def answer_unknown_acknowledgement(self, node: NodeName, frame: Frame, now: int) -> None:
        endpoint = self._table.moved_outbound.get(frame.stream)
        ended = self._table.ended_outbound.get(frame.stream)
        if endpoint is not None and endpoint not in self._routing.owned:
            known = self._routing.table.get(endpoint) or Binding(endpoint, 0, "", 0, "")
            body = frames.binding(known) + bytes((SENDER_MOVED,))
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
            self.send_reset(
                node, SENDER, frame.stream, frame.traffic_class, cause, "no such stream here", frame.destination_epoch
            )

    def send_reset(
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
                "reset", stream, node, lambda _: self._context.post(node, frame), now, most=RESET_REPEATS
            )
