"""The history of a run: what its nodes say they did, and what the testbed did to them.

Everything is read strictly, as ``docs/history.md`` has it: a line that is not a record there is an error with its file
and line. One thing is taken as it comes: a node that is killed may leave its last line unfinished.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from testbed.journal import HistoryError, Record, check_record, read_lines

__all__ = ["CLOCK_STEP", "FOREVER", "History", "HistoryError", "Life", "Message", "Record", "Stream", "Tenure", "load"]

FOREVER = 1 << 62
CLOCK_STEP = 1_000_000
"""Stamps may be a little out of order where a node has several threads; beyond this (ns) the clock is wrong."""


class Message(NamedTuple):
    """A message that was sent or delivered, as the node's journal has it. Times in ns, sizes in bytes."""

    t: int
    life: int
    """Index in ``History.lives``."""
    number: int
    offset: int
    size: int
    hash: str
    epoch: int

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(slots=True, eq=False)
class Life:
    """One life of a node's process, by its journal."""

    index: int
    node: str
    incarnation: str
    path: Path
    records: list[Record]
    cut: int = 0
    """Bytes of an unfinished last line."""
    stepped_back: int = 0
    """The most by which a record's stamp lies before an earlier one's, ns: more than a little is a broken clock."""
    status: int | None = None
    """Exit status as the testbed saw it (negative: the signal); None if it did not see an end."""
    ended: int = FOREVER
    """When the process was gone, by the testbed's clock, ns."""
    incomplete: str = ""
    """Why its journal cannot be the whole of it; empty if nothing speaks against that."""

    @property
    def begin(self) -> int:
        return int(self.records[0]["t"])

    @property
    def last(self) -> int:
        """Time of its last record: what it is known to have lived to see."""
        return int(self.records[-1]["t"])

    @property
    def name(self) -> str:
        return f"{self.node} ({self.incarnation})"


@dataclass(slots=True, eq=False)
class Tenure:
    """The time in which one life of a node owned an endpoint under one epoch. Times in ns."""

    endpoint: str
    epoch: int
    life: Life
    begin: int
    cause: str
    end: int = FOREVER
    released: str = ""
    """Why it ended; empty if no record says that it did."""
    frozen: list[tuple[int, int]] = field(default_factory=list)
    """Intervals in which it owned but did not serve."""
    void: Life | None = None
    """The life of the source that went on itself after a handover in doubt, under an epoch above this one: whatever was
    begun here does not count."""

    @property
    def served_until(self) -> int:
        """When it last may have served: the beginning of a freeze that was never lifted, the release, or the last thing
        that the life is known to have done."""
        if self.frozen and self.frozen[-1][1] == FOREVER:
            return self.frozen[-1][0]
        return min(self.end, self.life.last)


class Opened(NamedTuple):
    """One ``stream.opened``."""

    t: int
    life: int
    side: str
    sender: str
    receiver: str
    traffic_class: str
    label: str
    epoch: int


class Moved(NamedTuple):
    """One ``stream.moved``: the cursor with which a stream arrived under a new epoch."""

    t: int
    life: int
    side: str
    epoch: int
    message: int
    offset: int


class Ended(NamedTuple):
    """One ``stream.closed`` or ``stream.reset``."""

    t: int
    life: int
    side: str
    cause: str
    """Empty for a regular end."""
    messages: int
    offset: int


@dataclass(slots=True, eq=False)
class Stream:
    """All that is said of one stream, by whichever nodes its two ends were on.

    Messages are in the order of each journal, journal after journal; all else is in the order of time.
    """

    id: str
    opened: list[Opened] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    delivered: list[Message] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    void: list[Message] = field(default_factory=list)
    """What was sent or delivered on this stream under an epoch that is void, although its source went on with it."""

    @property
    def sender(self) -> str:
        """Endpoint that sends; empty if no journal says that the stream was opened."""
        return self.opened[0].sender if self.opened else ""

    @property
    def receiver(self) -> str:
        return self.opened[0].receiver if self.opened else ""

    @property
    def name(self) -> str:
        route = f" {self.sender} > {self.receiver} {self.opened[0].traffic_class}" if self.opened else ""
        return f"stream {self.id}{route}"


