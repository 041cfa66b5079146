"""A whole network as a pure model: a frame enters at one edge port and leaves at others, later.

The caller owns the clock. It may be virtual (the simulator) or real (the wire); the model only compares the
times that it is given.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from faults.impairment import Impairment
from testbed.network import vnet
from testbed.network.line import NEVER, Line, LineCounters, merged
from testbed.network.programs import PacketProgram, make_program
from testbed.network.spec import A_TO_B, B_TO_A, DIRECTIONS, FabricSpec, Port
from testbed.network.switch import Switch
from testbed.network.tree import closed_ports

_VLAN_TAGGED_ETHERNET = 18
"""What an Ethernet frame may have beyond the link's MTU: header and one VLAN tag."""


class Departure(NamedTuple):
    """A frame that leaves the network."""

    time: int
    port: Port
    frame: bytes


_Item = tuple[Port, bytes, int]
"""A frame inside the network: where it entered, its bytes, and how many of them it takes on a wire."""


@dataclass(slots=True)
class _Way:
    """What is at the end of a line."""

    line: Line[_Item]
    index: int
    port: Port
    switch: _SwitchNode | None
    limit: int


@dataclass(slots=True)
class _SwitchNode:
    switch: Switch
    program: PacketProgram | None
    ways: dict[Port, _Way]


