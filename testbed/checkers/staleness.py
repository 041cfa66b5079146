"""C3, bounded staleness: nothing is delivered under an epoch that is not owned, senders turn to a new epoch at once,
and to an owner that has not confirmed itself for a lease no more than one frame is sent."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping

from testbed import frames
from testbed.checkers.captures import Ack, Captures, Control, Data
from testbed.checkers.emulation import lateness
from testbed.checkers.expectations import Expectations
from testbed.checkers.result import CheckResult, Findings, percentile
from testbed.history import CLOCK_STEP, FOREVER, History, Stream, Tenure

SLACK = 50_000_000
"""What a process may take (ns) from the moment when a frame has reached its node until what follows from it is on the
wire, when two cores are shared by all nodes."""
ANSWER_WITHIN = 1_000_000_000
"""How long (ns) the refusal of a stale frame may take before it counts as none."""
CLOCK = 5_000_000
"""Stamps of journals and captures are of one clock, taken at slightly different places: they agree within this (ns)."""


Pauses = dict[str, list[tuple[int, int]]]
"""Node -> when a fault kept its process from running, ns."""


def check_staleness(history: History, captures: Captures, expected: Expectations) -> CheckResult:
    """Judge deliveries by the journals, and senders by what left their nodes."""
    found = Findings("staleness", lateness(history, expected))
    if not expected.connex:
        return found.skipped(f"the workload ran on {expected.adapter}")
    judged = _deliveries(history, found)
    pauses = _pauses(history)
    news, said, opened = _News(history, captures), _said(captures), _opened(captures)
    late: list[int] = []
    answers: list[int] = []
    for stream in history.streams.values():
        late += _turning(captures, stream, news, pauses, found)
        answers += _refusals(history, captures, stream, said, pauses, found)
        _lease(captures, stream, opened, expected.lease, found)
    found.measurements |= {"deliveries": judged, "frames_refused": len(history.records("frame.refused"))}
    for name, times in (("late_frames", late), ("answers_to_stale_frames", answers)):
        found.measurements[name] = len(times)
        if times:
            found.measurements |= {f"{name}_p50_ns": percentile(times, 0.5), f"{name}_max_ns": max(times)}
    _doubts(history, captures, found)
    return found.result(
        f"{judged} deliveries, all under owned epochs; {len(answers)} stale frames answered", exercised=judged > 0
    )


def _doubts(history: History, captures: Captures, found: Findings) -> None:
    for what in history.missing:
        found.doubt(f"missing evidence: {what}", "the run folder")
    if not captures.files:
        found.doubt("no captures: what senders sent cannot be judged", "captures")
    nodes = {life.node for life in history.lives}
    if captures.files and not captures.complete(nodes):
        lacking = sorted(nodes - captures.trusted)
        found.doubt(
            f"the captures of {', '.join(lacking)} are not whole: what those nodes sent cannot all be judged",
            "captures",
        )


def _deliveries(history: History, found: Findings) -> int:
    """Every delivery lies in the time in which its life owned that epoch and served."""
    owners: dict[tuple[str, int, int], Tenure] = {}
    for endpoint, tenures in history.tenures.items():
        for tenure in tenures:
            owners[endpoint, tenure.epoch, tenure.life.index] = tenure
    judged = 0
    clocks = [f"the clock of {life.name} went back" if life.stepped_back > CLOCK_STEP else "" for life in history.lives]
    for stream in history.streams.values():
        for message in stream.delivered:
            judged += 1
            owner = owners.get((stream.receiver, message.epoch, message.life))
            node = history.lives[message.life].node
            if owner is None:
                what = f"{node} delivered message {message.number} under epoch {message.epoch}, which it never owned"
                found.fail(what, stream.name, message)
            elif not owner.begin <= message.t <= owner.end:
                what = f"{node} delivered message {message.number} when it did not own epoch {message.epoch}"
                evidence: dict[str, object] = {"message": message, "owned": (owner.begin, owner.end)}
                found.unless(clocks[message.life], what, stream.name, evidence)
            elif any(begin < message.t < end for begin, end in owner.frozen):
                what = f"{node} delivered message {message.number} although it was frozen for a handover"
                evidence = {"message": message, "frozen": owner.frozen}
                found.unless(clocks[message.life], what, stream.name, evidence)
    return judged


def _pauses(history: History) -> Pauses:
    """Node -> when a fault kept its process from running."""
    begun: dict[object, tuple[str, int]] = {}
    pauses: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in history.all("fault.begun", "fault.healed", "fault.target-gone"):
        if event["event"] == "fault.begun":
            node = event.get("node") or _owner(history, event.get("owner_of", ""), event["t"])
            if event.get("kind") == "pause" and node:
                begun[event["id"]] = (node, event["t"])
        elif event["id"] in begun:
            node, at = begun.pop(event["id"])
            pauses[node].append((at, event["t"]))
    for node, at in begun.values():
        pauses[node].append((at, FOREVER))
    return pauses


def _turning(captures: Captures, stream: Stream, news: _News, pauses: Pauses, found: Findings) -> list[int]:
    """How long senders of this stream went on under an epoch after they had learned of a newer one; late is a fail.

    Frames that can have waited in the sender's kernel since before that prove nothing: their message had been written,
    and no segment was begun since then while all before it was acknowledged.
    """
    role = captures.sent.get(stream.id)
    if role is None or not stream.receiver:
        return []
    turns = []
    late: dict[tuple[str, int], Data] = {}
    written = {message.number: message.t for message in stream.sent}
    for row in role.data:
        node = captures.node(row.channel)
        for epoch, (at, round_trip) in news.learned(stream, node).items():
            if row.destination_epoch >= epoch or row.begun <= at:
                continue
            given = max(row.drained, written.get(row.message, 0))
            if given <= at + round_trip + SLACK + _paused(pauses.get(node, ()), at, row.begun):
                turns.append(row.begun - at)
            else:
                late.setdefault((node, epoch), row)
    for (node, epoch), row in late.items():
        found.overdue(
            f"{node} sent under epoch {row.destination_epoch} of {stream.receiver} more than a round trip after it had"
            f" learned of epoch {epoch}",
            f"{stream.name}; {captures.where(row.channel)}",
            row,
        )
    return turns


class _News:
    """Where and when a newer epoch of an endpoint became known: by the node's own record ``binding.learned``, or by an
    ANNOUNCE or STALE frame that had reached it."""

    def __init__(self, history: History, captures: Captures) -> None:
        self._captures = captures
        self._of_endpoint: dict[tuple[str, str], dict[int, tuple[int, int]]] = defaultdict(dict)
        self._stale: dict[str, list[Control]] = defaultdict(list)
        self._cache: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}
        self._promised = _promises(history)
        self._void = {
            (endpoint, tenure.epoch)
            for endpoint, tenures in history.tenures.items()
            for tenure in tenures
            if tenure.void is not None
        }
        for life, record in history.records("binding.learned"):
            _earliest(self._of_endpoint[life.node, record["endpoint"]], record["epoch"], record["t"], 0)
        for control in captures.controls:
            if captures.channels[control.channel].outbound or not control.body:
                continue
            if control.header.type == frames.ANNOUNCE:
                binding = control.body["binding"]
                node = captures.node(control.channel)
                at = self._free(node, binding.endpoint, binding.epoch, control.time)
                _earliest(self._of_endpoint[node, binding.endpoint], binding.epoch, at, 0)
            elif control.header.type == frames.STALE:
                self._stale[f"{control.header.stream:016x}"].append(control)

    def learned(self, stream: Stream, node: str) -> dict[int, tuple[int, int]]:
        """Epoch of the receiver -> when the node had learned of it, and the round trip of the frame that brought it."""
        key = (stream.id, node)
        if key not in self._cache:
            self._cache[key] = self._learn(stream, node)
        return self._cache[key]

    def _learn(self, stream: Stream, node: str) -> dict[int, tuple[int, int]]:
        captures = self._captures
        learned = dict(self._of_endpoint.get((node, stream.receiver), {}))
        for stale in self._stale.get(stream.id, ()):
            binding = stale.body["binding"]
            if (
                captures.node(stale.channel) != node
                or stale.body["refused"] != 1
                or binding.endpoint != stream.receiver
            ):
                continue
            peer, epoch = captures.peer(stale.channel), stale.header.destination_epoch
            first = min(
                (
                    row.begun
                    for row in captures.sent[stream.id].data
                    if row.destination_epoch == epoch and captures.peer(row.channel) == peer
                ),
                default=stale.time,
            )
            if binding.epoch:
                at = self._free(node, stream.receiver, binding.epoch, stale.time)
                _earliest(learned, binding.epoch, at, max(0, stale.time - first))
        return learned

    def _free(self, node: str, endpoint: str, epoch: int, at: int) -> int:
        """When the node may follow what it was told: not before a promise has ended, never to an epoch that is void."""
        if (endpoint, epoch) in self._void:
            return FOREVER
        held = [end for begin, end in self._promised.get((node, endpoint, epoch), ()) if begin <= at <= end]
        return max([at, *held])


def _promises(history: History) -> dict[tuple[str, str, int], list[tuple[int, int]]]:
    """(node, endpoint, epoch) -> when the node was bound not to follow it, ns."""
    promised: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for life, record in history.records("fence.promised", "fence.lifted", "fence.broken"):
        held = promised[life.node, record["endpoint"], record["epoch"]]
        if record["event"] == "fence.promised":
            held.append((record["t"], FOREVER))
        elif held:
            held[-1] = (held[-1][0], record["t"])
    return promised


def _earliest(learned: dict[int, tuple[int, int]], epoch: int, at: int, round_trip: int) -> None:
    if epoch not in learned or sum(learned[epoch]) > at + round_trip:
        learned[epoch] = (at, round_trip)


def _refusals(
    history: History,
    captures: Captures,
    stream: Stream,
    said: dict[tuple[str, str], list[int]],
    pauses: Pauses,
    found: Findings,
) -> list[int]:
    """A frame under an epoch that its receiver does not own is answered. Returns how long each answer took, ns."""
    role = captures.arrived.get(stream.id)
    if role is None or not stream.receiver:
        return []
    took = []
    told: set[tuple[str, int]] = set()
    for row in role.data:
        node = captures.node(row.channel)
        if _owns(history, stream.receiver, node, row) or (node, row.destination_epoch) in told:
            continue
        answers = said.get((node, stream.id), [])
        answer = next((at for at in answers[bisect_left(answers, row.time - CLOCK) :]), None)
        until = _deadline(pauses.get(node, ()), row.time, ANSWER_WITHIN)
        alive = any(
            life.node == node and life.begin <= row.time and min(life.ended, history.end) > until
            for life in history.lives
        )
        if answer is not None and answer <= until:
            took.append(max(0, answer - row.time))
        elif alive and not captures.channels[row.channel].flow.ended:
            told.add((node, row.destination_epoch))
            found.overdue(
                f"{node} got a frame for {stream.receiver} under epoch {row.destination_epoch}, which it does not own,"
                f" and did not answer within {ANSWER_WITHIN / 1e9:g} s",
                f"{stream.name}; {captures.where(row.channel)}",
                row,
            )
    return took


def _owns(history: History, endpoint: str, node: str, row: Data) -> bool:
    return any(
        tenure.life.node == node
        and tenure.epoch == row.destination_epoch
        and tenure.begin - CLOCK <= row.time <= tenure.end + CLOCK
        for tenure in history.tenures.get(endpoint, ())
    )


def _said(captures: Captures) -> dict[tuple[str, str], list[int]]:
    """(node, stream) -> when the node sent a STALE, RESET or ACK of the stream, sorted."""
    said: dict[tuple[str, str], list[int]] = defaultdict(list)
    for control in captures.controls:
        if control.header.type in (frames.STALE, frames.RESET) and captures.channels[control.channel].outbound:
            said[captures.node(control.channel), f"{control.header.stream:016x}"].append(control.time)
    for stream, role in captures.sent.items():
        for ack in role.acks:
            said[captures.node(ack.channel), stream].append(ack.time)
    for times in said.values():
        times.sort()
    return said


def _owner(history: History, endpoint: str, at: int) -> str:
    """The node that owned the endpoint at that time."""
    owners = [tenure.life.node for tenure in history.tenures.get(endpoint, ()) if tenure.begin <= at <= tenure.end]
    return owners[-1] if owners else ""


def _deadline(pauses: Iterable[tuple[int, int]], begin: int, allowed: int) -> int:
    """When a node has been running for ``allowed`` ns since ``begin``."""
    until = begin + allowed
    for at, end in sorted(pauses):
        if end > begin and at < until:
            until += end - max(begin, at)
    return until


def _paused(pauses: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    return sum(max(0, min(end, until) - max(begin, at)) for at, until in pauses)


def _opened(captures: Captures) -> dict[tuple[str, str, int, int], int]:
    """(stream, node, destination epoch, sender epoch) -> when that node first sent an OPEN."""
    opened: dict[tuple[str, str, int, int], int] = {}
    for control in captures.controls:
        if control.header.type == frames.OPEN and captures.channels[control.channel].outbound:
            header = control.header
            node = captures.node(control.channel)
            key = (f"{header.stream:016x}", node, header.destination_epoch, header.sender_epoch)
            opened[key] = min(control.time, opened.get(key, FOREVER))
    return opened


def _lease(
    captures: Captures, stream: Stream, opened: dict[tuple[str, str, int, int], int], lease: int, found: Findings
) -> None:
    """To an owner that has not confirmed itself for a lease at most one frame is in flight."""
    sent, arrived = captures.sent.get(stream.id), captures.arrived.get(stream.id)
    if sent is None:
        return
    # An endpoint that comes back to a node begins anew there: by tenure of the sender, too.
    rows: dict[tuple[str, int, int], list[Data]] = defaultdict(list)
    for row in sent.data:
        rows[captures.node(row.channel), row.destination_epoch, row.sender_epoch].append(row)
    acks: dict[tuple[str, int], list[Ack]] = defaultdict(list)
    for ack in arrived.acks if arrived else ():
        acks[captures.node(ack.channel), ack.sender_epoch].append(ack)
    written = {message.number: message.t for message in stream.sent}
    for (node, epoch, own), group in rows.items():
        group.sort(key=lambda row: row.begun)
        watch = _Confirmed(lease, opened.get((stream.id, node, epoch, own), group[0].begun), written)
        for row in watch.violations(group, acks.get((node, epoch), [])):
            found.overdue(
                f"{node} had more than one frame in flight to an owner (epoch {epoch}) not confirmed for"
                f" {lease / 1e6:g} ms",
                f"{stream.name}; {captures.where(row.channel)}",
                row,
            )


class _Confirmed:
    """Follows one stream to one owner: when what was last confirmed had been sent, and what is in flight since."""

    def __init__(self, lease: int, begun: int, written: Mapping[int, int]) -> None:
        """``written``: message -> when the application handed it over."""
        self._lease = lease
        self._written = written
        self._confirmed = begun
        """When the last frame that was confirmed had been sent."""
        self._received = 0
        self._flight: dict[int, Data] = {}
        self._repeated = begun
        """When a frame was last sent that the owner had had already, as a sender does that has just arrived with its
        endpoint: the next acknowledgement may answer it."""

    def violations(self, rows: list[Data], acks: list[Ack]) -> list[Data]:
        """The first frame of each offence. ``rows`` in the order of time."""
        found: list[Data] = []
        offending = False
        waiting = iter(sorted(acks, key=lambda ack: ack.time))
        ack = next(waiting, None)
        for row in rows:
            while ack is not None and ack.time <= row.begun:
                self._acknowledge(ack)
                ack = next(waiting, None)
            limit = self._confirmed + self._lease + SLACK
            # Going back gives up what was sent beyond; only a frame ahead of one that is in flight makes two.
            # A frame may have been given to the channel as early as its message was written, and have waited there.
            given = row.drained if row.flags & frames.RETRANSMIT else self._written.get(row.message, row.drained)
            ahead = min(given, row.drained) > limit and any(
                at < row.offset and one.begun > limit for at, one in self._flight.items()
            )
            if ahead and not offending:
                found.append(row)
            offending = ahead
            if row.stop > self._received:
                self._flight[row.offset] = row
            else:
                self._repeated = row.begun
        return found

    def _acknowledge(self, ack: Ack) -> None:
        self._received = max(self._received, ack.received)
        self._confirmed = max(self._confirmed, self._repeated)
        for at in [at for at, row in self._flight.items() if row.stop <= self._received]:
            self._confirmed = max(self._confirmed, self._flight.pop(at).begun)
        if ack.flags & frames.RETRANSMIT:
            self._flight.clear()
