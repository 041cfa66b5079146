"""Capture against history: what the wire shows and what the nodes say they did must be one story."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from testbed import frames
from testbed.checkers.captures import Ack, Captures, Control, Payload, Role
from testbed.checkers.expectations import Expectations
from testbed.checkers.result import CheckResult, Findings
from testbed.checkers.staleness import CLOCK
from testbed.history import History, Life, Message, Stream


def check_capture(history: History, captures: Captures, expected: Expectations) -> CheckResult:
    """Compare both ways: nothing crossed that the journals do not have, and the other way round."""
    found = Findings("capture-against-history")
    if not expected.connex:
        return found.skipped(f"the workload ran on {expected.adapter}")
    for where, what in captures.malformed:
        found.fail(f"not a frame of docs/wire.md: {what}", where)
    _who_speaks(history, captures, found)
    _openings(history, captures, found)
    counts = _Counts()
    transfers = captures.handovers | {
        record["handover"] for _, record in history.records("handover.begun", "handover.prepared")
    }
    for name in sorted(captures.sent.keys() | captures.arrived.keys() | history.streams.keys()):
        if name not in transfers:
            _Compared(history, captures, name, found, counts).all()
    _doubts(history, captures, found)
    found.measurements |= {
        "frames": captures.frames,
        "channels": len(captures.channels),
        "payloads_compared": counts.payloads,
        "acknowledgements_compared": counts.acks,
        "deliveries_seen_arriving": counts.arrived,
        "deliveries_within_a_node": counts.local,
        "deliveries_moved_with_state": counts.moved,
    }
    return found.result(
        f"{counts.payloads} payloads and {counts.acks} acknowledgements on the wire agree with the journals",
        exercised=counts.payloads > 0 and counts.acks > 0,
        nothing="no Connex messages were captured",
    )


class _Counts:
    def __init__(self) -> None:
        self.payloads = self.acks = self.arrived = self.local = self.moved = 0


def _doubts(history: History, captures: Captures, found: Findings) -> None:
    if not captures.files:
        found.doubt("there are no captures", "captures")
    for node in sorted({life.node for life in history.lives} - captures.trusted):
        problems = [
            f"{file.name}: {problem}" for file in captures.files if file.node == node for problem in file.problems
        ]
        found.doubt(
            f"the capture of {node} is not whole: {problems[0] if problems else 'there is none'}", "captures", problems
        )
    for what in history.missing:
        found.doubt(f"missing evidence: {what}", "the run folder")


def _who_speaks(history: History, captures: Captures, found: Findings) -> None:
    """Who says HELLO from an address is the node that has it, in a life that its journal knows."""
    for control in captures.controls:
        channel = captures.channels[control.channel]
        if control.header.type != frames.HELLO or not control.body:
            continue
        speaker = channel.node if channel.outbound else channel.peer
        node, incarnation = control.body["node"], control.body["incarnation"]
        if speaker and node != speaker:
            found.fail(f"{node} says HELLO from an address of {speaker}", channel.name, control)
        elif history.life(node, incarnation) is None:
            what = f"HELLO of {node} in life {incarnation:016x}, of which there is no journal"
            found.unless(history.gaps(()), what, channel.name, control)


def _openings(history: History, captures: Captures, found: Findings) -> None:
    """An OPEN says what the journals say of its stream; opening one between nodes takes an OPEN."""
    arrived: dict[str, set[str]] = defaultdict(set)
    for control in captures.controls:
        if control.header.type != frames.OPEN or not control.body:
            continue
        name = f"{control.header.stream:016x}"
        channel = captures.channels[control.channel]
        if not channel.outbound:
            arrived[name].add(channel.node)
        stream = history.streams.get(name)
        if stream is not None and stream.opened:
            _compare_opening(stream, control, channel.name, found)
        _owner_speaks(history, control, channel.node if channel.outbound else channel.peer, channel.name, found)
    for stream in history.streams.values():
        for opened in stream.opened:
            node = history.lives[opened.life].node
            if opened.side != "receiver" or _shared(history, stream, opened.t, node) or node in arrived[stream.id]:
                continue
            if captures.complete([node]):
                found.fail(f"{node} says it was opened, but no OPEN arrived there", stream.name, opened)


def _compare_opening(stream: Stream, control: Control, where: str, found: Findings) -> None:
    body, known = control.body, stream.opened[0]
    wire = (body["from"], body["to"], frames.CLASSES[body["class"]] if body["class"] < 4 else "?", body["label"])
    if wire != (known.sender, known.receiver, known.traffic_class, known.label):
        found.fail(f"OPEN says {wire}: the journals say {known[3:7]}", where, control)


def _owner_speaks(history: History, control: Control, node: str, where: str, found: Findings) -> None:
    """Whoever opens a stream owns the sending endpoint under the epoch in the frame, or did until just now."""
    endpoint, epoch = control.body["from"], control.header.sender_epoch
    tenures = history.tenures.get(endpoint, ())
    if node and not any(tenure.epoch == epoch and tenure.life.node == node for tenure in tenures):
        what = f"{node} opens a stream for {endpoint} under epoch {epoch}, which it never owned"
        found.unless(history.gaps(life for life in history.lives if life.node == node), what, where, control)


def _shared(history: History, stream: Stream, at: int, node: str) -> bool:
    """Whether the sender's endpoint was on the same node at that time, so that nothing needed to cross the wire."""
    return any(
        tenure.life.node == node and tenure.begin <= at <= tenure.end
        for tenure in history.tenures.get(stream.sender, ())
    )


