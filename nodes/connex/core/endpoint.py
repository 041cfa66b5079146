"""An endpoint hosted here, and its streams as this node keeps them: the plain stream plus where its other end is
believed to be.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from connex.core.binding import Binding
from connex.core.config import Config
from connex.core.credit import ReceiveCredit
from connex.core.errors import ResetCause
from connex.core.frames import MAGIC, VERSION, Buffer, Flag, FrameType
from connex.core.identity import EndpointName, HandoverId, Life, NodeName, Peer, StreamId, TrafficClass
from connex.core.stream import ReceiveStream, SendStream

_FIELDS = Struct(">HBBBBHIQQQQII")
_CHECKSUM = Struct(">I")
_DATA = int(FrameType.DATA)
_FIN = int(Flag.FIN)
_RETRANSMIT = int(Flag.RETRANSMIT)
NEVER = -(1 << 62)


class Route(NamedTuple):
    """What the two ends of a stream are called; the same on both."""

    stream: StreamId
    sender: EndpointName
    receiver: EndpointName
    traffic_class: TrafficClass
    label: str


class Restriction:
    """What holds for an endpoint that has arrived while its source may still prove that it never did."""

    __slots__ = ("named", "seen", "source")

    def __init__(self, source: Life, named: frozenset[Life], me: Life) -> None:
        self.source = source
        self.named = named
        """The lives at the other ends of the streams that STATE names: those that the source will ask."""
        self.seen = {me}
        """The lives that are known to follow the new epoch: streams with them are served."""


class Endpoint:
    """An endpoint that this node owns under ``epoch``."""

    __slots__ = ("epoch", "frozen", "handover", "in_doubt", "inbound", "name", "outbound", "restriction")

    def __init__(self, name: EndpointName, epoch: int) -> None:
        self.name = name
        self.epoch = epoch
        self.frozen = False
        self.in_doubt = False
        """A handover's commit is in doubt: it may be long until the endpoint serves again, here or elsewhere."""
        self.restriction: Restriction | None = None
        """After a handover, until the source knows of the commit: only streams that moved are served (trap (a) of the
        design), and each only once its other end has seen the new epoch.
        """
        self.handover: HandoverId | None = None
        self.outbound: dict[StreamId, Outbound] = {}
        self.inbound: dict[StreamId, Inbound] = {}

    @property
    def restricted(self) -> bool:
        return self.restriction is not None

    def binding(self, me: Peer) -> Binding:
        return Binding(self.name, self.epoch, me.node, me.incarnation, me.locator)

    def streams(self) -> list[Outbound | Inbound]:
        return [*self.outbound.values(), *self.inbound.values()]


