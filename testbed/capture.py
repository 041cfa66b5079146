"""Captures as pcapng files: written without loss of time, readable by tcpdump, tshark and scapy, read back
offline.

A file holds what one interface of one node sent and received. Time stamps are UNIX time in ns, but they are
read off the monotonic clock: the difference between the two is taken once, when the capture begins, and
recorded in the file, so that a step of the wall clock during the capture does not disturb it and the stamps
can be laid beside the events of a run.
"""

from __future__ import annotations

import mmap
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

INBOUND, OUTBOUND = 1, 2
"""Direction, seen from the node: it received the frame, or it sent it. Other tools' files may have 0: not
known."""

_SECTION, _INTERFACE, _STATISTICS, _PACKET = 0x0A0D0D0A, 1, 5, 6
_ORDER_MARK = 0x1A2B3C4D
_ETHERNET = 1
_OPTION_END, _OPTION_COMMENT, _OPTION_NAME, _OPTION_RESOLUTION, _OPTION_FLAGS = 0, 1, 2, 9, 2
_OPTION_RECEIVED, _OPTION_DROPPED = 4, 5
_NANOSECONDS = 9
_AT_ONCE = 20_000
"""Readings of two clocks that are less than this apart (ns) count as one moment."""
_CLOCK_READINGS = 10

_PACKET_HEAD = struct.Struct("<IIIIIII")
_PACKET_OVERHEAD = 28 + 12 + 4
# Padding, the flags option with the direction and the end of the options; only the block's length is still
# missing.
_PACKET_TAIL = {
    (direction, padding): bytes(padding) + struct.pack("<HHIHH", _OPTION_FLAGS, 4, direction, _OPTION_END, 0)
    for direction in (0, INBOUND, OUTBOUND)
    for padding in range(4)
}
_WORD = struct.Struct("<I")
_OFFSET = re.compile(r"UNIX time is CLOCK_MONOTONIC \+ (-?[0-9]+) ns")


class CaptureError(Exception):
    """The file is not a pcapng capture, or is damaged before its end."""


class Packet(NamedTuple):
    """One captured frame, from its Ethernet header on."""

    time: int
    """UNIX time, ns."""
    direction: int
    data: memoryview


def clock_offset() -> int:
    """UNIX time minus CLOCK_MONOTONIC, in ns, now.

    Read again if this process was held up between the two clocks: whatever is stamped by it would be wrong by that
    long, and frames be captured before they were sent.
    """
    for _ in range(_CLOCK_READINGS):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < _AT_ONCE:
            break
    return wall - (before + after) // 2


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    total = len(body) + 12
    return struct.pack("<II", kind, total) + body + _WORD.pack(total)


def header(interface: str, offset: int, point: str) -> bytes:
    """The blocks that begin a file: the section and its one interface.

    ``offset`` is what ``clock_offset`` gave, ``point`` says in words where the frames were seen.
    """
    comment = f"{point}; UNIX time is CLOCK_MONOTONIC + {offset} ns"
    section = struct.pack("<IHHq", _ORDER_MARK, 1, 0, -1) + _option(_OPTION_COMMENT, comment.encode()) + _option(0, b"")
    options = _option(_OPTION_NAME, interface.encode()) + _option(_OPTION_RESOLUTION, bytes([_NANOSECONDS]))
    description = struct.pack("<HHI", _ETHERNET, 0, 0) + options + _option(_OPTION_END, b"")
    return _block(_SECTION, section) + _block(_INTERFACE, description)


def packet(stamp: int, direction: int, data: bytes | memoryview) -> bytes:
    """The block of one frame. ``stamp`` is UNIX time in ns."""
    length = len(data)
    padding = -length % 4
    total = length + padding + _PACKET_OVERHEAD
    head = _PACKET_HEAD.pack(_PACKET, total, 0, stamp >> 32, stamp & 0xFFFFFFFF, length, length)
    return b"".join((head, data, _PACKET_TAIL[direction, padding], _WORD.pack(total)))


def trailer(stamp: int, received: int, dropped: int) -> bytes:
    """The block that closes a file: frames seen, and how many of them are missing from the file."""
    counters = _option(_OPTION_RECEIVED, struct.pack("<Q", received)) + _option(
        _OPTION_DROPPED, struct.pack("<Q", dropped)
    )
    body = struct.pack("<III", 0, stamp >> 32, stamp & 0xFFFFFFFF) + counters + _option(_OPTION_END, b"")
    return _block(_STATISTICS, body)


def whole_blocks(data: bytes) -> int:
    """How many bytes at the beginning of ``data`` are complete blocks."""
    at = 0
    while at + 12 <= len(data):
        total: int = _WORD.unpack_from(data, at + 4)[0]
        if at + total > len(data):
            break
        at += total
    return at


