"""Promises to a source in doubt: what a peer must not believe any more (``docs/wire.md``, Doubt).

A source that does not know whether its COMMIT was accepted asks every peer either to say that it has seen the new
epoch, or to promise never to follow it. A promise binds the streams between that peer and the endpoint, wherever their
end at the peer moves, until the source itself says how the doubt ended. A peer that takes the source for dead may
break its promise only by resetting those streams, and says so when it is asked what it has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from connex.core import frames
from connex.core.binding import Binding
from connex.core.context import Context
from connex.core.endings import Endings
from connex.core.endpoint import Inbound, Outbound
from connex.core.errors import ResetCause
from connex.core.events import FenceChanged
from connex.core.frames import BodyReader, Flag, Frame, FrameType
from connex.core.handover import HandoverTable
from connex.core.identity import EndpointName, Life, NodeName, Peer
from connex.core.memory import remember
from connex.core.routing import Promise, Routing
from connex.core.table import StreamTable

PROMISED, SEEN = 1, 2


class Answer(NamedTuple):
    """What a peer says when it is asked to fence."""

    endpoint: EndpointName
    answer: int
    known: Binding
    """The newest binding that the peer knows of the endpoint in doubt."""
    elsewhere: list[Binding]
    """Where the ends that were asked for are, or may be."""


class Fences:
    """Makes, keeps and ends promises; also says where the endpoints of this node may have gone."""

    def __init__(
        self,
        context: Context,
        routing: Routing,
        table: StreamTable,
        endings: Endings,
        handovers: HandoverTable,
        peers: Callable[[NodeName], Peer | None],
    ) -> None:
        self._context = context
        self._routing = routing
        self._table = table
        self._endings = endings
        self._handovers = handovers
        self._peer = peers

    def receive(self, node: NodeName, frame: Frame, now: int) -> None:
        """A source in doubt asks."""
        body = BodyReader(frame.payload)
        endpoint, ends = body.text(), [body.text() for _ in range(body.number(2))]
        body.finish()
        source = self._peer(node)
        if source is None:
            return
        self._routing.learn(Binding(endpoint, frame.sender_epoch, *source), "fence", now)
        known = self._routing.table.get(endpoint)
        epoch = frame.destination_epoch
        answer = SEEN
        if known is None or known.epoch < epoch:
            if not self._routing.promise(endpoint, Promise(epoch, source.life)):
                return
            answer = PROMISED
        me = self._context.me.life
        elsewhere = [binding for end in ends for binding in self.whereabouts(end) if binding.life != me]
        reply = (
            frames.text(endpoint)
            + bytes((answer,))
            + frames.binding(known or Binding(endpoint, 0, "", 0, ""))
            + frames.number(len(elsewhere), 2)
            + b"".join(frames.binding(one) for one in elsewhere)
        )
        self._context.control(
            node,
            FrameType.FENCE,
            reply,
            flags=Flag.REPLY,
            handover=frame.stream,
            destination=epoch,
            message=frame.message,
        )

    def whereabouts(self, endpoint: EndpointName) -> list[Binding]:
        """Where this node knows the endpoint to be, and where it may be already while its own handover from here is
        not settled.
        """
        known = self._routing.table.get(endpoint)
        found = [known] if known is not None else []
        for handover in self._handovers.all.values():
            if handover.endpoint == endpoint and handover.side == "source" and handover.may_be_gone:
                found.append(Binding(endpoint, handover.epoch + 1, *handover.peer))
        return found

    def lost(self, peer: Peer, text: str, now: int) -> None:
        """The source to which something was promised is taken for dead: the streams concerned end, and so does the
        promise.
        """
        for endpoint, promise in list(self._routing.promised.items()):
            if promise.to != peer.life:
                continue
            streams: list[Outbound | Inbound] = [
                *(one for one in self._table.outbound.values() if one.route.receiver == endpoint),
                *(one for one in self._table.inbound.values() if one.route.sender == endpoint),
            ]
            if any(self._table.is_frozen(stream) for stream in streams):
                continue  # this is said again as long as something is promised to it
            del self._routing.promised[endpoint]
            remember(self._routing.broken, endpoint, promise.epoch)
            self._context.emit(FenceChanged(endpoint, promise.epoch, peer.node, "broken"))
            for stream in streams:
                self._endings.give_up(stream, ResetCause.HANDOVER_IN_DOUBT, text, now)

    def lives(self) -> set[Life]:
        """To whom something is promised."""
        return {promise.to for promise in self._routing.promised.values()}


def read_answer(frame: Frame) -> Answer:
    """Read the reply to FENCE; raises RemoteProtocolError where it is malformed."""
    body = BodyReader(frame.payload)
    endpoint, answer, known = body.text(), body.number(1), body.binding()
    elsewhere = [body.binding() for _ in range(body.number(2))]
    body.finish()
    return Answer(endpoint, answer, known, elsewhere)
