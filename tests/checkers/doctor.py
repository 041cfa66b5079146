"""Doctored evidence: every way in which a run folder can be made wrong, and which check must notice.

Works on any run folder, made up or recorded. A checker that stays green on these proves nothing.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from testbed.capture import CaptureReader, header, packet, trailer

Lines = list[dict[str, Any]]
_HEADER = struct.Struct(">HBBBBHIQQQQIII")
_DATA, _ACK = 17, 18
_SECOND = 1_000_000_000


class NotThere(Exception):
    """The folder has nothing to which this doctoring could be done."""


class Doctoring(NamedTuple):
    """One kind of doctoring, and what must come of it."""

    check: str
    verdict: str
    apply: Callable[[Path], None]


# Files


def read_lines(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, lines: Lines) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def journals(folder: Path) -> list[Path]:
    return sorted(folder.glob("nodes/*/journal-*.jsonl"))


def _edit_events(folder: Path, change: Callable[[Lines], Lines]) -> None:
    path = folder / "events.jsonl"
    write_lines(path, change(read_lines(path)))


def _first(lines: Lines, event: str) -> int:
    for index, line in enumerate(lines):
        if line["event"] == event:
            return index
    raise NotThere(f"no {event}")


def _journal_with(folder: Path, event: str, least: int = 1) -> tuple[Path, Lines, list[int]]:
    """A journal with at least that many such records of one stream or endpoint, and where they are."""
    for path in journals(folder):
        lines = read_lines(path)
        groups: dict[str, list[int]] = {}
        for index, line in enumerate(lines):
            if line["event"] == event:
                groups.setdefault(line.get("stream") or line.get("endpoint") or "", []).append(index)
        for where in groups.values():
            if len(where) >= least:
                return path, lines, where
    raise NotThere(f"no journal with {least} {event} of one stream")


def _edit_journal(event: str, change: Callable[[Lines, list[int]], None], least: int = 1) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path, lines, where = _journal_with(folder, event, least)
        change(lines, where)
        write_lines(path, lines)

    return apply


# Journals


def _remove_delivered(lines: Lines, where: list[int]) -> None:
    del lines[where[len(where) // 2]]


def _repeat(lines: Lines, where: list[int]) -> None:
    at = where[len(where) // 2]
    lines.insert(at + 1, dict(lines[at]))


def _swap(lines: Lines, where: list[int]) -> None:
    one, other = where[len(where) // 2 - 1], where[len(where) // 2]
    lines[one], lines[other] = lines[other] | {"t": lines[one]["t"]}, lines[one] | {"t": lines[other]["t"]}


def _change_hash(lines: Lines, where: list[int]) -> None:
    line = lines[where[len(where) // 2]]
    line["hash"] = f"{int(line['hash'], 16) ^ 1:016x}"


def _change_epoch(lines: Lines, where: list[int]) -> None:
    lines[where[len(where) // 2]]["epoch"] += 7


def _never_sent(folder: Path) -> None:
    path, lines, where = _journal_with(folder, "message.sent", 3)
    del lines[where[len(where) // 2]]
    write_lines(path, lines)


def _two_owners(folder: Path) -> None:
    path, lines, where = _journal_with(folder, "endpoint.hosted")
    other = next((one for one in journals(folder) if one.parent != path.parent), None)
    if other is None:
        raise NotThere("only one node")
    hosted = lines[where[0]]
    theirs = read_lines(other)
    theirs.insert(1, hosted | {"node": other.parent.name, "t": theirs[0]["t"]})
    write_lines(other, theirs)


def _never_frozen(folder: Path) -> None:
    path, lines, _ = _journal_with(folder, "endpoint.frozen")
    write_lines(path, [line for line in lines if line["event"] != "endpoint.frozen"])


def _move_cursor(by: int) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        for path in journals(folder):
            lines = read_lines(path)
            for line in lines:
                if line["event"] == "stream.moved" and line["side"] == "receiver" and line["message"]:
                    line["message"] += by
                    line["offset"] += by
                    write_lines(path, lines)
                    return
        raise NotThere("no stream moved at its receiver")

    return apply


def _late_cutover(folder: Path) -> None:
    """Whatever the target of a handover delivered, it delivered a minute later."""
    for path in journals(folder):
        lines = read_lines(path)
        hosted = [line for line in lines if line["event"] == "endpoint.hosted" and line["cause"] == "handover"]
        for line in lines:
            if hosted and line["event"] == "message.delivered" and line["epoch"] == hosted[0]["epoch"]:
                line["t"] += 60 * _SECOND
        if hosted:
            write_lines(path, lines)
            return
    raise NotThere("no handover")


def _drop_done(lines: Lines, where: list[int]) -> None:
    del lines[where[0]]


def _reset(folder: Path) -> None:
    path, lines, where = _journal_with(folder, "stream.opened")
    opened = lines[where[0]]
    lines.insert(
        where[0] + 1,
        {"t": opened["t"], "event": "stream.reset", "node": opened["node"], "stream": opened["stream"],
         "side": opened["side"], "cause": "owner-died", "text": ""},
    )  # fmt: skip
    write_lines(path, lines)


def _cut_journal(folder: Path) -> None:
    """The second half of a journal is lost, in the middle of a line."""
    path, _, where = _journal_with(folder, "message.delivered", 2)
    data = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(data[: where[-1]]) + data[where[-1]][:20])


def _lose_journal(folder: Path) -> None:
    _journal_with(folder, "message.delivered")[0].unlink()


def _damage_journal(folder: Path) -> None:
    path = journals(folder)[0]
    data = path.read_bytes()
    path.write_bytes(data[:10] + b"\x00" + data[11:])


def _clock_back(lines: Lines, where: list[int]) -> None:
    lines[where[len(where) // 2]]["t"] -= 10 * _SECOND


# Events


def _set(event: str, **fields: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        def change(lines: Lines) -> Lines:
            lines[_first(lines, event)].update(fields)
            return lines

        _edit_events(folder, change)

    return apply


def _without(*events: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        def change(lines: Lines) -> Lines:
            _first(lines, events[0])
            return [line for line in lines if line["event"] not in events]

        _edit_events(folder, change)

    return apply


def _fault_missing(folder: Path) -> None:
    def change(lines: Lines) -> Lines:
        number = lines[_first(lines, "fault.begun")]["id"]
        return [line for line in lines if line.get("id") != number or not line["event"].startswith("fault.")]

    _edit_events(folder, change)


def _fault_unhealed(folder: Path) -> None:
    def change(lines: Lines) -> Lines:
        del lines[_first(lines, "fault.healed")]
        return lines

    _edit_events(folder, change)


def _nothing_exercised(folder: Path) -> None:
    """As if no application had ever run."""
    for path in journals(folder):
        kept = [line for line in read_lines(path) if line["event"].split(".")[0] not in ("message", "app", "stream")]
        write_lines(path, kept)


# Captures


class Frame(NamedTuple):
    """A Connex frame that lies whole in one packet."""

    file: Path
    number: int
    """Of its packet in the file."""
    direction: int
    at: int
    """Of its header in the packet."""
    fields: tuple[int, ...]


class CaptureFile:
    """All packets of a file, to be changed and written back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with CaptureReader(path) as reader:
            self.packets = [(stamp, direction, bytearray(data)) for stamp, direction, data in reader]
            self.offset, self.interface = reader.offset or 0, reader.interface

    def write(self) -> None:
        blocks = [header(self.interface, self.offset, "doctored")]
        blocks += [packet(stamp, direction, bytes(data)) for stamp, direction, data in self.packets]
        blocks.append(trailer(self.packets[-1][0], len(self.packets), 0))
        self.path.write_bytes(b"".join(blocks))

    def frames(self, kind: int, direction: int) -> Iterator[Frame]:
        for index, (_, way, data) in enumerate(self.packets):
            at = data.find(b"CX\x01" + bytes([kind]))
            while way == direction and at >= 0 and at + 56 <= len(data):
                fields = _HEADER.unpack_from(data, at)
                if zlib.crc32(data[at : at + 52]) == fields[13] and at + 56 + fields[6] <= len(data):
                    yield Frame(self.path, index, way, at, fields)
                at = data.find(b"CX\x01" + bytes([kind]), at + 1)

    def patch(self, frame: Frame, **changes: int) -> None:
        """Change fields of a header, and make both checksums fit again."""
        names = {"message": 8, "offset": 9, "end": 10, "sender_epoch": 11, "destination_epoch": 12}
        fields = list(frame.fields)
        for name, value in changes.items():
            fields[names[name]] = value
        data = self.packets[frame.number][2]
        before = bytes(data[frame.at : frame.at + 56])
        _HEADER.pack_into(data, frame.at, *fields)
        struct.pack_into(">I", data, frame.at + 52, zlib.crc32(data[frame.at : frame.at + 52]))
        self._checksum(data, frame.at, before, bytes(data[frame.at : frame.at + 56]))

    def flip(self, frame: Frame) -> None:
        """Change one byte of the payload, and make TCP's checksum fit again."""
        data = self.packets[frame.number][2]
        at = frame.at + 56
        before = bytes(data[at : at + 1])
        data[at] ^= 0xFF
        self._checksum(data, at, before, bytes(data[at : at + 1]))

    def _checksum(self, data: bytearray, at: int, before: bytes, after: bytes) -> None:
        """Correct a complete TCP checksum for changed bytes; one that was left to hardware does not cover them."""
        tcp = 34 if data[12:14] == b"\x08\x00" else 54
        stop = 14 + int.from_bytes(data[16:18], "big") if tcp == 34 else 54 + int.from_bytes(data[18:20], "big")
        addresses = data[26:34] if tcp == 34 else data[22:54]
        pseudo = int.from_bytes(addresses, "big") + 6 + stop - tcp
        odd = (at - tcp) % 2
        old = int.from_bytes(bytes(odd) + before + bytes((odd + len(before)) % 2), "big")
        new = int.from_bytes(bytes(odd) + after + bytes((odd + len(after)) % 2), "big")
        segment = int.from_bytes(data[tcp:stop] + bytes((stop - tcp) % 2), "big")
        if (pseudo + segment - new + old) % 65535 == 0:
            field = int.from_bytes(data[tcp + 16 : tcp + 18], "big")
            struct.pack_into(">H", data, tcp + 16, (field + old - new) % 65535)


