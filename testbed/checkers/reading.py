"""Reads the captures of a run into ``Captures``: each byte once, headers by struct, payloads as views."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed import frames
from testbed.capture import CaptureError, CaptureReader
from testbed.checkers.captures import Ack, Captures, Channel, Control, File, Payload, Role, State
from testbed.frames import Frame, Header, Splitter
from testbed.reassembly import OUTBOUND, Flow, Reassembler

_STATE = 2
"""Record type of a transfer stream."""


def read_captures(folder: Path, run: Mapping[str, Any]) -> Captures:
    """Read all captures of a run folder; what is wrong with a file is said in its ``problems``."""
    captures = Captures()
    directory = folder / "captures"
    counters: Mapping[str, Any] = {}
    if (directory / "counters.json").is_file():
        counters = json.loads((directory / "counters.json").read_text(encoding="utf-8"))
    nodes: Mapping[str, Any] = run.get("plan", {}).get("nodes", {})
    owners = _addresses(nodes)
    there = {path.name for path in directory.glob("*.pcapng")} if directory.is_dir() else set()
    for name in sorted(there | set(counters)):
        file = File(name, name.split(".")[0], counters=counters.get(name))
        captures.files.append(file)
        if name in there:
            _read_file(captures, file, directory / name, owners, _locators(nodes))
        else:
            file.error = "counters.json mentions it, but it is not there"
    doubtful = {file.node for file in captures.files if file.problems}
    captures.trusted = {file.node for file in captures.files} - doubtful
    return captures


def _addresses(nodes: Mapping[str, Any]) -> dict[str, str]:
    """Address -> node."""
    return {
        interface[kind].partition("/")[0]: name
        for name, node in nodes.items()
        for interface in node.get("interfaces", ())
        for kind in ("ipv4", "ipv6")
        if interface.get(kind)
    }


def _locators(nodes: Mapping[str, Any]) -> set[int]:
    """Ports on which nodes listen: connections with neither end on one of them are not Connex's."""
    return {int(node["locator"].rpartition(":")[2]) for node in nodes.values() if node.get("locator")}


def _read_file(captures: Captures, file: File, path: Path, owners: Mapping[str, str], ports: set[int]) -> None:
    cut = _Cut(captures, file, owners, ports)
    local = [address for address, node in owners.items() if node == file.node]
    reassembler = Reassembler(cut.open_sink, local)
    take = reassembler.packet
    try:
        with CaptureReader(path) as reader:
            for stamp, direction, data in reader:
                take(stamp, direction, data)
            file.offset, file.closed = reader.offset, reader.closed
            file.dropped, file.truncated = reader.dropped, reader.truncated
    except CaptureError as error:
        file.error = str(error)
    file.tally = reassembler.finish()
    cut.finish(file.offset or 0)


