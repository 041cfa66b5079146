"""The records of a transfer stream: a state region's bytes, and everything else that an endpoint is
(``docs/wire.md``, Handovers).
"""

from __future__ import annotations

from typing import NamedTuple

from connex.core import frames
from connex.core.binding import Binding
from connex.core.endpoint import Inbound, Outbound, Route
from connex.core.errors import RemoteProtocolError
from connex.core.frames import BodyReader, Buffer
from connex.core.identity import EndpointName, Life, NodeName, Peer, TrafficClass
from connex.core.stream import Held

REGION = 1
STATE = 2
PEERS = 3
_INBOUND, _OUTBOUND = 1, 2
_FIN, _OPENED, _FIN_ACKNOWLEDGED = 1, 2, 4


class Region(NamedTuple):
    name: str
    size: int
    offset: int
    data: memoryview


class MovedStream(NamedTuple):
    """One stream as STATE carries it."""

    route: Route
    outbound: bool
    peer: Binding
    message: int
    offset: int
    limit: int
    fin: tuple[int, int] | None
    opened: bool
    fin_acknowledged: bool
    promised: int
    """The epoch of the other end that must not be followed (``fence.py``); 0 if none."""
    held: list[Held]


class MovedState(NamedTuple):
    """What a STATE record says of an endpoint."""

    streams: list[MovedStream]
    witnesses: list[Peer]

    @property
    def named(self) -> frozenset[Life]:
        """The lives that can say whether the target has been seen: the source asks them if it is in doubt."""
        others = [stream.peer.life for stream in self.streams if stream.peer.node]
        return frozenset([*others, *(peer.life for peer in self.witnesses)])


def encode_region(name: str, size: int, offset: int, data: Buffer) -> bytes:
    return b"\x01" + frames.text(name) + frames.number(size, 8) + frames.number(offset, 8) + data


def decode_region(record: Buffer) -> Region:
    view = memoryview(record)
    length = view[1] if len(view) > 1 else 0
    start = 2 + length + 16
    if len(view) < start:
        raise RemoteProtocolError(f"region record of {len(view)} bytes: expected at least {start}")
    try:
        name = bytes(view[2 : 2 + length]).decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("region record: its name is not UTF-8") from error
    size = int.from_bytes(view[2 + length : 10 + length], "big")
    offset = int.from_bytes(view[10 + length : 18 + length], "big")
    if offset + len(view) - start > size:
        raise RemoteProtocolError(f"region record {name}: bytes up to {offset + len(view) - start} of {size}")
    return Region(name, size, offset, view[start:])


def encode_peers(outbound: list[Outbound], inbound: list[Inbound], locators: dict[NodeName, str]) -> bytes:
    """The PEERS record: where the other ends of an endpoint's streams are, so that its target can prepare for them."""
    ends = [
        (out.route.receiver, out.route.traffic_class, out.peer_epoch, out.node, out.incarnation) for out in outbound
    ]
    ends += [
        (into.route.sender, into.route.traffic_class, into.peer_epoch, into.node, into.incarnation) for into in inbound
    ]
    parts = [b"\x03", frames.number(len(ends), 4)]
    for name, traffic_class, epoch, node, incarnation in ends:
        binding = Binding(name, epoch, node, incarnation, locators.get(node, ""))
        parts += [frames.binding(binding), bytes((traffic_class,))]
    return b"".join(parts)


def decode_peers(record: Buffer) -> list[tuple[Binding, TrafficClass]]:
    """Read a PEERS record; raises RemoteProtocolError where it is malformed."""
    body = BodyReader(record)
    body.take(1)
    peers: list[tuple[Binding, TrafficClass]] = []
    for _ in range(body.number(4)):
        binding, traffic_class = body.binding(), body.number(1)
        if not 1 <= traffic_class <= 3:
            raise RemoteProtocolError(f"peers record: class {traffic_class}")
        peers.append((binding, TrafficClass(traffic_class)))
    body.finish()
    return peers