class Outbound:
    """A stream that leaves from here. Fills its lane with DATA frames (it is a ``scheduler.Source``)."""

    __slots__ = (
        "accepted",
        "blocked",
        "confirmed_at",
        "frame",
        "incarnation",
        "lease",
        "node",
        "opened",
        "orphaned",
        "peer_epoch",
        "probe",
        "probe_at",
        "progress_at",
        "route",
        "send",
        "sender_epoch",
        "smoothed",
        "timed",
        "verifying",
        "wait",
        "waiting",
    )

    def __init__(self, route: Route, send: SendStream, sender_epoch: int, config: Config) -> None:
        self.route = route
        self.send = send
        self.sender_epoch = sender_epoch
        self.frame = config.classes[route.traffic_class].frame
        self.lease = config.lease
        self.node: NodeName = ""
        """The node believed to own the receiver; empty while unknown."""
        self.incarnation = 0
        self.peer_epoch = 0
        self.opened = False
        self.accepted = False
        """Whether some owner of the receiver has ever accepted the stream: if it is opened again, it must be known."""
        self.verifying = False
        """An owner that is new is asked whether it knows the stream; sending need not wait for that."""
        self.blocked = False
        self.waiting = False
        """The application waits for room."""
        self.orphaned: ResetCause | None = None
        """Why the other end's owner is gone, while no newer one is known."""
        self.confirmed_at = NEVER
        """When the last frame was sent that the current owner confirmed."""
        self.probe: int | None = None
        self.probe_at = 0
        self.progress_at = 0
        self.smoothed = 0
        self.wait = config.retransmit
        self.timed = False

    def point_at(self, binding: Binding) -> None:
        """From now on the receiver is there, and nothing of it has been confirmed."""
        self.node, self.incarnation, self.peer_epoch = binding.node, binding.incarnation, binding.epoch
        self.confirmed_at = NEVER
        self.probe = None
        self.orphaned = None
        self.send.rewind()

    @property
    def other(self) -> Life:
        """The life that is believed to own the other end."""
        return Life(self.node, self.incarnation)

    def wants_to_send(self, now: int) -> bool:
        return (
            self.opened
            and not self.blocked
            and self.send.pending
            and (now - self.confirmed_at < self.lease or not self.send.in_flight)
        )

    def fill(self, buffers: list[Buffer], budget: int, now: int) -> int:
        """Append DATA frames; an owner not confirmed for a lease gets one at a time (C3)."""
        if not self.opened or self.blocked:
            return 0
        send = self.send
        route = self.route
        confirmed = now - self.confirmed_at < self.lease
        taken = 0
        while taken < budget:
            if not confirmed and send.in_flight:
                break
            piece = send.next_piece(self.frame)
            if piece is None:
                break
            message, offset, end, payload, fin, repeated = piece
            size = len(payload)
            fields = _FIELDS.pack(
                MAGIC,
                VERSION,
                _DATA,
                (_FIN if fin else 0) | (_RETRANSMIT if repeated else 0),
                route.traffic_class,
                0,
                size,
                route.stream,
                message,
                offset,
                end,
                self.sender_epoch,
                self.peer_epoch,
            )
            buffers.append(fields + _CHECKSUM.pack(crc32(fields)))
            if size:
                buffers.append(payload)
            taken += size or 1
            if self.probe is None and not repeated:
                self.probe = offset + size
                self.probe_at = now
        if taken and not self.timed:
            self.progress_at = now
        return taken

    def confirm(self, now: int, floor: int) -> None:
        """The current owner has received up to ``send.received``."""
        if self.probe is not None and self.send.received >= self.probe:
            self.probe = None
            self.confirmed_at = self.probe_at
            sample = now - self.probe_at
            self.smoothed = sample if not self.smoothed else (7 * self.smoothed + sample) // 8
            self.wait = max(floor, 4 * self.smoothed)

    def doubt(self, most: int) -> None:
        """No progress for ``wait``: go back, one frame at a time until the owner answers."""
        self.confirmed_at = NEVER
        self.probe = None
        self.wait = min(2 * self.wait, max(most, 4 * self.smoothed))
        self.send.rewind()


class Inbound:
    """A stream that arrives here."""

    __slots__ = (
        "acknowledged",
        "credit",
        "due",
        "epoch",
        "finished_at",
        "gap",
        "incarnation",
        "node",
        "orphaned",
        "peer_epoch",
        "receive",
        "route",
        "serving",
    )

    def __init__(self, route: Route, receive: ReceiveStream, credit: ReceiveCredit, epoch: int) -> None:
        self.route = route
        self.receive = receive
        self.credit = credit
        self.epoch = epoch
        """The epoch under which this node owns the receiving endpoint."""
        self.node: NodeName = ""
        self.incarnation = 0
        self.peer_epoch = 0
        self.serving = True
        self.due = False
        """An acknowledgement waits for its timer."""
        self.acknowledged = False
        """Whether the present sender has had one: the first is not delayed."""
        self.gap = -1
        """The offset at which the sender was last asked to go back."""
        self.finished_at: int | None = None
        self.orphaned: ResetCause | None = None

    def point_at(self, binding: Binding) -> None:
        self.node, self.incarnation, self.peer_epoch = binding.node, binding.incarnation, binding.epoch
        self.acknowledged = False
        self.orphaned = None
        self.gap = -1

    @property
    def other(self) -> Life:
        """The life that is believed to own the other end."""
        return Life(self.node, self.incarnation)
