"""Captures of real traffic: by the wire, and independently at the node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from faults.impairment import Impairment
from testbed.backends.sniffer import Point, Sniffer, SnifferFailed
from testbed.backends.wire import Wire
from testbed.backends.wire_capture import Recorder
from testbed.capture import INBOUND, OUTBOUND, CaptureReader, Packet
from testbed.errors import CannotRun
from tests.wire import traffic
from tests.wire.lab import Lab, StartWire

pytestmark = [pytest.mark.live, pytest.mark.needs("root", "raw-sockets")]


def paths(folder: Path, lab: Lab) -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    return {port: folder / f"{port.replace(':', '.')}.pcapng" for port in lab.attachments}


def read(path: Path) -> list[Packet]:
    with CaptureReader(path) as reader:
        packets = list(reader)
    assert (reader.closed, reader.dropped, reader.truncated) == (True, 0, 0)
    return packets


def of_traffic(packets: list[Packet], direction: int) -> list[bytes]:
    """The IPv4 TCP and UDP frames of one direction: what the tests send, without the kernel's own chatter."""
    return [
        bytes(packet.data)
        for packet in packets
        if packet.direction == direction and bytes(packet.data[12:14]) == b"\x08\x00" and packet.data[23] in (6, 17)
    ]


def points(folder: Path, lab: Lab) -> dict[str, Point]:
    return {port: Point(lab.nodes[port[0]], "eth1", path) for port, path in paths(folder, lab).items()}


def udp_times(path: Path) -> dict[bytes, int]:
    """UDP frames, with their times on the monotonic clock."""
    with CaptureReader(path) as reader:
        times = {bytes(packet.data): packet.time for packet in reader if packet.data[23] == 17}
    assert reader.offset is not None
    return {frame: time - reader.offset for frame, time in times.items()}


def tcpdump_lines(path: Path) -> int:
    run = subprocess.run(["tcpdump", "-Z", "root", "-nr", str(path)], capture_output=True, text=True, check=True)
    return len(run.stdout.splitlines())


@pytest.mark.parametrize("offloads", [True, False], ids=["offloads on", "offloads off"])
async def test_the_wires_capture_and_the_nodes_own_agree(
    offloads: bool, lab: Lab, start_wire: StartWire, tmp_path: Path
) -> None:
    """T44, T45: every frame is seen once per direction at each of the two points, none is missing.

    Not in the same order: two processors may send through one interface at the same time.
    """
    if not offloads:
        lab.switch_off_offloads()
    by_wire, by_node = paths(tmp_path / "wire", lab), paths(tmp_path / "node", lab)
    async with start_wire(lab, captures=by_wire) as wire:
        sniffer = await Sniffer.start(points(tmp_path / "node", lab), log=tmp_path / "sniffer.log")
        await wire.impair("a--s", "a-to-b", {"loss": 0.02})
        await traffic.tcp_transfer(lab, "a", "b", socket.AF_INET, 1_000_000)
        traffic.udp_exchange(lab, "b", "a", socket.AF_INET, [100, 5000])
        # A lost FIN is sent again later: one point may see it and the other have been closed by then.
        end = time.monotonic_ns()
        counted = await sniffer.stop()
        stats = await wire.stop()
    assert stats.capture_dropped == 0
    for port in ("a:eth1", "b:eth1"):
        wires, nodes = read(by_wire[port]), read(by_node[port])
        assert counted[port].frames == len(nodes)
        assert stats.captures[port].frames == len(wires)
        for direction in (INBOUND, OUTBOUND):
            assert len(of_traffic(nodes, direction)) > 10
            assert until(by_wire[port], direction, end) <= Counter(of_traffic(nodes, direction))
            assert until(by_node[port], direction, end) <= Counter(of_traffic(wires, direction))
    assert (tmp_path / "sniffer.log").read_text() == ""


def until(path: Path, direction: int, end: int) -> Counter[bytes]:
    """The traffic of one direction, how often each frame, up to a time on the monotonic clock."""
    with CaptureReader(path) as reader:
        packets = list(reader)
    assert reader.offset is not None
    offset = reader.offset
    return Counter(of_traffic([packet for packet in packets if packet.time - offset <= end], direction))


async def test_both_points_tell_the_same_time(lab: Lab, start_wire: StartWire, tmp_path: Path) -> None:
    by_wire = paths(tmp_path / "wire", lab)
    async with start_wire(lab, captures=by_wire) as wire:
        sniffer = await Sniffer.start(points(tmp_path / "node", lab), log=tmp_path / "sniffer.log")
        await wire.impair("b--s", "b-to-a", {"delay": 30_000_000})
        for size in range(100, 110):
            traffic.udp_exchange(lab, "a", "b", socket.AF_INET, [size])
        await sniffer.stop()
    sent = udp_times(by_wire["a:eth1"])
    arrived = udp_times(paths(tmp_path / "node", lab)["b:eth1"])
    transits = [arrived[frame] - sent[frame] for frame in sent if frame in arrived]
    assert len(transits) >= 10
    assert 30_000_000 <= min(transits) < 32_000_000