@dataclass(slots=True, eq=False)
class History:
    """One run, as told by its folder."""

    folder: Path
    run: Mapping[str, Any]
    """``resolved.json``"""
    schedule: list[Mapping[str, Any]]
    events: list[Record]
    events_cut: int
    lives: list[Life]
    streams: dict[str, Stream]
    tenures: dict[str, list[Tenure]]
    """Endpoint -> who owned it, by epoch and time."""
    missing: list[str]
    """Evidence that should be there and is not, in words."""
    lost: list[str]
    """Lives of which there is no journal at all: whatever is not said anywhere, they may have said."""

    @property
    def finished(self) -> int | None:
        """When all requests were answered, ns; None if the run was ended before."""
        stopped = self.first("traffic.stopped")
        return int(stopped["t"]) if stopped is not None and stopped.get("complete", True) else None

    @property
    def end(self) -> int:
        return max([int(event["t"]) for event in self.events] + [life.last for life in self.lives], default=0)

    def first(self, event: str) -> Record | None:
        """The first of the testbed's events of that name."""
        return next((one for one in self.events if one["event"] == event), None)

    def all(self, *events: str) -> list[Record]:
        """The testbed's events of these names, in order."""
        return [one for one in self.events if one["event"] in events]

    def records(self, *events: str) -> list[tuple[Life, Record]]:
        """What the nodes recorded under these names, in the order of time."""
        found = [(life, one) for life in self.lives for one in life.records if one["event"] in events]
        return sorted(found, key=lambda pair: pair[1]["t"])

    def lives_of(self, endpoint: str) -> list[Life]:
        """Every life that ever owned the endpoint."""
        return [tenure.life for tenure in self.tenures.get(endpoint, ())]

    def gaps(self, lives: Iterable[Life]) -> str:
        """Why it proves nothing that these lives, or anybody, do not say a thing; empty if it does."""
        if self.lost:
            return f"{self.lost[0]} is lost"
        return next((f"the journal of {life.name} is not whole" for life in lives if life.incomplete), "")

    def life(self, node: str, incarnation: int | str) -> Life | None:
        wanted = incarnation if isinstance(incarnation, str) else f"{incarnation:016x}"
        return next((life for life in self.lives if life.node == node and life.incarnation == wanted), None)


def load(folder: Path) -> History:
    """Read a run folder. Raises HistoryError."""
    run = _read_json(folder / "resolved.json", dict)
    schedule = _read_json(folder / "schedule.json", list) if (folder / "schedule.json").is_file() else []
    missing: list[str] = []
    events: list[Record] = []
    cut = 0
    if (folder / "events.jsonl").is_file():
        events, cut = read_lines(folder / "events.jsonl")
        for number, event in enumerate(events, 1):
            if not isinstance(event.get("t"), int) or not isinstance(event.get("event"), str):
                raise HistoryError(f"{folder / 'events.jsonl'}:{number}: no event: expected the fields t and event")
    else:
        missing.append("events.jsonl")
    lives = [
        _read_journal(path, index)
        for index, path in enumerate(sorted((folder / "nodes").glob("*/journal-*.jsonl")))
        if path.stat().st_size
    ]
    lives = [life for life in lives if life.records]
    for index, life in enumerate(lives):
        life.index = index
    lost = _match_processes(lives, events)
    missing += lost
    missing += [f"the end of the journal of {life.name}: {life.incomplete}" for life in lives if life.incomplete]
    streams, tenures = _streams(lives), _tenures(lives)
    _void(streams, tenures)
    return History(folder, run, schedule, events, cut, lives, streams, tenures, missing, lost)


def _read_json(path: Path, kind: type[Any]) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise HistoryError(f"{path}: missing: this is not the folder of a run") from error
    except ValueError as error:
        raise HistoryError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, kind):
        raise HistoryError(f"{path}: {type(content).__name__}: expected {kind.__name__}")
    return content


def _read_journal(path: Path, index: int) -> Life:
    records, cut = read_lines(path)
    node, incarnation = path.parent.name, path.stem.removeprefix("journal-")
    for number, record in enumerate(records, 1):
        problem = check_record(record)
        if not problem and record["node"] != node:
            problem = f"node {record['node']!r}: expected {node!r}, as the folder says"
        if problem:
            raise HistoryError(f"{path}:{number}: {problem}")
    life = Life(index, node, incarnation, path, records, cut, _stepped_back(records))
    if records and (records[0]["event"] != "node.started" or records[0]["incarnation"] != incarnation):
        raise HistoryError(f"{path}:1: expected node.started of incarnation {incarnation}")
    return life


def _stepped_back(records: list[Record]) -> int:
    latest = most = 0
    for record in records:
        if record["t"] >= latest:
            latest = record["t"]
        elif latest - record["t"] > most:
            most = latest - record["t"]
    return most


def _match_processes(lives: list[Life], events: list[Record]) -> list[str]:
    """Give each life its end, and see whether its journal goes up to it. Returns the journals that should be there."""
    lost = []
    by_pid = {(life.node, life.records[0]["pid"]): life for life in lives}
    running: dict[str, Life | None] = {}
    for event in events:
        if event["event"] == "node.started":
            life = by_pid.get((event["node"], event["pid"]))
            running[event["node"]] = life
            if life is None:
                lost.append(f"the journal of {event['node']}, pid {event['pid']}")
        elif event["event"] == "node.exited":
            life = by_pid.get((event["node"], event.get("pid", -1))) or running.get(event["node"])
            if life is not None:
                life.status, life.ended = event["status"], event["t"]
    for life in lives:
        stopped = life.records[-1]["event"] == "node.stopping"
        if life.cut and (life.status is None or life.status >= 0):
            life.incomplete = f"its last line is unfinished ({life.cut} bytes) although it was not killed"
        elif life.status == 0 and not any(one["event"] == "node.stopping" for one in life.records):
            life.incomplete = "it ended in order, but its journal does not go up to node.stopping"
        elif life.status is None and not stopped and events:
            life.incomplete = "nothing says how it ended"
    return lost


