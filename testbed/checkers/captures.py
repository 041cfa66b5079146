"""The captures of a run, condensed to what the checkers ask: frames by stream, with times, epochs and payload hashes.

What a node sent is taken from its own interface, outbound; what arrived at it from its own interface, inbound. So every
frame counts once in each role, wherever else it may have been seen.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from testbed.frames import Cursor, Header, Splitter
from testbed.reassembly import Flow, Tally

_STATE = 2
_COLUMNS = 12


class Channel(NamedTuple):
    """A flow as Connex sees it: from one node to another."""

    file: str
    node: str
    """Whose interface was captured."""
    peer: str
    """The other end; empty if its address is nobody's."""
    outbound: bool
    flow: Flow
    splitter: Splitter

    @property
    def name(self) -> str:
        return f"{self.file}: {self.flow.name}"


class Data(NamedTuple):
    """One DATA frame. Times in ns, CLOCK_MONOTONIC."""

    begun: int
    time: int
    drained: int
    channel: int
    message: int
    offset: int
    end: int
    length: int
    flags: int
    sender_epoch: int
    destination_epoch: int
    position: int
    """Counts all frames of all captures, in the order in which they were read."""

    @property
    def stop(self) -> int:
        return self.offset + self.length


class DataLog:
    """The DATA frames of one stream, sent or arrived; compact, because there may be millions."""

    def __init__(self) -> None:
        self._rows = array("Q")

    def __len__(self) -> int:
        return len(self._rows) // _COLUMNS

    def __iter__(self) -> Iterator[Data]:
        rows = self._rows
        for at in range(0, len(rows), _COLUMNS):
            yield Data(*rows[at : at + _COLUMNS])

    def add(self, *fields: int) -> None:
        self._rows.extend(fields)

    def take(self, other: DataLog, offset: int) -> None:
        """Append the rows of another log, with its times reduced by ``offset``."""
        rows = other._rows
        for column in range(3):
            rows[column::_COLUMNS] = array("Q", (time - offset for time in rows[column::_COLUMNS]))
        self._rows.extend(rows)


class Payload(NamedTuple):
    """Bytes of a message, captured without a gap up to its end, under one destination epoch."""

    time: int
    channel: int
    message: int
    start: int
    """Offset of the first byte that was captured; the message may begin before it."""
    end: int
    hash: str
    destination_epoch: int


class Ack(NamedTuple):
    """One ACK frame. Times in ns, CLOCK_MONOTONIC."""

    time: int
    channel: int
    message: int
    offset: int
    received: int
    sender_epoch: int
    destination_epoch: int
    flags: int


class Control(NamedTuple):
    """Any other frame whose body the checkers read."""

    time: int
    channel: int
    header: Header
    body: Mapping[str, Any]


class State(NamedTuple):
    """The STATE record of a handover, as it arrived at or left a node."""

    time: int
    channel: int
    handover: str
    epoch: int
    cursors: list[Cursor]


@dataclass(slots=True)
class Role:
    """All frames of one stream in one role: sent, or arrived."""

    data: DataLog = field(default_factory=DataLog)
    payloads: list[Payload] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)


@dataclass(slots=True)
class File:
    """One capture file."""

    name: str
    node: str
    tally: Tally = field(default_factory=Tally)
    dropped: int = 0
    closed: bool = False
    truncated: int = 0
    offset: int | None = None
    """UNIX time minus CLOCK_MONOTONIC, ns; None if the writer did not record it."""
    counters: Mapping[str, Any] | None = None
    """Its entry in ``counters.json``."""
    error: str = ""

    @property
    def problems(self) -> list[str]:
        """Why not everything that happened at the interface can be known from the file."""
        found = [self.error] if self.error else []
        if self.dropped or (self.counters or {}).get("dropped"):
            found.append(f"{max(self.dropped, (self.counters or {}).get('dropped', 0))} frames were not captured")
        if self.truncated:
            found.append(
                f"cut off: the last {self.truncated} bytes are no complete record; read up to the last that is"
            )
        if not self.closed:
            found.append("its writer did not close it: frames at its end may be missing")
        if self.counters is None:
            found.append("counters.json does not mention it")
        elif not self.counters.get("closed", True):
            found.append("counters.json says that it was not closed")
        elif self.counters.get("frames", self.tally.packets) != self.tally.packets:
            found.append(f"{self.tally.packets} frames in it: counters.json says {self.counters['frames']}")
        if self.tally.snapped:
            found.append(f"{self.tally.snapped} frames were captured only in part (snap length)")
        if self.tally.fragments:
            found.append(f"{self.tally.fragments} IP fragments, which are not put together")
        if self.offset is None:
            found.append("it does not say how its time stamps relate to the monotonic clock")
        holes = sum(flow.missing for flow in self.tally.flows)
        if holes:
            found.append(f"{holes} bytes were acknowledged and are not in it")
        before = [flow.name for flow in self.tally.flows if not flow.whole]
        if before:
            found.append(f"{len(before)} flows were open before it began, such as {before[0]}")
        return found


class Captures:
    """All captures of a run."""

    def __init__(self) -> None:
        self.files: list[File] = []
        self.channels: list[Channel] = []
        self.sent: dict[str, Role] = {}
        self.arrived: dict[str, Role] = {}
        self.controls: list[Control] = []
        self.states: list[State] = []
        self.handovers: set[str] = set()
        """Ids in PREPARE frames: streams of these ids are transfers."""
        self.malformed: list[tuple[str, str]] = []
        """Channel and what is wrong: frames that ``docs/wire.md`` does not allow."""
        self.frames = 0
        self.trusted: set[str] = set()
        """Nodes whose captures hold everything that they sent and received."""

    def complete(self, nodes: Iterable[str]) -> bool:
        """Whether everything that these nodes sent and received is here."""
        return set(nodes) <= self.trusted

    def node(self, channel: int) -> str:
        return self.channels[channel].node

    def peer(self, channel: int) -> str:
        return self.channels[channel].peer

    def where(self, channel: int) -> str:
        return self.channels[channel].name