class _Line(NamedTuple):
    """How far delivery under one epoch, and before it, had come."""

    reached: dict[int, tuple[int, int]]
    """Messages delivered -> bytes delivered by then, and when."""
    messages: int
    """Delivered in the end."""


class _Compared:
    """One stream, on the wire and in the journals."""

    def __init__(self, history: History, captures: Captures, name: str, found: Findings, counts: _Counts) -> None:
        self._history = history
        self._captures = captures
        self._id = name
        self._stream = history.streams.get(name)
        self._found = found
        self._counts = counts
        self._sent = {message.number: message for message in self._stream.sent} if self._stream else {}
        self._name = self._stream.name if self._stream else f"stream {name}"
        self._out = captures.sent.get(name, Role())
        self._in = captures.arrived.get(name, Role())

    def all(self) -> None:
        for role in (self._out, self._in):
            self._ranges(role)
            self._payloads(role.payloads)
        self._acknowledgements()
        if self._stream is not None:
            self._arrivals(self._stream)

    def _gaps(self, side: str) -> str:
        """What keeps the journals of one end from proving that something was not."""
        endpoint = getattr(self._stream, side, "")
        return self._history.gaps(self._history.lives_of(endpoint) if endpoint else self._history.lives)

    def _ranges(self, role: Role) -> None:
        """Every DATA frame carries bytes of a message that was sent before, at its place in the stream."""
        told: set[int] = set()
        for row in role.data:
            sent = self._sent.get(row.message)
            if row.message in told:
                continue
            problem = ""
            if row.flags & frames.FIN:
                total = (len(self._sent), max((message.end for message in self._sent.values()), default=0))
                if (row.message, row.offset) != total:
                    problem = (
                        f"FIN at message {row.message}, offset {row.offset}: {total[0]} messages up to offset"
                        f" {total[1]} were sent"
                    )
            elif sent is None:
                problem = f"message {row.message} is on the wire, but no journal says that it was sent"
            elif row.end != sent.end or row.offset < sent.offset:
                problem = (
                    f"message {row.message} is on the wire as bytes [{row.offset}, {row.end}): it was sent as"
                    f" [{sent.offset}, {sent.end})"
                )
            elif row.time < sent.t - CLOCK:
                problem = f"message {row.message} was on the wire {(sent.t - row.time) / 1e6:.1f} ms before it was sent"
            if problem:
                told.add(row.message)
                where = f"{self._name}; {self._captures.where(row.channel)}"
                absent = sent is None or row.flags & frames.FIN
                self._found.unless(self._gaps("sender") if absent else "", problem, where, row)

    def _payloads(self, payloads: Iterable[Payload]) -> None:
        """Bytes on the wire are the bytes that were sent."""
        for payload in payloads:
            sent = self._sent.get(payload.message)
            if sent is None or payload.start != sent.offset:
                continue
            self._counts.payloads += 1
            if payload.hash != sent.hash:
                self._found.fail(
                    f"message {payload.message} was on the wire with other bytes than were sent",
                    f"{self._name}; {self._captures.where(payload.channel)}",
                    {"sent": sent._asdict(), "captured": payload._asdict()},
                )

    def _acknowledgements(self) -> None:
        """Nobody acknowledges what its journal does not show as delivered at that time, and nobody takes it back."""
        if self._stream is None:
            if self._out.acks:
                what = "acknowledged on the wire, but no journal knows it"
                self._found.unless(self._gaps("receiver"), what, self._name, self._out.acks[0])
            return
        stream = self._stream
        lines: dict[int, _Line] = {}
        highest: dict[int, int] = {}
        for ack in self._out.acks:
            self._counts.acks += 1
            line = lines.get(ack.sender_epoch)
            if line is None:
                line = lines[ack.sender_epoch] = _line(stream, ack.sender_epoch)
            problem = _disagreement(ack, line)
            if ack.offset < highest.get(ack.channel, 0):
                problem = f"acknowledges up to {ack.offset} after it had acknowledged up to {highest[ack.channel]}"
            highest[ack.channel] = max(ack.offset, highest.get(ack.channel, 0))
            if problem:
                where = f"{self._name}; {self._captures.where(ack.channel)}"
                self._found.unless(self._gaps("receiver"), problem, where, ack)
                return

    def _arrivals(self, stream: Stream) -> None:
        """What a node delivered had reached it: in frames under the epoch that it owned, or with state."""
        if not stream.delivered:
            return
        pieces = _Pieces(self._captures, self._in, self._id)
        for message in stream.delivered:
            life = self._history.lives[message.life]
            if pieces.cover(life.node, message):
                self._counts.arrived += 1
            elif pieces.moved(life.node, message):
                self._counts.moved += 1
            elif self._within_a_node(stream, life, message):
                self._counts.local += 1
            elif self._captures.complete([life.node]):
                self._found.fail(
                    f"{life.node} says that it delivered message {message.number} under epoch {message.epoch},"
                    f" but it had not arrived there under that epoch",
                    stream.name,
                    message,
                )
                return

    def _within_a_node(self, stream: Stream, life: Life, message: Message) -> bool:
        """Whether the sender lived on the same node at some time between sending and delivery."""
        sent = self._sent.get(message.number)
        begin = sent.t if sent is not None else 0
        return any(
            tenure.life.node == life.node and tenure.begin <= message.t and tenure.end >= begin
            for tenure in self._history.tenures.get(stream.sender, ())
        )