class CaptureWriter:
    """Writes one file. Times given are CLOCK_MONOTONIC, ns."""

    def __init__(self, path: Path, interface: str, point: str) -> None:
        self.offset = clock_offset()
        self.frames = 0
        self.bytes = 0
        self._file: BinaryIO = path.open("wb", buffering=1024 * 1024)
        self._file.write(header(interface, self.offset, point))

    def write(self, moment: int, direction: int, data: bytes | memoryview) -> None:
        self._file.write(packet(moment + self.offset, direction, data))
        self.frames += 1
        self.bytes += len(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self, moment: int, dropped: int) -> None:
        """``dropped``: frames that are missing from the file."""
        self._file.write(trailer(moment + self.offset, self.frames + dropped, dropped))
        self._file.close()


class CaptureReader:
    """Reads one file, whoever wrote it: iterate over its packets, then ask what is known about the whole.

    A file that ends in the middle of a block, because its writer was killed, is read up to the last complete
    one; then ``truncated`` says how many bytes were left over, and ``closed`` is false. Raises CaptureError
    where the file is no capture or a block cannot be right.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.interface = ""
        self.comment = ""
        self.offset: int | None = None
        """UNIX time minus CLOCK_MONOTONIC in ns, where the writer recorded it."""
        self.closed = False
        """Whether the writer has finished the file properly."""
        self.dropped = 0
        """Frames that the writer saw and could not write."""
        self.truncated = 0
        self._order = "<"
        self._units: list[int] = []
        self._file = path.open("rb")
        empty = path.stat().st_size == 0
        self._map = None if empty else mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def __enter__(self) -> CaptureReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the file. Packets still held by the caller keep their bytes readable."""
        self._file.close()

    def __iter__(self) -> Iterator[Packet]:
        if self._map is None:
            return
        view = memoryview(self._map)
        size, at = len(view), 0
        order, units = self._order, self._units
        lengths, body = struct.Struct(order + "II"), struct.Struct(order + "IIIII")
        while at + 12 <= size:
            kind, total = lengths.unpack_from(view, at)
            if kind == _SECTION:
                self._set_order(view, at)
                order, units = self._order, self._units
                lengths, body = struct.Struct(order + "II"), struct.Struct(order + "IIIII")
                total = lengths.unpack_from(view, at)[1]
            if at == 0 and kind != _SECTION:
                raise CaptureError(f"{self.path}: not a pcapng capture: it does not begin with a section header")
            if total < 12 or total % 4:
                raise CaptureError(f"{self.path}: at byte {at}: a block of {total} bytes; the file is damaged")
            if at + total > size:
                break
            if kind == _PACKET:
                interface, high, low, kept, _ = body.unpack_from(view, at + 8)
                begin = at + 28
                options = begin + kept + (-kept % 4)
                stamp = ((high << 32) | low) * units[interface]
                yield Packet(stamp, self._direction(view, options, at + total - 4), view[begin : begin + kept])
            else:
                self._take(kind, view[at + 8 : at + total - 4])
            at += total
        self.truncated = size - at

    def _set_order(self, view: memoryview, at: int) -> None:
        mark = bytes(view[at + 8 : at + 12])
        if mark not in (b"\x4d\x3c\x2b\x1a", b"\x1a\x2b\x3c\x4d"):
            raise CaptureError(f"{self.path}: at byte {at}: a section header without byte-order mark")
        self._order = "<" if mark[0] == 0x4D else ">"
        self._units = []

    def _direction(self, view: memoryview, at: int, end: int) -> int:
        for code, value in self._options(view[at:end]):
            if code == _OPTION_FLAGS and len(value) == 4:
                return int(struct.unpack(self._order + "I", value)[0]) & 3
        return 0

    def _options(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        at = 0
        while at + 4 <= len(data):
            code, length = struct.unpack_from(self._order + "HH", data, at)
            if code == _OPTION_END:
                return
            yield code, data[at + 4 : at + 4 + length]
            at += 4 + length + (-length % 4)

    def _take(self, kind: int, body: memoryview) -> None:
        if kind == _SECTION:
            for code, value in self._options(body[16:]):
                if code == _OPTION_COMMENT:
                    self.comment = bytes(value).decode(errors="replace")
                    if match := _OFFSET.search(self.comment):
                        self.offset = int(match[1])
        elif kind == _INTERFACE:
            self._units.append(1000)  # microseconds, unless the interface says otherwise
            for code, value in self._options(body[8:]):
                if code == _OPTION_NAME:
                    self.interface = bytes(value).decode(errors="replace")
                elif code == _OPTION_RESOLUTION:
                    self._units[-1] = self._unit(value[0])
        elif kind == _STATISTICS:
            self.closed = True
            for code, value in self._options(body[12:]):
                if code == _OPTION_DROPPED:
                    self.dropped += struct.unpack(self._order + "Q", value)[0]

    def _unit(self, resolution: int) -> int:
        if resolution & 0x80 or resolution > _NANOSECONDS:
            raise CaptureError(f"{self.path}: time stamps in a unit (code {resolution}) that is not a multiple of 1 ns")
        return int(10 ** (_NANOSECONDS - resolution))