@pytest.mark.needs("tcpdump")
async def test_tools_read_the_wires_captures(lab: Lab, start_wire: StartWire, tmp_path: Path) -> None:
    by_wire = paths(tmp_path / "wire", lab)
    async with start_wire(lab, captures=by_wire) as wire:
        await traffic.tcp_transfer(lab, "a", "b", socket.AF_INET, 500_000)
        stats = await wire.stop()
    for port, path in by_wire.items():
        assert tcpdump_lines(path) == stats.captures[port].frames == len(read(path))


async def test_a_killed_wire_leaves_a_capture_up_to_its_last_record(lab: Lab, tmp_path: Path) -> None:
    """T43"""
    by_wire = paths(tmp_path / "wire", lab)
    wire = await Wire.start(lab.star(Impairment()), lab.attachments, lab.fabric, captures=by_wire, log=tmp_path / "log")
    await traffic.tcp_transfer(lab, "a", "b", socket.AF_INET, 500_000)
    traffic.udp_exchange(lab, "a", "b", socket.AF_INET, [100] * 50)
    os.kill(wire.pid, signal.SIGKILL)
    await wire.kill()
    with CaptureReader(by_wire["a:eth1"]) as reader:
        packets = list(reader)
    assert not reader.closed
    assert sum(len(packet.data) for packet in packets) > 500_000


def test_a_disk_that_is_full_is_counted_as_frames_not_captured(tmp_path: Path) -> None:
    recorder = Recorder({"a:eth1": Path("/dev/full")}, close_in_writer=[])
    tap = recorder.taps["a:eth1"]
    for number in range(1000):
        tap.add(number, OUTBOUND, bytes(1510))
        recorder.flush()
    recorder.close(1000)
    assert tap.stats.dropped == 1000
    assert tap.stats.frames == 0


def test_a_writer_that_does_not_keep_up_loses_frames_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.pcapng"
    recorder = Recorder({"a:eth1": path}, close_in_writer=[])
    tap = recorder.taps["a:eth1"]
    os.kill(recorder.writer, signal.SIGSTOP)
    for number in range(3000):
        tap.add(number, OUTBOUND, bytes(60_010))
        recorder.flush()
    os.kill(recorder.writer, signal.SIGCONT)
    recorder.close(3000)
    with CaptureReader(path) as reader:
        written = sum(1 for _ in reader)
    assert reader.closed
    assert tap.stats.frames == written
    assert reader.dropped == tap.stats.dropped == 3000 - written > 500


async def test_a_capture_process_that_is_killed_is_noticed(lab: Lab, tmp_path: Path) -> None:
    sniffer = await Sniffer.start(points(tmp_path / "node", lab), log=tmp_path / "log")
    os.kill(sniffer.pid, signal.SIGKILL)
    with pytest.raises(SnifferFailed, match="captures are incomplete"):
        await sniffer.failed
    with pytest.raises(SnifferFailed):
        await sniffer.stop()


async def test_the_capture_process_says_why_it_cannot_start(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="port a:eth1, interface 'eth7'"):
        await Sniffer.start({"a:eth1": Point(lab.nodes["a"], "eth7", tmp_path / "x")}, log=tmp_path / "log")


async def test_duplicates_on_the_network_are_seen_twice_where_they_arrive(
    lab: Lab, start_wire: StartWire, tmp_path: Path
) -> None:
    """T45: what the network doubles is in the capture twice, what is merely seen at two points is not."""
    by_wire = paths(tmp_path / "wire", lab)
    async with start_wire(lab, captures=by_wire) as wire:
        traffic.round_trip(lab, "a", "b")
        await wire.impair("a--s", "a-to-b", {"duplicate": 1.0})
        traffic.udp_exchange(lab, "a", "b", socket.AF_INET, [333])
    sent = Counter(of_traffic(read(by_wire["a:eth1"]), OUTBOUND))
    got = Counter(of_traffic(read(by_wire["b:eth1"]), INBOUND))
    (datagram,) = [frame for frame in sent if len(frame) == 333 + 42]
    assert (sent[datagram], got[datagram]) == (1, 2)


async def test_frames_that_the_capture_process_had_no_room_for_are_counted(
    lab: Lab, start_wire: StartWire, tmp_path: Path
) -> None:
    """T44"""
    path = tmp_path / "c.pcapng"
    async with start_wire(lab):
        traffic.round_trip(lab, "a", "b")
        sniffer = await Sniffer.start({"a:eth1": Point(lab.nodes["a"], "eth1", path)}, log=tmp_path / "log")
        os.kill(sniffer.pid, signal.SIGSTOP)
        traffic.blast(lab, "a", "b", 15_000)
        os.kill(sniffer.pid, signal.SIGCONT)
        stats = (await sniffer.stop())["a:eth1"]
    with CaptureReader(path) as reader:
        written = sum(1 for _ in reader)
    assert stats.frames == written
    assert reader.dropped == stats.dropped > 1000
    assert written + stats.dropped >= 15_000
