"""Frames for the tests of the network model, built and read by scapy: a second opinion on every byte."""

from __future__ import annotations

import struct

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

NEEDS_CHECKSUM = 1
TCPV4, TCPV6, UDP_L4 = 1, 4, 5


def mac(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


def ethernet(source: int, destination: int, payload: bytes = b"", *, broadcast: bool = False) -> bytes:
    """An Ethernet frame from node to node that holds nothing a switch would look at."""
    to = "ff:ff:ff:ff:ff:ff" if broadcast else mac(destination)
    return bytes(Ether(src=mac(source), dst=to, type=0x88B5) / Raw(payload or bytes(46)))


def super_frame(network: Packet, transport: Packet, payload: bytes, segment: int) -> bytes:
    """What a kernel with offloads sends: one large packet with a virtio-net header, its checksum left to be done."""
    packet = Ether(src=mac(1), dst=mac(2)) / network / transport
    head = 14 + len(network)
    six = isinstance(network, IPv6)
    kind = UDP_L4 if isinstance(transport, UDP) else TCPV6 if six else TCPV4
    offset = 6 if isinstance(transport, UDP) else 16
    data = bytearray(bytes(packet / Raw(payload)))
    length = len(data) - head
    pseudo = (data[22:54] if six else data[26:34]) + struct.pack("!HH", 17 if offset == 6 else 6, length)
    total = sum(struct.unpack(f"!{len(pseudo) // 2}H", pseudo))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("!H", data, head + offset, total)
    return struct.pack("=BBHHHH", NEEDS_CHECKSUM, kind if segment else 0, 0, segment, head, offset) + bytes(data)


def checksums_are_right(frame: bytes) -> bool:
    """Whether scapy, computing all checksums of an Ethernet frame afresh, gets the same bytes."""
    packet = Ether(frame)
    for layer in (IP, TCP, UDP):
        if layer in packet:
            del packet[layer].chksum
    return bytes(packet) == frame
