"""The bytes of a frame: header, control bodies, and their limits (specification: ``docs/wire.md``)."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from connex.core.binding import Binding
from connex.core.errors import RemoteProtocolError
from connex.core.identity import TrafficClass

MAGIC = 0x4358
VERSION = 1
_FIELDS = Struct(">HBBBBHIQQQQII")
_CHECKSUM = Struct(">I")
HEADER = Struct(">HBBBBHIQQQQIII")
HEADER_SIZE = HEADER.size

Buffer = bytes | bytearray | memoryview


class FrameType(IntEnum):
    HELLO = 1
    PROOF = 2
    REFUSED = 3
    HEARTBEAT = 4
    JOIN = 5
    LEAVE = 6
    OPEN = 16
    DATA = 17
    ACK = 18
    RESET = 19
    STALE = 20
    ANNOUNCE = 32
    RESOLVE = 33
    PREPARE = 48
    PREPARED = 49
    DECLINED = 50
    COMMIT = 51
    COMMITTED = 52
    RELEASE = 53
    RELEASED = 54
    ABORT = 55
    UNKNOWN = 56
    FENCE = 57


_new = tuple.__new__
"""Makes a named tuple in half the time."""
_TYPES = frozenset(int(kind) for kind in FrameType)


class Flag(IntFlag):
    NONE = 0
    REPLY = 1
    FIN = 2
    RETRANSMIT = 4


class Frame(NamedTuple):
    """One frame. ``payload`` may be a view into a buffer that lives only until the call it is passed to returns."""

    type: int
    flags: int = 0
    traffic_class: int = 0
    stream: int = 0
    message: int = 0
    offset: int = 0
    end: int = 0
    sender_epoch: int = 0
    destination_epoch: int = 0
    payload: Buffer = b""


def encode_header(frame: Frame) -> bytes:
    """The 56 header bytes of ``frame``; its payload follows them on the channel."""
    kind, flags, traffic_class, stream, message, offset, end, sender, destination, payload = frame
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        kind,
        flags,
        traffic_class,
        0,
        len(payload),
        stream,
        message,
        offset,
        end,
        sender,
        destination,
    )
    return fields + _CHECKSUM.pack(crc32(fields))


def encode(frame: Frame) -> bytes:
    """The whole frame as bytes (copies the payload; for control frames and tests)."""
    return encode_header(frame) + frame.payload


def decode_header(data: Buffer, start: int = 0, payload: Buffer = b"") -> tuple[Frame, int]:
    """Read the header at ``data[start:]``: the frame with the payload given, and the payload's length as it says.

    Raises RemoteProtocolError if it is not a header of this version or its checksum does not match.
    """
    (
        magic,
        version,
        kind,
        flags,
        traffic_class,
        reserved,
        length,
        stream,
        message,
        offset,
        end,
        sender,
        destination,
        check,
    ) = HEADER.unpack_from(data, start)
    if crc32(data[start : start + 52]) != check:
        raise RemoteProtocolError("frame header: checksum does not match")
    if magic != MAGIC or version != VERSION or reserved or flags > 7 or traffic_class > 3 or kind not in _TYPES:
        raise RemoteProtocolError(
            f"frame header: magic {magic:#06x}, version {version}, type {kind}, flags {flags:#x},"
            f" class {traffic_class}:"
            f" expected magic {MAGIC:#06x}, version {VERSION} and a type, flags and class of docs/wire.md"
        )
    fields = (kind, flags, traffic_class, stream, message, offset, end, sender, destination, payload)
    return _new(Frame, fields), length


class BodyReader:
    """Reads the typed fields of a control body in order; raises RemoteProtocolError where it is too short or too
    long.
    """

    def __init__(self, body: Buffer) -> None:
        self._body = bytes(body)
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._body):
            raise RemoteProtocolError(f"control body of {len(self._body)} bytes: expected at least {end}")
        piece = self._body[self._at : end]
        self._at = end
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self, size: int = 1) -> str:
        raw = self.take(self.number(size))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"control body: {raw!r} is not UTF-8") from error

    def binding(self) -> Binding:
        return Binding(self.text(), self.number(4), self.text(), self.number(8), self.text())

    def rest(self) -> bytes:
        return self.take(len(self._body) - self._at)

    def finish(self) -> None:
        if self._at != len(self._body):
            raise RemoteProtocolError(f"control body of {len(self._body)} bytes: expected {self._at}")


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


def text(value: str, size: int = 1) -> bytes:
    raw = value.encode()[: (1 << 8 * size) - 1]
    return len(raw).to_bytes(size, "big") + raw


def binding(value: Binding) -> bytes:
    return (
        text(value.endpoint)
        + number(value.epoch, 4)
        + text(value.node)
        + number(value.incarnation, 8)
        + text(value.locator)
    )


def class_limit(traffic_class: TrafficClass | int) -> int:
    """Largest payload that a frame of the class may carry, in bytes."""
    return 16 * 1024 if traffic_class <= TrafficClass.TOKEN else 256 * 1024
