"""Never two owners: one life per epoch, serving one after the other, and what they delivered tiles every stream."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from testbed.checkers.captures import Ack, Captures
from testbed.checkers.expectations import Expectations
from testbed.checkers.result import CheckResult, Findings
from testbed.history import History, Message, Stream, Tenure


def check_ownership(history: History, captures: Captures, expected: Expectations) -> CheckResult:
    """Judge ownership by the journals, and once more by the ACK frames and the moved state in the captures."""
    found = Findings("ownership")
    if not expected.connex:
        return found.skipped(f"the workload ran on {expected.adapter}")
    active = _activity(history)
    for endpoint, tenures in history.tenures.items():
        _one_owner(endpoint, tenures, found)
        for earlier, later in pairwise(tenures):
            if earlier.epoch != later.epoch:
                _succession(earlier, later, active, found)
    for stream in history.streams.values():
        if stream.void:
            found.fail(
                f"{len(stream.void)} messages were sent or delivered under an epoch of a handover that its source took"
                " back: the stream was served twice",
                stream.name,
                stream.void[0],
            )
    moves = sum(_tiles(history, stream, found) for stream in history.streams.values())
    acknowledged = _tiles_on_the_wire(history, captures, found)
    for what in history.missing:
        found.doubt(f"missing evidence: {what}", "the run folder")
    found.measurements |= {
        "endpoints": len(history.tenures),
        "owners": sum(len(tenures) for tenures in history.tenures.values()),
        "moves_of_streams": moves,
        "streams_acknowledged_on_the_wire": acknowledged,
    }
    if not captures.files:
        found.doubt("no captures: acknowledgements on the wire cannot be judged", "captures")
    delivered = any(stream.delivered for stream in history.streams.values())
    return found.result(
        f"{found.measurements['owners']} owners of {len(history.tenures)} endpoints, one at a time; deliveries tile",
        exercised=bool(history.tenures) and delivered,
        nothing="no endpoint was owned and delivered anything",
    )


def _activity(history: History) -> dict[tuple[str, int, int], int]:
    """(endpoint, epoch, life) -> when it last sent or delivered anything."""
    last: dict[tuple[str, int, int], int] = defaultdict(int)
    for stream in history.streams.values():
        for endpoint, messages in ((stream.sender, stream.sent), (stream.receiver, stream.delivered)):
            for message in messages:
                key = (endpoint, message.epoch, message.life)
                last[key] = max(last[key], message.t)
    return last


def _one_owner(endpoint: str, tenures: list[Tenure], found: Findings) -> None:
    for first, second in pairwise(tenures):
        if first.epoch == second.epoch:
            found.fail(
                f"{endpoint}: epoch {first.epoch} was owned by {first.life.name} and by {second.life.name}",
                str(second.life.path.name),
                {"first_hosted": first.begin, "second_hosted": second.begin},
            )


def _succession(earlier: Tenure, later: Tenure, active: dict[tuple[str, int, int], int], found: Findings) -> None:
    """``later`` has the next epoch that anybody owned."""
    endpoint = later.endpoint
    where = f"{endpoint}, epoch {earlier.epoch} at {earlier.life.name} and {later.epoch} at {later.life.name}"
    if later.begin < earlier.begin:
        found.fail(f"{endpoint}: epoch {later.epoch} began before epoch {earlier.epoch}", where)
        return
    acted = active.get((endpoint, earlier.epoch, earlier.life.index), 0)
    # A handover stops its source first. Otherwise an owner may sleep without knowing that it was replaced; what
    # counts then is whether it did anything.
    # What is void had to reach nobody but the streams that were given up; that is judged stream by stream.
    until = max(acted, earlier.served_until) if later.cause == "handover" else 0 if earlier.void else acted
    if until > later.begin:
        found.fail(
            f"{endpoint}: {earlier.life.node} served under epoch {earlier.epoch} until"
            f" {(until - later.begin) / 1e6:.3f} ms after {later.life.node} had begun under epoch {later.epoch}",
            where,
            {"served_until": until, "next_began": later.begin},
        )
    if later.cause == "handover" and later.epoch != earlier.epoch + 1:
        found.fail(f"{endpoint}: a handover from epoch {earlier.epoch} led to epoch {later.epoch}", where)


def _tiles(history: History, stream: Stream, found: Findings) -> int:
    """What successive owners delivered covers the stream from 0 on, each byte once. Returns the moves."""
    parts: dict[int, list[Message]] = defaultdict(list)
    for message in stream.delivered:
        parts[message.epoch].append(message)
    arrived = {moved.epoch: moved for moved in stream.moved if moved.side == "receiver"}
    number = offset = 0
    for epoch in sorted(parts.keys() | arrived.keys()):
        moved = arrived.get(epoch)
        part = parts.get(epoch, [])
        begin = (moved.message, moved.offset) if moved else (part[0].number, part[0].offset)
        if begin != (number, offset):
            _not_tiling(history, stream, epoch, begin, (number, offset), found)
        if part:
            if moved and (part[0].number, part[0].offset) != begin:
                found.fail(
                    f"epoch {epoch} took the stream over at message {begin[0]}, offset {begin[1]}, and delivered first"
                    f" message {part[0].number}, offset {part[0].offset}",
                    stream.name,
                    part[0],
                )
            number, offset = part[-1].number + 1, part[-1].end
        else:
            number, offset = begin
    return len(arrived)


def _not_tiling(
    history: History, stream: Stream, epoch: int, begin: tuple[int, int], until: tuple[int, int], found: Findings
) -> None:
    kind = "a gap" if begin > until else "an overlap"
    what = (
        f"{kind}: epoch {epoch} begins at message {begin[0]}, offset {begin[1]}; before it delivery went up to message"
        f" {until[0]}, offset {until[1]}"
    )
    found.unless(history.gaps(history.lives_of(stream.receiver)) if begin > until else "", what, stream.name)


def _tiles_on_the_wire(history: History, captures: Captures, found: Findings) -> int:
    """The same from the captures alone: acknowledgements under each epoch, between the cursors that moved."""
    transfers = captures.handovers | {
        record["handover"] for _, record in history.records("handover.begun", "handover.prepared")
    }
    owners = {(endpoint, tenure.epoch): tenure for endpoint, tenures in history.tenures.items() for tenure in tenures}
    committed = {record["handover"] for _, record in history.records("handover.committed")}
    cursors = {
        (f"{cursor.stream:016x}", state.epoch + 1): cursor.offset
        for state in captures.states
        if state.handover in committed
        for cursor in state.cursors
        if cursor.inbound
    }
    seen = 0
    for stream, role in captures.sent.items():
        if stream in transfers or not role.acks:
            continue
        seen += 1
        known = history.streams.get(stream)
        epochs: dict[int, list[Ack]] = defaultdict(list)
        for ack in role.acks:
            epochs[ack.sender_epoch].append(ack)
            tenure = owners.get((known.receiver, ack.sender_epoch)) if known else None
            node = captures.node(ack.channel)
            if known and known.receiver and (tenure is None or tenure.life.node != node):
                owner = tenure.life.node if tenure else "nobody"
                what = f"{known.name}: {node} acknowledged under epoch {ack.sender_epoch}, which {owner} owned"
                found.unless("" if tenure else history.gaps(history.lives), what, captures.where(ack.channel), ack)
        _compare_epochs(stream, epochs, cursors, found)
    return seen


def _compare_epochs(
    stream: str, epochs: dict[int, list[Ack]], cursors: dict[tuple[str, int], int], found: Findings
) -> None:
    highest = 0
    previous = 0
    for epoch in sorted(epochs):
        acks = epochs[epoch]
        lowest = min(ack.offset for ack in acks)
        if previous and lowest < highest:
            found.fail(
                f"an overlap on the wire: offset {lowest} was acknowledged under epoch {epoch},"
                f" after {highest} under epoch {previous}",
                f"stream {stream}",
                min(acks, key=lambda ack: ack.offset),
            )
        cursor = cursors.get((stream, epoch))
        if cursor is not None and not highest <= cursor <= lowest:
            found.fail(
                f"the stream moved to epoch {epoch} with offset {cursor}; acknowledged were {highest} before,"
                f" {lowest} after",
                f"stream {stream}",
            )
        highest = max(highest, *(ack.offset for ack in acks))
        previous = epoch
