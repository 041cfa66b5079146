"""Connex frames out of a byte stream, fast: headers by struct, payloads as views. Written from ``docs/wire.md``.

The full layers for people are in ``testbed.dissect``; this reads what the checkers need and nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

HELLO, PROOF, REFUSED, HEARTBEAT, JOIN, LEAVE = 1, 2, 3, 4, 5, 6
OPEN, DATA, ACK, RESET, STALE = 16, 17, 18, 19, 20
ANNOUNCE, RESOLVE = 32, 33
PREPARE, PREPARED, DECLINED, COMMIT, COMMITTED, RELEASE, RELEASED, ABORT, UNKNOWN, FENCE = range(48, 58)
TYPES = frozenset({*range(1, 7), *range(16, 21), 32, 33, *range(48, 58)})
REPLY, FIN, RETRANSMIT = 1, 2, 4
CLASSES = ("CONTROL", "TOKEN", "ACTIVATION", "KV")

MAGIC, VERSION = 0x4358, 1
HEADER_BYTES = 56
HEADER = Struct(">HBBBBHIQQQQIII")
_CHECKED = 52
_LIMITS = (16 * 1024, 16 * 1024, 256 * 1024, 256 * 1024)
_START = b"CX\x01"


class Header(NamedTuple):
    """The fields of one header, in their order (``docs/wire.md``, Header)."""

    magic: int
    version: int
    type: int
    flags: int
    traffic_class: int
    reserved: int
    length: int
    stream: int
    message: int
    offset: int
    end: int
    sender_epoch: int
    destination_epoch: int
    checksum: int


class Frame(NamedTuple):
    """One frame as it was seen at one point. Times in ns."""

    begun: int
    """When its first byte was there."""
    time: int
    """When its last byte was there."""
    drained: int
    """When, last before its first byte, nothing older can have waited in the sender's kernel."""
    header: tuple[int, ...]
    """As in ``Header``."""
    payload: list[memoryview]
    """In pieces, as they were captured."""
    complete: bool
    """Whether all of the payload was captured."""


class BodyError(ValueError):
    """A body that is not what ``docs/wire.md`` says."""


class Splitter:
    """Cuts the bytes of one flow into frames. A ``testbed.reassembly.Sink``.

    After a hole, or in a connection that was open before, the next header is looked for by its magic and checksum. A
    header that cannot be right, where one must be, ends the flow: ``malformed`` says why.
    """

    __slots__ = (
        "_begun",
        "_complete",
        "_drained",
        "_emit",
        "_fields",
        "_head",
        "_lost",
        "_payload",
        "_remaining",
        "malformed",
        "skipped",
    )

    def __init__(self, emit: Callable[[Frame], None], *, from_start: bool) -> None:
        self._emit = emit
        self._lost = not from_start
        self._head = bytearray()
        self._fields: tuple[int, ...] | None = None
        self._remaining = 0
        self._payload: list[memoryview] = []
        self._complete = True
        self._begun = self._drained = 0
        self.malformed = ""
        self.skipped = 0
        """Bytes that belong to no frame that could be read."""

    def data(self, time: int, drained: int, payload: memoryview) -> None:
        at, size = 0, len(payload)
        while at < size or (self._fields is not None and not self._remaining):
            if self.malformed:
                self.skipped += size - at
                return
            if self._fields is None:
                at = self._read_header(time, drained, payload, at)
                continue
            stop = at + self._remaining
            if stop > size:
                stop = size
            if stop > at:
                self._payload.append(payload[at:stop])
                self._remaining -= stop - at
                at = stop
            if self._remaining:
                return
            self._finish(time)

    def hole(self, time: int, length: int) -> None:
        if self._fields is not None and length <= self._remaining:
            self._remaining -= length
            self._complete = False
            if not self._remaining:
                self._finish(time)
            return
        if self._fields is not None:
            self.skipped += HEADER_BYTES
        self._fields = None
        self._payload, self._complete = [], True
        self.skipped += len(self._head)
        self._head.clear()
        self._lost = True

    def _finish(self, time: int) -> None:
        assert self._fields is not None
        frame = Frame(self._begun, time, self._drained, self._fields, self._payload, self._complete)
        self._fields = None
        self._payload, self._complete = [], True
        self._emit(frame)

    def _read_header(self, time: int, drained: int, payload: memoryview, at: int) -> int:
        """Take what is there of a header; returns where to go on."""
        head = self._head
        if self._lost:
            return self._search(time, drained, payload, at)
        if not head:
            self._begun, self._drained = time, drained
            if at + HEADER_BYTES <= len(payload):
                self._accept(payload[at : at + HEADER_BYTES])
                return at + HEADER_BYTES
        taken = payload[at : at + HEADER_BYTES - len(head)]
        head += taken
        if len(head) == HEADER_BYTES:
            self._accept(memoryview(bytes(head)))
            head.clear()
        return at + len(taken)

    def _accept(self, header: memoryview) -> None:
        fields = HEADER.unpack(header)
        problem = check_header(fields, header)
        if problem:
            self.malformed = problem
            self.skipped += HEADER_BYTES
            return
        self._fields = fields
        self._remaining = fields[6]

    def _search(self, time: int, drained: int, payload: memoryview, at: int) -> int:
        """Look for the next header, after bytes that are not there."""
        head = self._head
        before = len(head)
        head += payload[at:]
        found = head.find(_START)
        while found >= 0 and found + HEADER_BYTES <= len(head):
            header = memoryview(bytes(head[found : found + HEADER_BYTES]))
            if not check_header(HEADER.unpack(header), header):
                self.skipped += found
                self._begun, self._drained = time, drained
                self._lost = False
                head.clear()
                self._accept(header)
                return at + found + HEADER_BYTES - before
            found = head.find(_START, found + 1)
        keep = HEADER_BYTES - 1 if found < 0 else len(head) - found
        self.skipped += max(0, len(head) - keep)
        del head[: max(0, len(head) - keep)]
        return len(payload)