def encode_state(
    outbound: list[Outbound],
    inbound: list[Inbound],
    locators: dict[NodeName, str],
    promised: dict[EndpointName, int],
    witnesses: list[Peer],
) -> bytes:
    """The STATE record of an endpoint; ``locators`` says where the nodes at the other ends are reached, ``promised``
    which epochs of them must not be followed, ``witnesses`` who else can say what has become of the handover.
    """
    parts = [b"\x02", frames.number(len(outbound) + len(inbound), 4)]
    for out in outbound:
        send = out.send
        flags = (
            (_FIN if send.fin else 0)
            | (_OPENED if out.accepted else 0)
            | (_FIN_ACKNOWLEDGED if send.fin_acknowledged else 0)
        )
        peer = Binding(out.route.receiver, out.peer_epoch, out.node, out.incarnation, locators.get(out.node, ""))
        cursor = (send.acknowledged_message, send.acknowledged_offset, send.limit)
        parts += _stream(
            out.route,
            _OUTBOUND,
            peer,
            cursor,
            flags,
            send.fin,
            promised.get(out.route.receiver, 0),
            send.unacknowledged(),
        )
    for into in inbound:
        receive = into.receive
        flags = (_FIN if receive.fin else 0) | _OPENED | (_FIN_ACKNOWLEDGED if receive.finished else 0)
        peer = Binding(into.route.sender, into.peer_epoch, into.node, into.incarnation, locators.get(into.node, ""))
        cursor = (receive.message, receive.offset, into.credit.limit)
        parts += _stream(
            into.route,
            _INBOUND,
            peer,
            cursor,
            flags,
            receive.fin,
            promised.get(into.route.sender, 0),
            receive.undelivered(),
        )
    parts.append(frames.number(len(witnesses), 2))
    for witness in witnesses:
        parts += (frames.text(witness.node), frames.number(witness.incarnation, 8), frames.text(witness.locator))
    return b"".join(parts)


def _stream(
    route: Route,
    side: int,
    peer: Binding,
    cursor: tuple[int, int, int],
    flags: int,
    fin: tuple[int, int] | None,
    promised: int,
    held: list[Held],
) -> list[bytes]:
    fin_message, fin_offset = fin or (0, 0)
    parts = [
        frames.number(route.stream, 8),
        bytes((side, route.traffic_class)),
        frames.text(peer.endpoint),
        frames.text(route.label),
        frames.binding(peer),
        *(frames.number(value, 8) for value in cursor),
        bytes((flags,)),
        frames.number(fin_offset, 8),
        frames.number(fin_message, 8),
        frames.number(promised, 4),
        frames.number(len(held), 4),
    ]
    for number, start, end, payload in held:
        parts += [frames.number(value, 8) for value in (number, start, end, len(payload))]
        parts.append(bytes(payload))
    return parts


def decode_state(record: Buffer, endpoint: EndpointName) -> MovedState:
    """Read a STATE record; raises RemoteProtocolError where it is malformed."""
    body = BodyReader(record)
    body.take(1)
    streams = [_decode_stream(body, endpoint) for _ in range(body.number(4))]
    witnesses = [Peer(body.text(), body.number(8), body.text()) for _ in range(body.number(2))]
    body.finish()
    return MovedState(streams, witnesses)


def _decode_stream(body: BodyReader, endpoint: EndpointName) -> MovedStream:
    stream = body.number(8)
    side, traffic_class = body.number(1), body.number(1)
    if side not in (_INBOUND, _OUTBOUND) or not 1 <= traffic_class <= 3:
        raise RemoteProtocolError(f"state record: stream side {side}, class {traffic_class}")
    other, label, peer = body.text(), body.text(), body.binding()
    message, offset, limit = body.number(8), body.number(8), body.number(8)
    flags, fin_offset, fin_message = body.number(1), body.number(8), body.number(8)
    promised = body.number(4)
    held: list[Held] = []
    for _ in range(body.number(4)):
        number, start, end, size = body.number(8), body.number(8), body.number(8), body.number(8)
        held.append(Held(number, start, end, body.take(size)))
    outbound = side == _OUTBOUND
    sender, receiver = (endpoint, other) if outbound else (other, endpoint)
    return MovedStream(
        Route(stream, sender, receiver, TrafficClass(traffic_class), label),
        outbound,
        peer,
        message,
        offset,
        limit,
        (fin_message, fin_offset) if flags & _FIN else None,
        bool(flags & _OPENED),
        bool(flags & _FIN_ACKNOWLEDGED),
        promised,
        held,
    )