def _streams(lives: list[Life]) -> dict[str, Stream]:
    streams: dict[str, Stream] = {}

    def stream(record: Record) -> Stream:
        name = record["stream"]
        found = streams.get(name)
        if found is None:
            found = streams[name] = Stream(name)
        return found

    for life in lives:
        index = life.index
        for one in life.records:
            event = one["event"]
            if event == "message.delivered" or event == "message.sent":
                message = Message(
                    one["t"], index, one["message"], one["offset"], one["size"], one["hash"], one["epoch"]
                )
                (stream(one).delivered if event == "message.delivered" else stream(one).sent).append(message)
            elif event == "stream.opened":
                stream(one).opened.append(
                    Opened(
                        one["t"], index, one["side"], one["from"], one["to"], one["class"], one.get("label", ""),
                        one["epoch"],
                    )
                )  # fmt: skip
            elif event == "stream.moved":
                stream(one).moved.append(
                    Moved(one["t"], index, one["side"], one["epoch"], one["message"], one["offset"])
                )
            elif event == "stream.closed":
                stream(one).ended.append(Ended(one["t"], index, one["side"], "", one["messages"], one["offset"]))
            elif event == "stream.reset":
                stream(one).ended.append(Ended(one["t"], index, one["side"], one["cause"], -1, -1))
    for found in streams.values():
        # Messages stay in the order of the journals: it is what happened, whatever the stamps say.
        found.opened.sort(key=lambda entry: entry.t)
        found.moved.sort(key=lambda entry: entry.t)
        found.ended.sort(key=lambda entry: entry.t)
    return streams


def _tenures(lives: list[Life]) -> dict[str, list[Tenure]]:
    tenures: dict[str, list[Tenure]] = {}
    for life in lives:
        owned: dict[str, Tenure] = {}
        for one in life.records:
            event = one["event"]
            if event == "endpoint.hosted":
                tenure = owned[one["endpoint"]] = Tenure(one["endpoint"], one["epoch"], life, one["t"], one["cause"])
                tenures.setdefault(one["endpoint"], []).append(tenure)
            elif event in ("endpoint.frozen", "endpoint.thawed", "endpoint.resumed", "endpoint.released"):
                held = owned.get(one["endpoint"])
                epoch = one["epoch"] - 2 if event == "endpoint.resumed" else one["epoch"]
                if held is None or held.epoch != epoch:
                    raise HistoryError(
                        f"{life.path}: {event} of {one['endpoint']}, epoch {one['epoch']}, at {one['t']}:"
                        f" {life.node} does not own that"
                    )
                if event == "endpoint.frozen":
                    held.frozen.append((one["t"], FOREVER))
                elif event == "endpoint.thawed":
                    begun = held.frozen.pop()[0] if held.frozen else one["t"]
                    held.frozen.append((begun, one["t"]))
                elif event == "endpoint.resumed":
                    held.end, held.released = one["t"], "resumed"
                    tenure = owned[one["endpoint"]] = Tenure(one["endpoint"], one["epoch"], life, one["t"], "resumed")
                    tenures[one["endpoint"]].append(tenure)
                else:
                    held.end, held.released = one["t"], one["cause"]
                    del owned[one["endpoint"]]
        for tenure in owned.values():
            tenure.end = life.ended
    for found in tenures.values():
        found.sort(key=lambda tenure: (tenure.epoch, tenure.begin))
        for resumed in [tenure for tenure in found if tenure.cause == "resumed"]:
            for tenure in found:
                if tenure.epoch == resumed.epoch - 1 and tenure.life is not resumed.life:
                    tenure.void = resumed.life
    return tenures


def _void(streams: dict[str, Stream], tenures: dict[str, list[Tenure]]) -> None:
    """Take out of each stream what was done under an epoch that is void, unless the source gave the stream up: then it
    ended there.
    """
    for tenure in [one for found in tenures.values() for one in found if one.void is not None]:
        for stream in streams.values():
            if tenure.endpoint not in (stream.sender, stream.receiver):
                continue
            if any(end.cause == "handover-in-doubt" and end.life == tenure.void.index for end in stream.ended):  # type: ignore[union-attr]
                continue
            side = "sender" if tenure.endpoint == stream.sender else "receiver"
            index = tenure.life.index
            stream.moved = [one for one in stream.moved if not (one.life == index and one.epoch == tenure.epoch)]
            stream.ended = [
                one
                for one in stream.ended
                if not (one.life == index and one.side == side and tenure.begin <= one.t <= tenure.end)
            ]
            messages = stream.sent if side == "sender" else stream.delivered
            void = [one for one in messages if one.life == index and one.epoch == tenure.epoch]
            stream.void += void
            for one in void:
                messages.remove(one)
