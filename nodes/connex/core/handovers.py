"""All handovers of a node: which side a frame, a death or a deadline concerns."""

from __future__ import annotations

from collections.abc import Callable

from connex.core import frames
from connex.core.arrival import Arrivals
from connex.core.context import Context
from connex.core.departure import Departures
from connex.core.doubt import Doubts
from connex.core.frames import BodyReader, Flag, Frame, FrameType
from connex.core.handover import Handover, HandoverTable, Phase
from connex.core.identity import EndpointName, Life, NodeName, Peer
from connex.core.routing import Routing
from connex.core.timers import Key


class Handovers:
    """Handovers that leave from here (``source``) and that come here (``target``)."""

    def __init__(
        self,
        context: Context,
        routing: Routing,
        table: HandoverTable,
        source: Departures,
        target: Arrivals,
        doubts: Doubts,
        peers: Callable[[NodeName], Peer | None],
    ) -> None:
        self._context = context
        self._routing = routing
        self._table = table
        self.source = source
        self.target = target
        self._doubts = doubts
        self._peer = peers
        source.on_committed = doubts.over
        context.on_alarm("handover", self._timed_out)

    def receive(self, node: NodeName, frame: Frame, now: int) -> None:
        """A handover frame from ``node``."""
        handover = self._table.all.get(frame.stream)
        kind = frame.type
        if handover is not None and handover.peer.life != self._life_of(node):
            return
        side = handover.side if handover is not None else ""
        if kind == FrameType.PREPARE and handover is None:
            if frame.stream in self._table.over:
                self._table.send(node, FrameType.UNKNOWN, frame.stream)
            else:
                self.target.prepare(node, frame, now)
        elif kind == FrameType.PREPARE and handover is not None and handover.phase is Phase.RECEIVING:
            self._table.send(node, FrameType.PREPARED, frame.stream)
        elif kind == FrameType.PREPARED:
            if handover is None:
                self._table.send(node, FrameType.UNKNOWN, frame.stream)
            elif side == "source":
                self.source.prepared(handover, now)
        elif (
            kind == FrameType.DECLINED
            and handover is not None
            and side == "source"
            and handover.phase is not Phase.COMMITTING
        ):
            self.source.abort(handover, f"{node} declined: {BodyReader(frame.payload).text(2)}", now, tell=False)
        elif kind == FrameType.COMMIT:
            if handover is not None and side == "target":
                self.target.commit(handover, frame, now)
            elif self._table.over.get(frame.stream):
                self._table.send(
                    node,
                    FrameType.COMMITTED,
                    frame.stream,
                    bytes(frame.payload),
                    frame.sender_epoch,
                    frame.sender_epoch + 1,
                )
            else:
                self._receive_unknown_commit(node, frame)
        elif kind == FrameType.COMMITTED:
            if handover is not None and side == "source":
                self.source.committed(handover, now)
            elif self._table.over.get(frame.stream):
                self._table.send(node, FrameType.RELEASE, frame.stream)
        elif kind == FrameType.RELEASE:
            if handover is not None and side == "target" and handover.phase is Phase.COMMITTED:
                self.target.released(handover, now)
            self._table.send(node, FrameType.RELEASED, frame.stream)
        elif kind == FrameType.RELEASED:
            self._context.settle(FrameType.RELEASE.name, frame.stream, node)
        elif kind == FrameType.ABORT:
            self._receive_abort(node, handover, frame)
        elif kind == FrameType.UNKNOWN and handover is not None and handover.phase is Phase.DOUBT:
            self.source.resume(handover, [], "", now)
        elif kind == FrameType.UNKNOWN and handover is not None and side == "source":
            self.source.abort(handover, f"{node} knows no such handover", now, tell=False)
        elif kind == FrameType.UNKNOWN and handover is not None and handover.phase is Phase.RECEIVING:
            self.target.drop(handover, f"{node} knows no such handover")

    def _receive_unknown_commit(self, node: NodeName, frame: Frame) -> None:
        """It was aborted here, or it is so long ago that only its outcome is known."""
        body = BodyReader(frame.payload)
        known = self._routing.table.get(body.text())
        body.finish()
        if frame.stream not in self._table.over and known is not None and known.epoch >= frame.destination_epoch:
            self._context.control(node, FrameType.ANNOUNCE, frames.binding(known), flags=Flag.REPLY)
            return
        self._table.over.setdefault(frame.stream, False)
        self._table.send(node, FrameType.UNKNOWN, frame.stream)

    def in_doubt(self, endpoint: EndpointName) -> bool:
        """Whether the endpoint may be its target's already."""
        return any(
            one.endpoint == endpoint and one.phase in (Phase.COMMITTING, Phase.DOUBT)
            for one in self._table.all.values()
        )

    def _life_of(self, node: NodeName) -> Life | None:
        peer = self._peer(node)
        return peer.life if peer is not None else None

    def _receive_abort(self, node: NodeName, handover: Handover | None, frame: Frame) -> None:
        if frame.flags & Flag.REPLY:
            self._context.settle(FrameType.ABORT.name, frame.stream, node)
            return
        if handover is not None and handover.side == "target" and handover.phase is Phase.RECEIVING:
            self.target.drop(handover, BodyReader(frame.payload).text(2))
        elif handover is None:
            self._table.over.setdefault(frame.stream, False)
        self._table.send(node, FrameType.ABORT, frame.stream, flags=Flag.REPLY)

    def lost(self, peer: Peer, text: str, now: int) -> None:
        """The other node's life is over, or it is taken to be."""
        for handover in [one for one in self._table.all.values() if one.peer.life == peer.life]:
            if handover.phase is Phase.COMMITTING:
                self._doubts.enter(handover, text, now)
            elif handover.phase in (Phase.DOUBT, Phase.COMMITTED):
                continue
            elif handover.side == "source":
                self.source.abort(handover, text, now, tell=False)
            else:
                self.target.drop(handover, text)

    def _timed_out(self, key: Key, now: int) -> None:
        assert isinstance(key[1], int)
        handover = self._table.all.get(key[1])
        if handover is None or handover.phase in (Phase.HOLDING, Phase.COMMITTING, Phase.DOUBT, Phase.COMMITTED):
            return
        if handover.side == "target":
            # The source may hold a prepared handover back for long; if it has forgotten it, it says so.
            self._table.send(handover.peer.node, FrameType.PREPARED, handover.id)
            self._context.timers.set(key, now + self._context.config.handover_timeout)
            return
        waited = self._context.config.handover_timeout // 1_000_000
        text = f"not complete after {waited} ms, in phase {handover.phase.value}"
        self.source.abort(handover, text, now)
