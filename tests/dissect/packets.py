"""Ethernet frames with TCP in them, made by hand so that thousands are quick."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable

from testbed.reassembly import INBOUND, OUTBOUND, Flow, Reassembler, Tally

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
MS = 1_000_000


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071), word by word."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tcp(
    source: tuple[str, int], destination: tuple[str, int], sequence: int, ack: int = 0, flags: int = ACK,
    payload: bytes = b"", *, window: int = 512, unfinished: bool = False,
    options: bytes = b"", vlan: bool = False, extension: bool = False,
) -> bytes:  # fmt: skip
    """One frame. ``unfinished``: only the sum of the pseudo-header is there, as on a veth with offload."""
    one, other = ipaddress.ip_address(source[0]), ipaddress.ip_address(destination[0])
    words = 5 + len(options) // 4
    head = struct.pack(
        ">HHIIHHHH",
        source[1],
        destination[1],
        sequence & 0xFFFFFFFF,
        ack & 0xFFFFFFFF,
        words << 12 | flags,
        window,
        0,
        0,
    )
    segment = head + options + payload
    pseudo = one.packed + other.packed + struct.pack(">II", len(segment), 6)
    total = ~checksum(pseudo) & 0xFFFF if unfinished else checksum(pseudo + segment)
    segment = segment[:16] + struct.pack(">H", total) + segment[18:]
    if one.version == 4:
        network = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), 7, 0x4000, 64, 6, 0) + one.packed + other.packed
        network = network[:10] + struct.pack(">H", checksum(network)) + network[12:]
    else:
        between = bytes([6, 0, 1, 4, 0, 0, 0, 0]) if extension else b""
        network = struct.pack(">IHBB", 0x60000000, len(between) + len(segment), 0 if extension else 6, 64)
        network += one.packed + other.packed + between
    kind = b"\x08\x00" if one.version == 4 else b"\x86\xdd"
    return bytes(12) + (b"\x81\x00\x00\x05" if vlan else b"") + kind + network + segment


class Bytes:
    """A sink that keeps what it gets: bytes, and None for each byte in a hole."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.bytes: list[int | None] = []
        self.times: list[tuple[int, int]] = []

    def data(self, time: int, drained: int, payload: memoryview) -> None:
        self.bytes += list(payload)
        self.times.append((time, drained))

    def hole(self, time: int, length: int) -> None:
        self.bytes += [None] * length

    @property
    def whole(self) -> bytes:
        assert None not in self.bytes
        return bytes(byte for byte in self.bytes if byte is not None)


def reassemble(packets: Iterable[tuple[int, int, bytes]], local: Iterable[str] = ()) -> tuple[list[Bytes], Tally]:
    """All flows of (time, direction, frame)."""
    sinks: list[Bytes] = []

    def open_sink(flow: Flow) -> Bytes:
        sinks.append(Bytes(flow))
        return sinks[-1]

    reassembler = Reassembler(open_sink, local)
    for time, direction, data in packets:
        reassembler.packet(time, direction, memoryview(data))
    return sinks, reassembler.finish()


__all__ = ["ACK", "FIN", "INBOUND", "MS", "OUTBOUND", "PSH", "RST", "SYN", "Bytes", "reassemble", "tcp"]
