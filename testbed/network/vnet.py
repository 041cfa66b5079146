"""Ethernet frames as the kernel hands them over before segmentation: a virtio-net header in front.

With offloads on, a sender leaves two jobs to its network card: cutting a large TCP or UDP buffer into
segments and filling in the checksum. The header says which of the two are still to be done. On a link that
treats frames one by one they are done here, in software, so that every link behaves as if the frames had been
on a real wire.
"""

from __future__ import annotations

import struct

HEADER_BYTES = 10
"""Length of the virtio-net header that stands before the Ethernet header."""

PLAIN = bytes(HEADER_BYTES)
"""The header of a frame to which nothing is left to be done."""

_HEADER = struct.Struct("=BBHHHH")
_NEEDS_CHECKSUM = 1
_TCPV4, _TCPV6, _UDP_L4, _ECN = 1, 4, 5, 0x80
_FIN_PSH = 0x09
_CWR = 0x80


def is_super(frame: bytes) -> bool:
    """Whether the frame stands for several segments."""
    return frame[1] != 0


def headers_and_segment(frame: bytes) -> tuple[int, int]:
    """Bytes of Ethernet, network and transport header that every segment repeats, and payload bytes per
    segment."""
    _, kind, _, segment, start, _ = _HEADER.unpack_from(frame)
    if kind & ~_ECN == _UDP_L4:
        return start + 8, segment
    return start + (frame[HEADER_BYTES + start + 12] >> 4) * 4, segment


def wire_bytes(frame: bytes) -> int:
    """Bytes that the frame takes on a wire once it is cut into segments, Ethernet headers included."""
    length = len(frame) - HEADER_BYTES
    if not frame[1]:
        return length
    headers, segment = headers_and_segment(frame)
    return length + (max(1, -(-(length - headers) // segment)) - 1) * headers


def largest_segment(frame: bytes) -> int:
    """Bytes of the largest Ethernet frame that the frame stands for."""
    if not frame[1]:
        return len(frame) - HEADER_BYTES
    headers, segment = headers_and_segment(frame)
    return headers + segment


def checksum(data: bytes | memoryview) -> int:
    """The Internet checksum's one's complement sum of ``data``, folded to 16 bits, not inverted."""
    # 2**16 is 1 modulo 0xffff, so the number that the whole buffer makes has the sum as its remainder.
    number = int.from_bytes(data, "big")
    if len(data) % 2:
        number <<= 8
    return (number % 0xFFFF or 0xFFFF) if number else 0


def finish_checksum(frame: bytes) -> bytes:
    """The frame with its transport checksum filled in, if that was left to be done."""
    flags, _, _, _, start, offset = _HEADER.unpack_from(frame)
    if not flags & _NEEDS_CHECKSUM:
        return frame
    begin = HEADER_BYTES + start
    done = bytearray(frame)
    done[:HEADER_BYTES] = PLAIN
    # The field already holds the sum of the pseudo header, so summing over it takes that in. A computed zero
    # is sent as all ones: UDP reads zero as "no checksum", and for TCP the two are the same number.
    value = ~checksum(memoryview(done)[begin:]) & 0xFFFF
    struct.pack_into("!H", done, begin + offset, value or 0xFFFF)
    return bytes(done)


def split(frame: bytes) -> list[bytes]:
    """The segments that a network card would make of the frame, each with its checksum finished."""
    if not frame[1]:
        return [frame]
    _, kind, _, _, start, checksum_offset = _HEADER.unpack_from(frame)
    headers, segment = headers_and_segment(frame)
    head = frame[HEADER_BYTES : HEADER_BYTES + headers]
    payload = memoryview(frame)[HEADER_BYTES + headers :]
    pieces = [payload[at : at + segment] for at in range(0, len(payload), segment)] or [payload]
    network = _network_offset(head)
    tcp = kind & ~_ECN != _UDP_L4
    whole = len(frame) - HEADER_BYTES - start
    result = []
    for number, piece in enumerate(pieces):
        cut = bytearray(PLAIN + head + piece)
        struct.pack_into("=BBHHHH", cut, 0, _NEEDS_CHECKSUM, 0, 0, 0, start, checksum_offset)
        length = len(cut) - HEADER_BYTES - start
        _fix_network(cut, HEADER_BYTES + network, len(cut) - HEADER_BYTES - network, number)
        if tcp:
            _fix_tcp(cut, HEADER_BYTES + start, number * segment, number == 0, number == len(pieces) - 1)
        else:
            struct.pack_into("!H", cut, HEADER_BYTES + start + 4, length)
        _fix_pseudo_sum(cut, HEADER_BYTES + start + checksum_offset, length - whole)
        result.append(finish_checksum(bytes(cut)))
    return result


def _network_offset(head: bytes) -> int:
    at = 12
    while head[at : at + 2] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    return at + 2


def _fix_network(frame: bytearray, at: int, length: int, number: int) -> None:
    if frame[at] >> 4 == 6:
        struct.pack_into("!H", frame, at + 4, length - 40)
        return
    identification = (struct.unpack_from("!H", frame, at + 4)[0] + number) & 0xFFFF
    struct.pack_into("!HH", frame, at + 2, length, identification)
    fix_ipv4_checksum(frame, at)


def fix_ipv4_checksum(frame: bytearray, at: int) -> None:
    """Compute the checksum of the IPv4 header that begins at ``at`` afresh."""
    frame[at + 10 : at + 12] = b"\0\0"
    end = at + (frame[at] & 15) * 4
    struct.pack_into("!H", frame, at + 10, ~checksum(memoryview(frame)[at:end]) & 0xFFFF)


def _fix_tcp(frame: bytearray, at: int, offset: int, first: bool, last: bool) -> None:
    sequence = (struct.unpack_from("!I", frame, at + 4)[0] + offset) & 0xFFFFFFFF
    struct.pack_into("!I", frame, at + 4, sequence)
    if not last:
        frame[at + 13] &= ~_FIN_PSH & 0xFF
    if not first:
        frame[at + 13] &= ~_CWR & 0xFF


def _fix_pseudo_sum(frame: bytearray, at: int, difference: int) -> None:
    """The pseudo header holds the length of the segment: take the change of length into the sum that stands
    at ``at``."""
    total = (struct.unpack_from("!H", frame, at)[0] + difference) % 0xFFFF
    struct.pack_into("!H", frame, at, total)