def _line(stream: Stream, epoch: int) -> _Line:
    """Delivery under this epoch, after all that was delivered under earlier ones."""
    reached = {0: (0, 0)}
    for message in stream.delivered:
        if message.epoch <= epoch:
            reached.setdefault(message.number + 1, (message.end, message.t))
    return _Line(reached, max(reached))


def _disagreement(ack: Ack, line: _Line) -> str:
    """How an acknowledgement contradicts the journals; nothing if it does not."""
    if ack.received < ack.offset:
        return f"acknowledges {ack.offset} bytes as delivered and {ack.received} as received"
    end, due = line.reached.get(ack.message, (-1, 0))
    if end != ack.offset:
        there = f"message {ack.message - 1} ends at {end}" if end >= 0 else f"{line.messages} were delivered"
        return (
            f"acknowledges {ack.message} messages up to offset {ack.offset} under epoch {ack.sender_epoch}:"
            f" by the journals {there}"
        )
    if due > ack.time + CLOCK:
        return f"acknowledges message {ack.message - 1} {(due - ack.time) / 1e6:.1f} ms before it was delivered"
    return ""


class _Pieces:
    """The bytes of one stream that reached each node."""

    def __init__(self, captures: Captures, arrived: Role, stream: str) -> None:
        self._frames: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
        for row in arrived.data:
            key = (captures.node(row.channel), row.message)
            self._frames[key].append((row.offset, row.stop, row.destination_epoch))
        self._moved: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for state in captures.states:
            channel = captures.channels[state.channel]
            if channel.outbound:
                continue
            for cursor in state.cursors:
                if f"{cursor.stream:016x}" == stream and cursor.inbound:
                    for number, start, _, held in cursor.held:
                        self._moved[channel.node, number].append((start, start + len(held)))

    def cover(self, node: str, message: Message) -> bool:
        """Whether all of it arrived at the node in frames under the epoch under which it was delivered."""
        return _covered(
            message, [(a, b) for a, b, epoch in self._frames[node, message.number] if epoch == message.epoch]
        )

    def moved(self, node: str, message: Message) -> bool:
        """The same, where part of it, or all, came with the state of a handover."""
        state = self._moved[node, message.number]
        return bool(state) and _covered(
            message, [*state, *((a, b) for a, b, epoch in self._frames[node, message.number] if epoch == message.epoch)]
        )


def _covered(message: Message, parts: list[tuple[int, int]]) -> bool:
    at = message.offset
    for begin, stop in sorted(parts):
        if begin > at:
            break
        at = max(at, stop)
    return bool(parts) and at >= message.end
