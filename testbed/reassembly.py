"""TCP byte streams out of a capture, offline: what one interface sent and what arrived at it, in order.

Each direction of a connection becomes a flow. A flow hands its bytes, in order and each once, to a sink, piece by
piece as views into the capture. Bytes that the other side has acknowledged and the capture does not hold, or that a
snap length cut away, are handed over as a hole: never skipped in silence.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple, Protocol

from testbed.checksum import intact

INBOUND, OUTBOUND = 1, 2
"""Direction of a packet, seen from the node whose interface was captured (as in ``testbed.capture``)."""

_IPV4, _IPV6, _VLAN, _TCP = 0x0800, 0x86DD, 0x8100, 6
_HEAD4 = Struct(">HBBHHHBBHIIHHIIHHH")
"""From the Ethernet type on: an IPv4 header without options and a TCP header up to its checksum."""
_FIXED4 = Struct(">BBHHHBBHII")
_TCP_HEAD = Struct(">HHIIHHH")
_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16
_EXTENSIONS = {0, 43, 60}
_FRAGMENT = 44
_HALF, _MASK = 1 << 31, (1 << 32) - 1
_SMALL_WINDOW = 64
"""Below this value of its field a window may hold back what the sender has already been given."""
_PATIENCE = 100_000_000
"""How long (ns of capture time) bytes that were acknowledged may still turn up before they count as not captured."""


QUIET = 2_000_000
"""A segment that leaves later than this (ns) after the last acknowledgement was not held back for it."""


class Sink(Protocol):
    """Takes the bytes of one flow."""

    def data(self, time: int, drained: int, payload: memoryview) -> None:
        """The next bytes. ``time``: when they were there in order; ``drained``: when, last before or just then, a
        segment was sent while all before it was acknowledged, so that nothing older can have waited in the sender's
        kernel. Both in ns."""
        ...

    def hole(self, time: int, length: int) -> None:
        """The next ``length`` bytes existed and are not in the capture."""
        ...


@dataclass(slots=True, eq=False)
class Flow:
    """One direction of one TCP connection, seen at one interface."""

    number: int
    """Counts the flows of one capture, from 0."""
    direction: int
    source: tuple[str, int]
    """Address and port."""
    destination: tuple[str, int]
    began: int
    """Time of its first packet, ns."""
    whole: bool = False
    """Whether its SYN was seen; if not, the connection was open before the capture began."""
    ended: str = ""
    """``fin``, ``reset`` or ``replaced`` (by a new connection of the same addresses); empty while open."""
    holes: int = 0
    missing: int = 0
    """Bytes in holes."""
    stranded: int = 0
    """Bytes at the end that never got into order, because what precedes them was not seen and not acknowledged."""

    @property
    def name(self) -> str:
        return f"{self.source[0]}:{self.source[1]} > {self.destination[0]}:{self.destination[1]}"


@dataclass(slots=True)
class Tally:
    """What was met in one capture."""

    packets: int = 0
    bytes: int = 0
    segments: int = 0
    """TCP segments of flows that somebody wanted, those without payload included."""
    retransmitted: int = 0
    """Segments that brought nothing new."""
    corrupt: int = 0
    """Segments that arrived with a wrong checksum: the kernel discards them, so they are left out."""
    snapped: int = 0
    """Packets of which the capture kept only the beginning."""
    fragments: int = 0
    """IP fragments: not put together, so what they carried is missing."""
    malformed: int = 0
    """TCP headers that cannot be right."""
    flows: list[Flow] = field(default_factory=list)


class _Waiting(NamedTuple):
    start: int
    stop: int
    payload: memoryview | None


class _Half:
    """The state of one flow. Offsets count the bytes of the stream from its first."""

    __slots__ = (
        "acked", "acked_at", "drained", "fin", "flow", "highest", "next", "opposite", "overdue", "room",
        "sink", "start", "waiting",
    )  # fmt: skip

    def __init__(self, flow: Flow, sink: Sink, start: int) -> None:
        self.flow = flow
        self.sink = sink
        self.start = start
        """Sequence number of offset 0."""
        self.next = 0
        self.highest = 0
        self.acked = 0
        self.acked_at = 0
        self.drained = flow.began
        self.room = True
        """Whether the receiver had room for more, when it last said."""
        self.overdue = 0
        """When bytes were first found to be acknowledged and not captured; 0 if there are none."""
        self.fin = -1
        self.waiting: list[_Waiting] = []
        self.opposite: _Half | None = None

    def offset(self, sequence: int) -> int:
        """The offset that a sequence number means, nearest to what comes next."""
        return self.next + ((sequence - self.start - self.next + _HALF) & _MASK) - _HALF

    def segment(self, offset: int, payload: memoryview | None, length: int, time: int, tally: Tally) -> None:
        """Bytes [offset, offset + length); of those beyond ``len(payload)`` nothing is known."""
        stop = offset + length
        highest = self.highest
        if stop > highest:
            # What the sender's kernel sends as soon as an acknowledgement lets it has waited there.
            if self.acked >= highest and self.room and time - self.acked_at > QUIET:
                self.drained = time
            self.highest = stop
        if stop <= self.next:
            tally.retransmitted += 1
            return
        if offset > self.next:
            self._put_aside(offset, stop, payload)
        else:
            self._take(offset, stop, payload, time)
            if self.waiting:
                self._take_waiting(time)
        if self.overdue:
            self._look_overdue(time)

    def acknowledged(self, offset: int, window: int, time: int) -> None:
        """The other side says that it has all bytes before ``offset``."""
        self.room = window >= _SMALL_WINDOW
        if offset > self.acked:
            self.acked = offset
            self.acked_at = time
        if self.acked > self.next:
            self._look_overdue(time)

    def finish(self) -> None:
        """The capture is over."""
        self._punch(self.drained)
        self.flow.stranded = sum(one.stop - one.start for one in self.waiting)

    def _take(self, offset: int, stop: int, payload: memoryview | None, time: int) -> None:
        skip = self.next - offset
        known = len(payload) if payload is not None else 0
        self.next = stop
        if known > skip:
            assert payload is not None
            self.sink.data(time, self.drained, payload[skip:] if skip else payload)
            skip = known
        if stop - offset > skip:
            self._hole(time, stop - offset - skip)

    def _put_aside(self, offset: int, stop: int, payload: memoryview | None) -> None:
        waiting = self.waiting
        at = len(waiting)
        while at and waiting[at - 1].start > offset:
            at -= 1
        waiting.insert(at, _Waiting(offset, stop, payload))

    def _take_waiting(self, time: int) -> None:
        waiting = self.waiting
        taken = 0
        for one in waiting:
            if one.start > self.next:
                break
            if one.stop > self.next:
                self._take(one.start, one.stop, one.payload, time)
            taken += 1
        del waiting[:taken]

    def _look_overdue(self, time: int) -> None:
        if self.acked <= self.next or (self.fin >= 0 and self.acked == self.next + 1):
            self.overdue = 0
        elif not self.overdue:
            self.overdue = time
        elif time - self.overdue > _PATIENCE:
            self._punch(time)
            self.overdue = 0

    def _punch(self, time: int) -> None:
        """Make holes of what was acknowledged and is not there."""
        while self.acked > self.next and not (self.fin >= 0 and self.acked == self.next + 1 and not self.waiting):
            stop = min(self.acked, self.waiting[0].start) if self.waiting else self.acked
            if stop > self.next:
                length = stop - self.next
                self.next = stop
                self._hole(time, length)
            self._take_waiting(time)

    def _hole(self, time: int, length: int) -> None:
        self.flow.holes += 1
        self.flow.missing += length
        self.sink.hole(time, length)


class Reassembler:
    """Takes packets in the order of the capture.

    ``open_sink`` is asked for the sink of every new flow; None leaves the flow out. ``local`` are the addresses of the
    captured interface, for captures that do not record directions.
    """

    def __init__(self, open_sink: Callable[[Flow], Sink | None], local: Iterable[str] = ()) -> None:
        self._open_sink = open_sink
        self._local = {ipaddress.ip_address(address).packed for address in local}
        self._halves: dict[bytes, _Half | None] = {}
        self._all: list[_Half] = []
        self.tally = Tally()

    def packet(self, time: int, direction: int, data: memoryview) -> None:
        """One frame from its Ethernet header on. ``time`` in ns; ``direction`` 0 where it is not known."""
        tally = self.tally
        tally.packets += 1
        size = len(data)
        tally.bytes += size
        if size < 54:
            tally.snapped += size >= 34 and bytes(data[12:14]) == b"\x08\x00" and data[23] == _TCP
            return
        (kind, version, _, total, _, fragment, _, protocol, _, _, _, _, _, sequence, ack, flags,
         window, _) = _HEAD4.unpack_from(data, 12)  # fmt: skip
        if kind != _IPV4 or version != 0x45:
            self._unusual(time, direction, data)
            return
        if protocol != _TCP:
            return
        if fragment & 0x3FFF:
            tally.fragments += 1
            return
        stop = 14 + total if total else size
        key = bytes(data[26:38])
        if not direction:
            direction = OUTBOUND if key[:4] in self._local else INBOUND
        if direction == INBOUND and not intact(data, 14, 34, stop):
            tally.corrupt += 1
            return
        self._segment(time, direction, data, key, 34, stop, sequence, ack, flags, window)

    def _unusual(self, time: int, direction: int, data: memoryview) -> None:
        """IPv6, VLAN tags, IPv4 options: the same, by steps."""
        at, size = 12, len(data)
        kind = data[at] << 8 | data[at + 1]
        while kind == _VLAN and at + 6 <= size:
            at += 4
            kind = data[at] << 8 | data[at + 1]
        ip = at + 2
        if kind == _IPV4 and ip + 20 <= size:
            head = data[ip] & 15
            _, _, total, _, fragment, _, protocol, _, _, _ = _FIXED4.unpack_from(data, ip)
            tcp, stop, key = ip + 4 * head, ip + total if total else size, bytes(data[ip + 12 : ip + 20])
            if fragment & 0x3FFF:
                self.tally.fragments += protocol == _TCP
                return
        elif kind == _IPV6 and ip + 40 <= size:
            length, protocol = data[ip + 4] << 8 | data[ip + 5], data[ip + 6]
            tcp, stop, key = ip + 40, ip + 40 + length if length else size, bytes(data[ip + 8 : ip + 40])
            while protocol in _EXTENSIONS and tcp + 8 <= size:
                protocol, tcp = data[tcp], tcp + 8 * (data[tcp + 1] + 1)
            if protocol == _FRAGMENT:
                self.tally.fragments += tcp < size and data[tcp] == _TCP
                return
        else:
            return
        if protocol != _TCP:
            return
        if tcp + 20 > size:
            self.tally.snapped += 1
            return
        if not direction:
            direction = OUTBOUND if key[: len(key) // 2] in self._local else INBOUND
        if direction == INBOUND and not intact(data, ip, tcp, stop):
            self.tally.corrupt += 1
            return
        _, _, sequence, ack, flags, window, _ = _TCP_HEAD.unpack_from(data, tcp)
        key += bytes(data[tcp : tcp + 4])
        self._segment(time, direction, data, key, tcp, stop, sequence, ack, flags, window)

    def _segment(self, time: int, direction: int, data: memoryview, key: bytes, tcp: int, stop: int, sequence: int,
                 ack: int, flags: int, window: int) -> None:  # fmt: skip
        half = self._halves.get(key)
        if half is None or flags & _SYN:
            half = self._flow(time, direction, key, sequence, ack, flags)
            if half is None:
                return
        tally = self.tally
        tally.segments += 1
        begin = tcp + ((flags >> 10) & 0x3C)
        length = stop - begin
        if begin < tcp + 20 or length < 0:
            tally.malformed += 1
            return
        if stop > len(data):
            tally.snapped += 1
        if length > 0:
            half.segment(half.offset(sequence), data[begin:stop] if begin < len(data) else None, length, time, tally)
        if flags & _ACK and half.opposite is not None:
            opposite = half.opposite
            opposite.acknowledged(opposite.offset(ack), window, time)
        if flags & (_FIN | _RST):
            half.flow.ended = half.flow.ended or ("fin" if flags & _FIN else "reset")
            if flags & _FIN:
                half.fin = half.offset(sequence) + length

    def _flow(self, time: int, direction: int, key: bytes, sequence: int, ack: int, flags: int) -> _Half | None:
        """The flow of a packet that begins one, or belongs to one that was open before the capture."""
        known = self._halves.get(key)
        start = (sequence + 1) & _MASK if flags & _SYN else sequence
        if known is not None and (known.start == start or not flags & _SYN):
            return known
        if key in self._halves and known is None:
            return None
        if known is None and flags & _RST:
            return None  # a refusal to connect, or the end of what was not seen: nothing flows
        turned = _turned(key)
        if known is not None:
            self._replace(key, turned, known, flags)
        half = self._add(time, direction, key, start, bool(flags & _SYN))
        if half is None:
            return None
        other = self._halves.get(turned)
        if flags & _ACK and (other is None or (flags & _SYN and other.start != ack)) and self._wanted(turned):
            # The packet that began the other direction was not seen, or after SYN and ACK: it began here.
            other = self._add(time, INBOUND + OUTBOUND - direction, turned, ack, bool(flags & _SYN))
        if other is not None:
            half.opposite, other.opposite = other, half
        return half

    def _wanted(self, key: bytes) -> bool:
        return key not in self._halves or self._halves[key] is not None

    def _add(self, time: int, direction: int, key: bytes, start: int, whole: bool) -> _Half | None:
        width = (len(key) - 4) // 2
        source = str(ipaddress.ip_address(key[:width])), int.from_bytes(key[-4:-2], "big")
        destination = str(ipaddress.ip_address(key[width:-4])), int.from_bytes(key[-2:], "big")
        flow = Flow(len(self.tally.flows), direction, source, destination, time, whole)
        sink = self._open_sink(flow)
        half = _Half(flow, sink, start) if sink is not None else None
        self._halves[key] = half
        if half is not None:
            self.tally.flows.append(flow)
            self._all.append(half)
        return half

    def _replace(self, key: bytes, turned: bytes, known: _Half, flags: int) -> None:
        """The same addresses and ports are used for a new connection."""
        known.flow.ended = known.flow.ended or "replaced"
        del self._halves[key]
        if not flags & _ACK:
            other = self._halves.pop(turned, None)
            if other is not None:
                other.flow.ended = other.flow.ended or "replaced"

    def finish(self) -> Tally:
        """The capture is over: what is still missing stays missing."""
        for half in self._all:
            half.finish()
        return self.tally


def _turned(key: bytes) -> bytes:
    width = (len(key) - 4) // 2
    return key[width:-4] + key[:width] + key[-2:] + key[-4:-2]