class Fabric:
    """Links and switches. ``offloads``: frames carry a virtio-net header and may stand for several segments
    (see ``vnet``).

    ``transmit`` puts frames in, ``advance`` takes out those that have left by a time, ``next_time`` says when
    the next ones may. Times should not run backwards; a frame that is put in a little late is treated by its
    own time. All methods that name a port, link, direction or parameter raise ValueError where it is not
    known or not possible.
    """

    def __init__(self, spec: FabricSpec, *, offloads: bool = False) -> None:
        self._at = vnet.HEADER_BYTES if offloads else 0
        self._spec = {link.name: link for link in spec.links}
        self._lines: dict[tuple[str, str], _Way] = {}
        self._entry: dict[Port, _Way] = {}
        self._switch_of: dict[Port, str] = {}
        self._nodes: dict[str, _SwitchNode] = {}
        self._calendar: list[tuple[int, int, _Way]] = []
        self._departures: list[Departure] = []
        self._blocks: dict[str, frozenset[tuple[Port, Port]]] = {}
        self._blocked: Counter[tuple[Port, Port]] = Counter()
        self.blocked_frames = 0
        self.programmed_drops = 0
        self._build(spec)
        self._cut_loops()

    @property
    def edges(self) -> tuple[Port, ...]:
        """Ports at which frames enter and leave, in the order of the links."""
        return tuple(self._entry)

    def transmit(self, port: Port, frame: bytes, now: int) -> None:
        """A frame enters at an edge port."""
        calendar = self._calendar
        if calendar and calendar[0][0] < now:
            self._run(now)
        way = self._entry.get(port)
        if way is None:
            raise ValueError(f"port {port!r}: not an edge of this network; its edges are {', '.join(self._entry)}")
        size = vnet.wire_bytes(frame) if self._at else len(frame)
        self._enter(way, (port, frame, size), now)

    def advance(self, now: int) -> list[Departure]:
        """Frames that have left by ``now`` and were not yet returned, each with the time at which it was to
        leave."""
        self._run(now)
        departures, self._departures = self._departures, []
        return departures

    def next_time(self) -> int:
        """The earliest time at which ``advance`` may have something to do; NEVER (see ``line``) if nothing is
        under way."""
        return self._calendar[0][0] if self._calendar else NEVER

    def impairment(self, link: str, direction: str) -> Impairment:
        """What one direction of a link does now."""
        return self._way(link, direction).line.impairment

    def impair(self, link: str, direction: str, changes: dict[str, int | float | bool], now: int) -> None:
        """Change the named parameters of one direction of a link and keep the others. Nothing changes if it
        is refused."""
        self._change(link, direction, merged(self._way(link, direction).line.impairment, changes), now)

    def restore(self, link: str, direction: str, fields: Sequence[str], now: int) -> None:
        """Give the named parameters of one direction of a link the values that the spec declares."""
        way = self._way(link, direction)
        declared = self._spec[link].a_to_b if direction == A_TO_B else self._spec[link].b_to_a
        known = set(Impairment.__dataclass_fields__)
        if unknown := sorted(set(fields) - known):
            raise ValueError(f"restore: unknown parameter {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        changes = {field: getattr(declared, field) for field in fields}
        self._change(link, direction, way.line.impairment.merge(changes), now)

    def block(self, name: str, pairs: Sequence[tuple[Port, Port]], now: int) -> None:
        """Drop what enters at the first and would leave at the second port of each pair, frames under way
        included.

        A name that is already blocked gets these pairs instead of its former ones.
        """
        for port in {port for pair in pairs for port in pair}:
            if port not in self._entry:
                raise ValueError(f"block {name}: {port!r} is not an edge of this network: {', '.join(self._entry)}")
        self._run(now)
        self._blocks[name] = frozenset(pairs)
        self._blocked = Counter(pair for group in self._blocks.values() for pair in group)

    def unblock(self, name: str, now: int) -> None:
        """End what ``block`` began."""
        if name not in self._blocks:
            raise ValueError(f"unblock: nothing is blocked under the name {name!r}; blocked: {sorted(self._blocks)}")
        self._run(now)
        del self._blocks[name]
        self._blocked = Counter(pair for group in self._blocks.values() for pair in group)

    def counters(self) -> dict[str, LineCounters]:
        """The counters of every line, under ``link/direction``."""
        return {f"{link}/{direction}": way.line.counters for (link, direction), way in self._lines.items()}

    def switch(self, name: str) -> Switch:
        return self._nodes[name].switch

    def _build(self, spec: FabricSpec) -> None:
        for switch in spec.switches:
            program = make_program(switch.program) if switch.program else None
            self._nodes[switch.name] = _SwitchNode(Switch(switch.name, switch.ports), program, {})
            for port in switch.ports:
                if port in self._switch_of:
                    raise ValueError(f"port {port!r} belongs to {self._switch_of[port]} and to {switch.name}")
                self._switch_of[port] = switch.name
        used: dict[Port, str] = {}
        if len(self._spec) != len(spec.links):
            raise ValueError("two links have the same name")
        for link in spec.links:
            for port in (link.a, link.b):
                if port in used:
                    raise ValueError(f"port {port!r} is an end of {used[port]} and of {link.name}")
                used[port] = link.name
            self._add(link.name, A_TO_B, link.a, link.b, link.a_to_b, link.mtu, spec.seed)
            self._add(link.name, B_TO_A, link.b, link.a, link.b_to_a, link.mtu, spec.seed)

    def _add(
        self, link: str, direction: str, tail: Port, head: Port, impairment: Impairment, mtu: int, seed: int
    ) -> None:
        try:
            line = Line(f"{link}/{direction}", impairment, seed, self._damage)
        except ValueError as error:
            raise ValueError(f"link {link}, {direction}: {error}") from None
        owner = self._switch_of.get(head)
        way = _Way(line, len(self._lines), head, self._nodes[owner] if owner else None, mtu + _VLAN_TAGGED_ETHERNET)
        self._lines[link, direction] = way
        if tail in self._switch_of:
            self._nodes[self._switch_of[tail]].ways[tail] = way
        else:
            self._entry[tail] = way

    def _way(self, link: str, direction: str) -> _Way:
        if link not in self._spec:
            raise ValueError(f"link {link!r}: not known; links are {', '.join(self._spec)}")
        if direction not in DIRECTIONS:
            raise ValueError(f"direction {direction!r}: expected {A_TO_B} or {B_TO_A}")
        return self._lines[link, direction]

    def _change(self, link: str, direction: str, impairment: Impairment, now: int) -> None:
        self._run(now)
        way = self._lines[link, direction]
        flipped = impairment.down != way.line.impairment.down
        way.line.change(impairment, now)
        self._plan(way)
        if flipped:
            self._carrier_changed(link)

    def _carrier_changed(self, link: str) -> None:
        ends = (self._spec[link].a, self._spec[link].b)
        if all(port in self._switch_of for port in ends):
            self._cut_loops()
        for port in ends:
            if port in self._switch_of:
                self._nodes[self._switch_of[port]].switch.forget(port)

    def _cut_loops(self) -> None:
        """A link between switches is used if both directions are up and it closes no loop."""
        between = [
            (link.a, link.b) for link in self._spec.values() if link.a in self._switch_of and link.b in self._switch_of
        ]
        usable = [
            (link.a, link.b)
            for link in self._spec.values()
            if (link.a, link.b) in between
            and not any(self._lines[link.name, direction].line.impairment.down for direction in DIRECTIONS)
        ]
        closed = closed_ports(usable, self._switch_of)
        closed.update(port for edge in between if edge not in usable for port in edge)
        for node in self._nodes.values():
            node.switch.close(closed)

    def _enter(self, way: _Way, item: _Item, now: int) -> None:
        line = way.line
        _, frame, size = item
        largest = size
        if self._at and frame[1]:
            if line.per_frame or not line.fits(size, now):
                self._enter_segments(way, item, now)
                return
            largest = vnet.largest_segment(frame)
        if largest > way.limit:
            line.counters.oversized += 1
            return
        line.enter(item, size, now)
        time = line.next_time()
        if time < line.due:
            line.due = time
            heapq.heappush(self._calendar, (time, way.index, way))

    def _enter_segments(self, way: _Way, item: _Item, now: int) -> None:
        """Where frames are treated one by one, or only some of them fit, a super-frame is cut first."""
        origin, frame, _ = item
        for piece in vnet.split(frame):
            self._enter(way, (origin, piece, len(piece) - self._at), now)

    def _plan(self, way: _Way) -> None:
        time = way.line.next_time()
        if time != way.line.due:
            way.line.due = time
            if time != NEVER:
                heapq.heappush(self._calendar, (time, way.index, way))

    def _run(self, now: int) -> None:
        calendar = self._calendar
        while calendar and calendar[0][0] <= now:
            due, _, way = heapq.heappop(calendar)
            line = way.line
            if due != line.due:
                continue  # the line was changed meanwhile and is in the calendar at another time
            line.due = NEVER
            for time, item in line.leave(due):
                self._arrive(way, item, time)
            self._plan(way)

    def _arrive(self, way: _Way, item: _Item, now: int) -> None:
        node = way.switch
        origin, frame, _ = item
        if node is None:
            if self._blocked and (origin, way.port) in self._blocked:
                self.blocked_frames += 1
            else:
                self._departures.append(Departure(now, way.port, frame))
            return
        at = self._at
        for port in node.switch.forward(way.port, frame[at : at + 6], frame[at + 6 : at + 12], now):
            out = node.ways.get(port)
            if out is None:
                continue
            if node.program is None:
                self._enter(out, item, now)
                continue
            changed = node.program.run(frame, at, out.line.waiting(now))
            if changed is None:
                self.programmed_drops += 1
            else:
                size = vnet.wire_bytes(changed) if at else len(changed)
                self._enter(out, (origin, changed, size), now)

    def _damage(self, item: _Item, random: Random) -> _Item:
        """Flip one bit of the Ethernet frame. A checksum left to be done is done first, or nobody could
        notice."""
        origin, whole, size = item
        frame = bytearray(vnet.finish_checksum(whole) if self._at else whole)
        bit = random.randrange(self._at * 8, len(frame) * 8)
        frame[bit // 8] ^= 1 << bit % 8
        return origin, bytes(frame), size
