"""Capture files: what is written is read back, here and by the tools people have."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import PcapNgReader

from testbed import capture
from testbed.capture import INBOUND, OUTBOUND, CaptureError, CaptureReader, CaptureWriter


def frames(count: int) -> list[bytes]:
    return [bytes(Ether(type=0x0800) / IP(id=n) / UDP(sport=n) / Raw(bytes(n % 7))) for n in range(1, count + 1)]


def write(path: Path, count: int, *, dropped: int = 0, close: bool = True) -> CaptureWriter:
    writer = CaptureWriter(path, "eth1", "at a test")
    for number, frame in enumerate(frames(count)):
        writer.write(1_000_000_007 * number, INBOUND if number % 2 else OUTBOUND, frame)
    if close:
        writer.close(5_000_000_000, dropped)
    else:
        writer.flush()
    return writer


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.eth1.pcapng"
    writer = write(path, 5, dropped=3)
    with CaptureReader(path) as reader:
        packets = list(reader)
    assert [bytes(packet.data) for packet in packets] == frames(5)
    assert [packet.direction for packet in packets] == [OUTBOUND, INBOUND, OUTBOUND, INBOUND, OUTBOUND]
    assert [packet.time - writer.offset for packet in packets] == [1_000_000_007 * number for number in range(5)]
    assert (reader.interface, reader.offset, reader.comment.split(";")[0]) == ("eth1", writer.offset, "at a test")
    assert (reader.closed, reader.dropped, reader.truncated) == (True, 3, 0)


def test_the_offset_leads_from_the_monotonic_clock_to_the_wall_clock() -> None:
    import time

    before = time.time_ns()
    now = time.monotonic_ns() + capture.clock_offset()
    assert abs(now - before) < 100_000_000


@pytest.mark.needs("tcpdump")
def test_tcpdump_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "c.pcapng"
    write(path, 9)
    run = subprocess.run(["tcpdump", "-Z", "root", "-nr", str(path)], capture_output=True, text=True, check=True)
    assert len(run.stdout.splitlines()) == 9
    assert "EN10MB" in run.stderr


@pytest.mark.slow
@pytest.mark.needs("tshark")
def test_tshark_reads_it_with_directions_and_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "c.pcapng"
    writer = write(path, 3, dropped=2)
    fields = [
        "-T",
        "fields",
        "-e",
        "frame.time_epoch",
        "-e",
        "frame.packet_flags_direction",
        "-e",
        "frame.interface_name",
    ]
    run = subprocess.run(["tshark", "-r", str(path), *fields], capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in run.stdout.splitlines()]
    assert [int(row[1], 0) for row in rows] == [OUTBOUND, INBOUND, OUTBOUND]
    assert {row[2] for row in rows} == {"eth1"}
    stamp = writer.offset + 1_000_000_007
    assert rows[1][0] == f"{stamp // 10**9}.{stamp % 10**9:09}" or str(stamp % 10**9) in rows[1][0]


def test_scapy_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "c.pcapng"
    writer = write(path, 6)
    with PcapNgReader(str(path)) as reader:
        packets = list(reader)
    assert [bytes(packet) for packet in packets] == frames(6)
    assert int(packets[1].time * 10**9) == writer.offset + 1_000_000_007


def test_a_truncated_tail_is_read_up_to_the_last_full_record_and_said(tmp_path: Path) -> None:
    """T43"""
    whole = tmp_path / "whole.pcapng"
    write(whole, 4, close=False)
    data = whole.read_bytes()
    boundaries = {len(data)}
    with CaptureReader(whole) as reader:
        assert len(list(reader)) == 4
        assert (reader.closed, reader.truncated) == (False, 0)
    last = len(capture.packet(0, INBOUND, frames(4)[3]))
    boundaries.add(len(data) - last)
    for length in range(len(data) - last, len(data) + 1):
        cut = tmp_path / "cut.pcapng"
        cut.write_bytes(data[:length])
        with CaptureReader(cut) as reader:
            packets = list(reader)
        assert len(packets) == (4 if length == len(data) else 3)
        assert reader.truncated == (0 if length in boundaries else length - (len(data) - last))
        assert not reader.closed


def test_an_empty_file_is_an_unclosed_capture(tmp_path: Path) -> None:
    path = tmp_path / "empty.pcapng"
    path.write_bytes(b"")
    with CaptureReader(path) as reader:
        assert list(reader) == []
        assert not reader.closed


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.pcapng"
    path.write_bytes(b"this is a text and not a capture")
    with CaptureReader(path) as reader, pytest.raises(CaptureError, match="not a pcapng capture"):
        list(reader)


def test_damage_in_the_middle_is_an_error_not_an_end(tmp_path: Path) -> None:
    path = tmp_path / "c.pcapng"
    write(path, 4)
    data = bytearray(path.read_bytes())
    at = data.index(capture.packet(0, 0, b"")[:4], 100)
    struct.pack_into("<I", data, at + 4, 7)
    path.write_bytes(data)
    with CaptureReader(path) as reader, pytest.raises(CaptureError, match="a block of 7 bytes"):
        list(reader)


def test_big_endian_files_and_microseconds_are_understood(tmp_path: Path) -> None:
    def block(kind: int, body: bytes) -> bytes:
        return struct.pack(">II", kind, len(body) + 12) + body + struct.pack(">I", len(body) + 12)

    path = tmp_path / "c.pcapng"
    section = block(0x0A0D0D0A, struct.pack(">IHHq", 0x1A2B3C4D, 1, 0, -1))
    interface = block(1, struct.pack(">HHI", 1, 0, 0))
    packet = block(6, struct.pack(">IIIII", 0, 0, 1_500_000, 4, 4) + b"abcd")
    path.write_bytes(section + interface + packet)
    with CaptureReader(path) as reader:
        (only,) = reader
    assert (only.time, only.direction, bytes(only.data)) == (1_500_000_000, 0, b"abcd")


@given(st.lists(st.binary(max_size=100), max_size=5), st.integers(0, 400))
def test_whole_blocks_finds_the_last_complete_one(payloads: list[bytes], cut: int) -> None:
    blocks = [capture.packet(1, INBOUND, payload) for payload in payloads]
    data = b"".join(blocks)[:cut]
    ends = [sum(map(len, blocks[:count])) for count in range(len(blocks) + 1)]
    assert capture.whole_blocks(data) == max(end for end in ends if end <= len(data))
