"""Packet programs, read by scapy."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from testbed.network.programs import EcnMark, Trim, make_program
from testbed.network.vnet import HEADER_BYTES, PLAIN
from tests.network.frames import checksums_are_right, super_frame

NETWORKS = [IP(src="10.0.0.1", dst="10.0.0.2", tos=2), IPv6(src="fd00::1", dst="fd00::2", tc=2)]
BOTH = pytest.mark.parametrize("network", NETWORKS, ids=["IPv4", "IPv6"])


def mark_of(packet: Packet) -> int:
    return int(packet[IP].tos & 3 if IP in packet else packet[IPv6].tc & 3)


@BOTH
def test_ecn_marks_above_the_threshold_only(network: Packet) -> None:
    frame = bytes(Ether() / network / UDP() / Raw(bytes(100)))
    program = EcnMark(1000)
    assert program.run(frame, 0, 999) == frame
    marked = program.run(frame, 0, 1000)
    assert mark_of(Ether(marked)) == 3
    assert checksums_are_right(marked)
    assert sum(before != after for before, after in zip(frame, marked, strict=True)) <= 3


def test_ecn_leaves_alone_who_does_not_speak_it() -> None:
    for frame in (
        bytes(Ether() / IP(tos=0x50) / UDP()),
        bytes(Ether() / IPv6(tc=0x50) / UDP()),
        bytes(Ether(type=0x806)),
    ):
        assert EcnMark(0).run(frame, 0, 10) == frame


@BOTH
def test_ecn_marks_super_frames_behind_their_header(network: Packet) -> None:
    frame = super_frame(network, TCP(), bytes(5000), 1448)
    marked = EcnMark(0).run(frame, HEADER_BYTES, 1)
    assert marked[:HEADER_BYTES] == frame[:HEADER_BYTES]
    assert mark_of(Ether(marked[HEADER_BYTES:])) == 3


@BOTH
def test_trim_leaves_the_headers(network: Packet) -> None:
    frame = super_frame(network, UDP(sport=7, dport=9), bytes(1000), 0)
    assert Trim(500).run(frame, HEADER_BYTES, 499) == frame
    cut = Trim(500).run(frame, HEADER_BYTES, 500)
    assert len(cut) == HEADER_BYTES + Trim.KEPT
    assert cut.startswith(PLAIN)
    packet = Ether(cut[HEADER_BYTES:])
    assert (packet.sport, packet.dport, packet[UDP].len) == (7, 9, 1008)
    assert (packet[IP].len if IP in packet else packet[IPv6].plen + 40) == 50
    if IP in packet:
        del packet[IP].chksum
        assert bytes(packet) == cut[HEADER_BYTES:]


def test_trim_leaves_short_and_foreign_frames_alone() -> None:
    for frame in (bytes(Ether() / IP() / UDP()), bytes(Ether(type=0x88B5) / Raw(bytes(500)))):
        assert Trim(0).run(frame, 0, 1) == frame


def test_programs_are_made_from_their_notation() -> None:
    program = make_program("ecn-mark:64KiB")
    assert isinstance(program, EcnMark)
    assert program.threshold == 65536
    assert isinstance(make_program("trim:3000B"), Trim)


@pytest.mark.parametrize("text", ["ecn-mark", "mark:64KiB", "trim:64", "trim:64KB", "", "trim:-1B"])
def test_an_unknown_program_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(ValueError, match="expected one of ecn-mark:64KiB, trim:64KiB"):
        make_program(text)