def pack_header(fields: tuple[int, ...]) -> bytes:
    """The bytes of a header, with the checksum that it has."""
    return HEADER.pack(*fields)


def check_header(fields: tuple[int, ...], raw: memoryview) -> str:
    """What is wrong with a header; nothing if it is right."""
    if fields[0] != MAGIC or fields[1] != VERSION:
        return f"magic {fields[0]:#06x} version {fields[1]}: expected {MAGIC:#06x} version {VERSION}"
    if zlib.crc32(raw[:_CHECKED]) != fields[13]:
        return f"checksum {fields[13]:#010x} does not fit the header"
    if fields[5] or fields[3] & ~7:
        return f"reserved bits are set (flags {fields[3]:#04x}, reserved {fields[5]:#06x})"
    if fields[4] >= len(_LIMITS):
        return f"class {fields[4]}: expected 0 to 3"
    if fields[6] > _LIMITS[fields[4]]:
        return f"length {fields[6]}: the limit for class {CLASSES[fields[4]]} is {_LIMITS[fields[4]]}"
    return ""


class Binding(NamedTuple):
    """An endpoint's owner under one epoch, as it stands in a frame."""

    endpoint: str
    epoch: int
    node: str
    incarnation: int
    locator: str


class Cursor(NamedTuple):
    """What a STATE record says of one stream."""

    stream: int
    inbound: bool
    traffic_class: int
    peer: str
    label: str
    message: int
    offset: int
    held: list[tuple[int, int, int, memoryview]]
    """Messages that travel with it: number, start, end, and the bytes from ``start`` on."""


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def raw(self, size: int) -> memoryview:
        piece = self._data[self._at : self._at + size]
        if len(piece) < size:
            raise BodyError(f"ends after {len(self._data)} bytes, {size - len(piece)} bytes too early")
        self._at += size
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.raw(size), "big")

    def text(self, width: int = 1) -> str:
        return str(self.raw(self.number(width)), "utf-8", "strict")

    def binding(self) -> Binding:
        return Binding(self.text(), self.number(4), self.text(), self.number(8), self.text())

    def end(self) -> None:
        if self._at != len(self._data):
            raise BodyError(f"{len(self._data) - self._at} bytes too many")


def _hello(body: _Reader) -> dict[str, Any]:
    lowest, highest = body.number(1), body.number(1)
    fields = {"cluster": body.text(), "node": body.text(), "incarnation": body.number(8), "locator": body.text()}
    body.raw(16)
    return {"lowest": lowest, "highest": highest, **fields}


def _open(body: _Reader) -> dict[str, Any]:
    return {
        "from": body.text(),
        "to": body.text(),
        "label": body.text(),
        "class": body.number(1),
        "binding": body.binding(),
    }


def _stale(body: _Reader) -> dict[str, Any]:
    return {"binding": body.binding(), "refused": body.number(1)}


def _reset(body: _Reader) -> dict[str, Any]:
    return {"cause": body.number(1), "side": body.number(1), "text": body.text(2)}


def _ack(body: _Reader) -> dict[str, Any]:
    return {"limit": body.number(8)}


def _announce(body: _Reader) -> dict[str, Any]:
    return {"binding": body.binding()}


def _prepare(body: _Reader) -> dict[str, Any]:
    return {"endpoint": body.text(), "source": body.text(), "bytes": body.number(8)}


def _endpoint(body: _Reader) -> dict[str, Any]:
    return {"endpoint": body.text()}


_BODIES: dict[int, Callable[[_Reader], dict[str, Any]]] = {
    HELLO: _hello,
    OPEN: _open,
    STALE: _stale,
    RESET: _reset,
    ACK: _ack,
    ANNOUNCE: _announce,
    PREPARE: _prepare,
    COMMIT: _endpoint,
    COMMITTED: _endpoint,
}


def read_body(header: Header, payload: bytes) -> dict[str, Any]:
    """The fields of a control frame's body, for the types the checkers judge; empty for others. Raises BodyError."""
    reader = _BODIES.get(header.type)
    if reader is None or (header.type == RESET and header.flags & REPLY):
        return {}
    body = _Reader(memoryview(payload))
    try:
        fields = reader(body)
        body.end()
    except UnicodeDecodeError as error:
        raise BodyError(f"text that is not UTF-8: {error}") from error
    return fields


def read_state(record: memoryview) -> list[Cursor]:
    """The streams of a STATE record, from after its type byte on. Raises BodyError."""
    body = _Reader(record)
    cursors = []
    for _ in range(body.number(4)):
        stream, side, traffic_class = body.number(8), body.number(1), body.number(1)
        peer, label = body.text(), body.text()
        body.binding()
        message, offset = body.number(8), body.number(8)
        body.raw(8 + 1 + 8 + 8 + 4)  # credit limit, flags, FIN offset, FIN message, promised epoch
        held = []
        for _ in range(body.number(4)):
            number, start, end, size = body.number(8), body.number(8), body.number(8), body.number(8)
            held.append((number, start, end, body.raw(size)))
        cursors.append(Cursor(stream, side == 1, traffic_class, peer, label, message, offset, held))
    for _ in range(body.number(2)):
        body.text(), body.number(8), body.text()  # a witness: node, incarnation, locator
    body.end()
    return cursors
