"""What a handover is on either side, and what both sides need to carry it on (``docs/wire.md``, Handovers)."""

from __future__ import annotations

from enum import Enum

from connex.core.context import Context
from connex.core.endpoint import Inbound, Outbound, Route
from connex.core.errors import LocalProtocolError
from connex.core.events import HandoverChanged
from connex.core.frames import Buffer, Flag, FrameType
from connex.core.identity import EndpointName, HandoverId, Life, NodeName, Peer, StreamId, TrafficClass
from connex.core.moving import Moving
from connex.core.state import MovedState

_REMEMBERED = 1024


class Phase(Enum):
    """Where a handover stands, at its source (the first seven) or its target."""

    PREPARING = "preparing"
    PRECOPY = "precopy"
    HOLDING = "holding"
    FREEZING = "freezing"
    TRANSFER = "transfer"
    COMMITTING = "committing"
    DOUBT = "doubt"
    RECEIVING = "receiving"
    COMMITTED = "committed"


class Handover:
    """One handover, seen from one side."""

    __slots__ = (
        "endpoint",
        "ends",
        "epoch",
        "final",
        "hold",
        "id",
        "moved",
        "named",
        "peer",
        "phase",
        "rounds",
        "side",
        "state",
        "stream",
    )

    def __init__(self, ident: HandoverId, endpoint: EndpointName, epoch: int, side: str, peer: Peer) -> None:
        self.id = ident
        self.endpoint = endpoint
        self.epoch = epoch
        """The epoch at the source; the target will own the one after it."""
        self.side = side
        self.peer = peer
        """The life of the other node that takes part: a later life of it does not."""
        self.phase = Phase.PREPARING if side == "source" else Phase.RECEIVING
        self.hold = False
        self.rounds = 0
        self.final = -1
        """Bytes still dirty after the last round of pre-copy; -1 while a round is being written."""
        self.moved = 0
        self.stream: Outbound | Inbound | None = None
        self.state: MovedState | None = None
        self.named: frozenset[Life] = frozenset()
        """The lives that STATE names, as the other ends of streams or as witnesses."""
        self.ends: dict[StreamId, set[Life]] = {}
        """At the source: who may own the other end of each stream that STATE names, so far as is known."""

    @property
    def may_be_gone(self) -> bool:
        """At the source: whether the endpoint's state is out of its hands already."""
        return self.phase in (Phase.TRANSFER, Phase.COMMITTING, Phase.DOUBT)


class HandoverTable:
    """All handovers that this node takes part in, and how they speak."""

    def __init__(self, context: Context, moving: Moving) -> None:
        self._context = context
        self._moving = moving
        self.all: dict[HandoverId, Handover] = {}
        self.over: dict[HandoverId, bool] = {}
        """Handovers that have ended here, and whether by a commit: their ids are never taken up again."""

    def at_source(self, ident: HandoverId, *phases: Phase) -> Handover:
        handover = self.all.get(ident)
        if handover is None or handover.side != "source" or (phases and handover.phase not in phases):
            state = handover.phase.value if handover is not None else "over or unknown"
            raise LocalProtocolError(f"handover {ident:016x} is {state}")
        return handover

    def end(self, handover: Handover, committed: bool) -> None:
        self.all.pop(handover.id, None)
        self.over[handover.id] = committed
        if len(self.over) > _REMEMBERED:
            del self.over[next(iter(self.over))]
        self._moving.drop_transfer(handover.id)
        self._context.timers.clear(("handover", handover.id, ""))

    def say(self, handover: Handover, step: str, cause: str = "") -> None:
        self._context.emit(
            HandoverChanged(
                handover.id,
                handover.endpoint,
                handover.epoch,
                handover.side,
                handover.peer.node,
                step,
                cause,
                handover.moved,
            )
        )

    def send(
        self,
        node: NodeName,
        kind: FrameType,
        ident: HandoverId,
        body: Buffer = b"",
        epoch: int = 0,
        destination: int = 0,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        self._context.control(node, kind, body, handover=ident, epoch=epoch, destination=destination, flags=flags)

    def repeat(
        self,
        handover: Handover,
        kind: FrameType,
        body: bytes,
        now: int,
        *,
        offset: int = 0,
        most: int | None = None,
    ) -> None:
        after = handover.epoch + 1 if kind in (FrameType.COMMIT, FrameType.COMMITTED, FrameType.RELEASE) else 0
        node = handover.peer.node

        def send(_: int) -> None:
            self._context.control(
                node, kind, body, handover=handover.id, epoch=handover.epoch, destination=after, offset=offset
            )

        self._context.repeat(kind.name, handover.id, node, send, now, most=most)

    def settle(self, handover: Handover, kind: FrameType) -> None:
        self._context.settle(kind.name, handover.id, handover.peer.node)


def transfer_route(handover: Handover) -> Route:
    """A transfer stream runs between nodes: it has no endpoints."""
    return Route(handover.id, "", "", TrafficClass.KV, "handover")
