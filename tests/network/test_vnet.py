"""Frames with offloads: what they stand for on a wire, checked by scapy."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from testbed.network import vnet
from tests.network.frames import checksums_are_right, super_frame

SEGMENT = 1448
PAYLOAD = Random(7).randbytes(10 * SEGMENT + 100)


def networks() -> list[Packet]:
    return [IP(src="10.0.0.1", dst="10.0.0.2", id=65530), IPv6(src="fd00::1", dst="fd00::2")]


def tcp(flags: str = "PA") -> Packet:
    return TCP(sport=1, dport=2, seq=2**32 - 3000, ack=5, flags=flags, options=[("Timestamp", (1, 2))])


@pytest.mark.parametrize("network", networks(), ids=["IPv4", "IPv6"])
def test_tcp_is_cut_as_a_network_card_would(network: Packet) -> None:
    pieces = vnet.split(super_frame(network, tcp("PAFC"), PAYLOAD, SEGMENT))
    assert len(pieces) == 11
    assert all(piece.startswith(vnet.PLAIN) for piece in pieces)
    frames = [Ether(piece[vnet.HEADER_BYTES :]) for piece in pieces]
    assert all(checksums_are_right(piece[vnet.HEADER_BYTES :]) for piece in pieces)
    assert b"".join(bytes(frame[TCP].payload) for frame in frames) == PAYLOAD
    sequence = 2**32 - 3000
    assert [frame[TCP].seq for frame in frames] == [(sequence + number * SEGMENT) % 2**32 for number in range(11)]
    assert [str(frame[TCP].flags) for frame in frames] == ["AC"] + ["A"] * 9 + ["FPA"]
    if IP in frames[0]:
        assert [frame[IP].id for frame in frames] == [(65530 + number) % 65536 for number in range(11)]


@pytest.mark.parametrize("network", networks(), ids=["IPv4", "IPv6"])
def test_udp_is_cut_into_datagrams(network: Packet) -> None:
    pieces = vnet.split(super_frame(network, UDP(sport=1, dport=2), PAYLOAD, 1000))
    frames = [Ether(piece[vnet.HEADER_BYTES :]) for piece in pieces]
    assert all(checksums_are_right(piece[vnet.HEADER_BYTES :]) for piece in pieces)
    assert b"".join(bytes(frame[UDP].payload) for frame in frames) == PAYLOAD
    assert {frame[UDP].len for frame in frames[:-1]} == {1008}


@pytest.mark.parametrize("transport", [tcp(), UDP(sport=1, dport=2)], ids=["TCP", "UDP"])
@pytest.mark.parametrize("network", networks(), ids=["IPv4", "IPv6"])
def test_a_checksum_left_to_be_done_is_finished(network: Packet, transport: Packet) -> None:
    """T33"""
    frame = super_frame(network, transport, b"odd", 0)
    assert not checksums_are_right(frame[vnet.HEADER_BYTES :])
    done = vnet.finish_checksum(frame)
    assert done.startswith(vnet.PLAIN)
    assert checksums_are_right(done[vnet.HEADER_BYTES :])
    assert vnet.finish_checksum(done) is done


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 65_000), st.integers(200, 8948), st.booleans())
def test_a_super_frame_takes_the_wire_bytes_of_its_segments(size: int, segment: int, six: bool) -> None:
    network = networks()[six]
    frame = super_frame(network, TCP(sport=1, dport=2), bytes(size), segment)
    pieces = vnet.split(frame)
    assert vnet.wire_bytes(frame) == sum(len(piece) - vnet.HEADER_BYTES for piece in pieces)
    assert max(len(piece) - vnet.HEADER_BYTES for piece in pieces) <= vnet.largest_segment(frame)


def test_an_ordinary_frame_is_what_it_is() -> None:
    frame = vnet.PLAIN + bytes(60)
    assert vnet.wire_bytes(frame) == vnet.largest_segment(frame) == 60
    assert vnet.split(frame) == [frame]


@given(st.binary(max_size=200))
def test_checksum_is_the_sum_of_rfc_1071(data: bytes) -> None:
    padded = data + bytes(len(data) % 2)
    total = sum(int.from_bytes(padded[at : at + 2], "big") for at in range(0, len(padded), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert vnet.checksum(data) == total