class _Cut:
    """Turns the frames of one file into rows. Times are UNIX times until the file has said how they relate."""

    def __init__(self, captures: Captures, file: File, owners: Mapping[str, str], ports: set[int]) -> None:
        self._captures = captures
        self._file = file
        self._owners = owners
        self._ports = ports
        self._first_channel = len(captures.channels)
        self._runs: dict[tuple[bool, int, int], _Run] = {}
        self._records: dict[tuple[int, int], _Record] = {}
        self._handovers: set[int] = set()
        self._controls: list[Control] = []
        self._states: list[State] = []
        self._sent: dict[int, Role] = {}
        self._arrived: dict[int, Role] = {}

    def open_sink(self, flow: Flow) -> Splitter | None:
        if self._ports and flow.source[1] not in self._ports and flow.destination[1] not in self._ports:
            return None
        outbound = flow.direction == OUTBOUND
        mine = flow.source if outbound else flow.destination
        if self._owners.get(mine[0], self._file.node) != self._file.node:
            return None  # between other nodes, flooded by a switch that did not know yet where they are
        number = len(self._captures.channels)
        splitter = Splitter(lambda frame: self._frame(number, frame), from_start=flow.whole)
        other = flow.destination if outbound else flow.source
        peer = self._owners.get(other[0], "")
        self._captures.channels.append(Channel(self._file.name, self._file.node, peer, outbound, flow, splitter))
        return splitter

    def _frame(self, channel: int, frame: Frame) -> None:
        captures = self._captures
        captures.frames += 1
        fields = frame.header
        kind, stream = fields[2], fields[7]
        outbound = captures.channels[channel].outbound
        if kind == frames.DATA:
            self._data(channel, outbound, frame)
        elif kind == frames.ACK:
            roles = self._sent if outbound else self._arrived
            role = roles.get(stream)
            if role is None:
                role = roles[stream] = Role()
            if fields[6] != 8:
                self._malformed(channel, f"ACK with a body of {fields[6]} bytes: expected 8")
            role.acks.append(
                Ack(frame.time, channel, fields[8], fields[9], fields[10], fields[11], fields[12], fields[3])
            )
        elif kind != frames.HEARTBEAT:
            self._control(channel, frame)

    def _control(self, channel: int, frame: Frame) -> None:
        header = Header(*frame.header)
        body: Mapping[str, Any] = {}
        if header.type not in frames.TYPES:
            self._malformed(channel, f"a frame of type {header.type}")
        if frame.complete:
            try:
                body = frames.read_body(header, b"".join(frame.payload))
            except frames.BodyError as error:
                self._malformed(channel, f"frame of type {header.type}: body {error}")
        if header.type == frames.PREPARE:
            self._handovers.add(header.stream)
        self._controls.append(Control(frame.time, channel, header, body))

    def _malformed(self, channel: int, what: str) -> None:
        self._captures.malformed.append((self._captures.where(channel), what))

    def _data(self, channel: int, outbound: bool, frame: Frame) -> None:
        (_, _, _, flags, _, _, length, stream, message, offset, end, sender_epoch, destination_epoch, _) = frame.header
        roles = self._sent if outbound else self._arrived
        role = roles.get(stream)
        if role is None:
            role = roles[stream] = Role()
        role.data.add(
            frame.begun, frame.time, frame.drained, channel, message, offset, end, length, flags, sender_epoch,
            destination_epoch, self._captures.frames,
        )  # fmt: skip
        if offset + length > end:
            self._malformed(channel, f"DATA [{offset}, {offset + length}) of a message that ends at {end}")
        if flags & frames.FIN:
            return
        if stream in self._handovers:
            self._transfer(channel, frame)
        else:
            self._hash(role, (outbound, stream, message), channel, frame)

    def _hash(self, role: Role, key: tuple[bool, int, int], channel: int, frame: Frame) -> None:
        """Follow the bytes of a message through its frames, over channels if need be."""
        _, _, _, _, _, _, length, _, message, offset, end, _, epoch, _ = frame.header
        if not frame.complete:
            self._runs.pop(key, None)
            return
        run = self._runs.get(key)
        if run is None or run.next < offset or run.start >= offset or run.epoch != epoch:
            run = _Run(offset, epoch)
            if offset + length < end:
                self._runs[key] = run
        run.add(offset, frame.payload)
        if run.next >= end:
            role.payloads.append(Payload(frame.time, channel, message, run.start, end, run.hexdigest(), epoch))
            self._runs.pop(key, None)

    def _transfer(self, channel: int, frame: Frame) -> None:
        """Put the STATE record together; regions are of no interest."""
        _, _, _, _, _, _, length, stream, message, offset, end, epoch, _, _ = frame.header
        key = (channel, stream)
        record = self._records.get(key)
        if record is None or record.message != message:
            record = self._records[key] = _Record(message, offset)
        record.add(offset, frame)
        if offset + length < end or not record.is_state:
            return
        content = record.content()
        del self._records[key]
        if content is None:
            return
        try:
            cursors = frames.read_state(memoryview(content)[1:])
        except (frames.BodyError, UnicodeDecodeError) as error:
            self._malformed(channel, f"STATE of handover {stream:016x}: {error}")
            return
        self._states.append(State(frame.time, channel, f"{stream:016x}", epoch, cursors))

    def finish(self, offset: int) -> None:
        """The file has been read: move its rows over, with times on the monotonic clock."""
        captures = self._captures
        for channel in captures.channels[self._first_channel :]:
            if channel.splitter.malformed:
                captures.malformed.append((channel.name, channel.splitter.malformed))
        captures.handovers |= {f"{stream:016x}" for stream in self._handovers}
        captures.controls += [one._replace(time=one.time - offset) for one in self._controls]
        captures.states += [one._replace(time=one.time - offset) for one in self._states]
        for mine, all_ in ((self._sent, captures.sent), (self._arrived, captures.arrived)):
            for stream, role in mine.items():
                into = all_.setdefault(f"{stream:016x}", Role())
                into.data.take(role.data, offset)
                into.payloads += [one._replace(time=one.time - offset) for one in role.payloads]
                into.acks += [one._replace(time=one.time - offset) for one in role.acks]


class _Run:
    """Bytes of one message that follow each other."""

    __slots__ = ("_hash", "epoch", "next", "start")

    def __init__(self, start: int, epoch: int) -> None:
        self.start = self.next = start
        self.epoch = epoch
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, offset: int, pieces: list[memoryview]) -> None:
        skip = self.next - offset
        for piece in pieces:
            if skip >= len(piece):
                skip -= len(piece)
                continue
            fresh = piece[skip:] if skip else piece
            skip = 0
            self._hash.update(fresh)
            self.next += len(fresh)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class _Record:
    """One record of a transfer stream."""

    __slots__ = ("_next", "_parts", "_whole", "is_state", "message", "start")

    def __init__(self, message: int, start: int) -> None:
        self.message = message
        self.start = self._next = start
        self._parts: list[bytes] = []
        self._whole = True
        self.is_state = False

    def add(self, offset: int, frame: Frame) -> None:
        if offset == self.start:
            first = next((piece for piece in frame.payload if len(piece)), None)
            self.is_state = first is not None and first[0] == _STATE
        stop = offset + frame.header[6]
        if not self.is_state or stop <= self._next:  # of no interest, or sent again
            return
        self._whole &= frame.complete and offset <= self._next
        self._parts.append(b"".join(frame.payload)[self._next - offset :] if self._whole else b"")
        self._next = stop

    def content(self) -> bytes | None:
        return b"".join(self._parts) if self._whole else None