def captures(folder: Path) -> list[CaptureFile]:
    found = [CaptureFile(path) for path in sorted((folder / "captures").glob("*.pcapng"))]
    if not found:
        raise NotThere("no captures")
    return found


_INBOUND, _OUTBOUND = 1, 2


def _stream_frames(folder: Path, kind: int, direction: int) -> tuple[CaptureFile, list[Frame]]:
    """Frames of one stream that belongs to endpoints (not the state of a handover), in one file, the most there are."""
    streams = {int(line["stream"], 16) for path in journals(folder) for line in read_lines(path) if "stream" in line}
    best: tuple[CaptureFile, list[Frame]] | None = None
    for file in captures(folder):
        groups: dict[int, list[Frame]] = {}
        for frame in file.frames(kind, direction):
            if frame.fields[7] in streams:
                groups.setdefault(frame.fields[7], []).append(frame)
        for frames in groups.values():
            if best is None or len(frames) > len(best[1]):
                best = file, frames
    if best is None:
        raise NotThere(f"no frames of type {kind} on streams")
    return best


def _on_frame(
    kind: int, change: Callable[[CaptureFile, Frame], None], direction: int = _OUTBOUND
) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        file, frames = _stream_frames(folder, kind, direction)
        change(file, frames[len(frames) // 2])
        file.write()

    return apply


def _flip_payload(folder: Path) -> None:
    file, frames = _stream_frames(folder, _DATA, _OUTBOUND)
    frame = next((frame for frame in frames if frame.fields[6]), None)
    if frame is None:
        raise NotThere("no payload")
    file.flip(frame)
    file.write()


def _ack_ahead(file: CaptureFile, frame: Frame) -> None:
    file.patch(frame, message=frame.fields[8] + 1, offset=frame.fields[9] + 1_000_000, end=frame.fields[10] + 1_000_000)


def _ack_back(folder: Path) -> None:
    file, frames = _stream_frames(folder, _ACK, _OUTBOUND)
    if len(frames) < 3:
        raise NotThere("fewer than three acknowledgements of a stream in a file")
    file.patch(frames[-1], message=frames[0].fields[8], offset=frames[0].fields[9], end=frames[0].fields[10])
    file.write()


def _ack_of_nobody(file: CaptureFile, frame: Frame) -> None:
    file.patch(frame, sender_epoch=frame.fields[11] + 7)


def _old_epoch(folder: Path) -> None:
    """The last frame for an endpoint that has moved is sent under the epoch before."""
    for file in captures(folder):
        frames = [frame for frame in file.frames(_DATA, _OUTBOUND) if frame.fields[12] > 1 and not frame.fields[3] & 2]
        streams = {
            int(line["stream"], 16) for path in journals(folder) for line in read_lines(path) if "stream" in line
        }
        frames = [frame for frame in frames if frame.fields[7] in streams]
        if frames:
            file.patch(frames[-1], destination_epoch=frames[-1].fields[12] - 1)
            file.write()
            return
    raise NotThere("no frame under an epoch above 1")


def _unknown_message(file: CaptureFile, frame: Frame) -> None:
    file.patch(frame, message=frame.fields[8] + 100_000)


def _remove_frame(folder: Path) -> None:
    file, frames = _stream_frames(folder, _DATA, _INBOUND)
    del file.packets[frames[len(frames) // 2].number]
    file.write()


def _cut_capture(folder: Path) -> None:
    path = captures(folder)[0].path
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 50])


def _lose_capture(folder: Path) -> None:
    captures(folder)[0].path.unlink()


def _no_captures(folder: Path) -> None:
    for path in (folder / "captures").iterdir():
        path.unlink()


def _count_drops(folder: Path) -> None:
    path = folder / "captures" / "counters.json"
    counters = json.loads(path.read_text())
    next(iter(counters.values()))["dropped"] = 1
    path.write_text(json.dumps(counters))


_CAPTURE = "capture-against-history"

DOCTORINGS: dict[str, Doctoring] = {
    "message-removed": Doctoring("delivery", "fail", _edit_journal("message.delivered", _remove_delivered, 3)),
    "message-repeated": Doctoring("delivery", "fail", _edit_journal("message.delivered", _repeat)),
    "messages-swapped": Doctoring("delivery", "fail", _edit_journal("message.delivered", _swap, 2)),
    "message-changed": Doctoring("delivery", "fail", _edit_journal("message.delivered", _change_hash)),
    "message-never-sent": Doctoring("delivery", "fail", _never_sent),
    "delivery-epoch-altered": Doctoring("staleness", "fail", _edit_journal("message.delivered", _change_epoch)),
    "two-owners": Doctoring("ownership", "fail", _two_owners),
    "never-frozen": Doctoring("ownership", "fail", _never_frozen),
    "gap-in-the-tiling": Doctoring("ownership", "fail", _move_cursor(1)),
    "overlap-in-the-tiling": Doctoring("ownership", "fail", _move_cursor(-1)),
    "acknowledged-by-nobody": Doctoring("ownership", "fail", _on_frame(_ACK, _ack_of_nobody)),
    "old-epoch-on-the-wire": Doctoring("staleness", "fail", _old_epoch),
    "cutover-late": Doctoring("cutover", "fail", _late_cutover),
    "request-lost": Doctoring("goodput", "fail", _edit_journal("app.done", _drop_done)),
    "request-done-twice": Doctoring("goodput", "fail", _edit_journal("app.done", _repeat)),
    "stream-reset": Doctoring("resets", "fail", _reset),
    "fault-missing": Doctoring("faults", "unknown", _fault_missing),
    "fault-unhealed": Doctoring("faults", "unknown", _fault_unhealed),
    "node-died": Doctoring("emulation", "fail", _set("node.exited", expected=False, status=-11)),
    "wire-late": Doctoring("emulation", "unknown", _set("wire.stopped", lag_p99_ns=10 * _SECOND)),
    "wire-died": Doctoring("emulation", "unknown", _without("wire.stopped")),
    "queue-overflowed": Doctoring("emulation", "unknown", _set("wire.stopped", overflowed=3, lines={})),
    "capture-dropped-at-the-wire": Doctoring("emulation", "unknown", _set("wire.stopped", capture_dropped=3)),
    "run-cut-off": Doctoring("emulation", "unknown", _without("run.finished")),
    "clock-went-back": Doctoring("emulation", "unknown", _edit_journal("message.delivered", _clock_back)),
    "journal-truncated": Doctoring("delivery", "unknown", _cut_journal),
    "journal-missing": Doctoring("delivery", "unknown", _lose_journal),
    "journal-damaged": Doctoring("evidence", "unknown", _damage_journal),
    "nothing-exercised": Doctoring("delivery", "unknown", _nothing_exercised),
    "payload-changed": Doctoring(_CAPTURE, "fail", _flip_payload),
    "acknowledged-ahead": Doctoring(_CAPTURE, "fail", _on_frame(_ACK, _ack_ahead)),
    "acknowledgement-taken-back": Doctoring(_CAPTURE, "fail", _ack_back),
    "message-number-altered": Doctoring(_CAPTURE, "fail", _on_frame(_DATA, _unknown_message)),
    "frame-removed": Doctoring(_CAPTURE, "unknown", _remove_frame),
    "capture-truncated": Doctoring("emulation", "unknown", _cut_capture),
    "capture-dropped": Doctoring("emulation", "unknown", _count_drops),
    "capture-missing": Doctoring(_CAPTURE, "unknown", _lose_capture),
    "no-captures": Doctoring(_CAPTURE, "unknown", _no_captures),
}


def doctor(folder: Path, kind: str) -> Doctoring:
    """Make the evidence in ``folder`` wrong in this way, in place. Raises NotThere where the run has nothing for it."""
    doctoring = DOCTORINGS[kind]
    doctoring.apply(folder)
    return doctoring
