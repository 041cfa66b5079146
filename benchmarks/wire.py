"""How fast the wire relays, beside a plain kernel bridge between the same interfaces, measured in the same
run.

python -m benchmarks.wire [--repeats 5] [--seconds 1]

Rows are medians over the repeats. "Flood" is a sender that never waits, of 1514-byte frames; "paced" one that
sends at an even rate (a few frames every 100 us) and does not catch up on what it missed. Delay error: how
much later than the model says a frame left.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import multiprocessing
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyroute2 import IPRoute

from faults.impairment import Impairment
from testbed.backends.wire import Wire
from testbed.backends.wire_linux import Waiter, schedule_in_real_time
from testbed.backends.wire_stats import WireStats
from tests.wire.lab import Lab, inside

FRAME_BYTES = 1514
GOAL_FRAMES, GOAL_GBIT, GOAL_ERROR_US = 80_000, 4.0, 300
PACED = (20_000, 40_000, 80_000)
DELAY = 500_000
PORT = 5001
_BATCH = 16
_TICK = 100_000
_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20
_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was measured, on the wire and on the bridge, and what was to be reached."""

    what: str
    wire: float
    bridge: float | None
    unit: str
    goal: str
    reached: bool


def udp_frame(lab: Lab) -> bytes:
    """A full-sized UDP frame from node a to node b."""
    size = FRAME_BYTES - 14
    addresses = socket.inet_aton(lab.ipv4("a")) + socket.inet_aton(lab.ipv4("b"))
    ip = struct.pack("!BBHHHBBH8s", 0x45, 0, size, 0, 0, 64, 17, 0, addresses)
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + ip[12:]
    udp = struct.pack("!HHHH", PORT, PORT, size - 20, 0)
    return lab.mac("b") + lab.mac("a") + b"\x08\x00" + ip + udp + bytes(size - 28)


def send_frames(lab: Lab, rate: int, seconds: float) -> None:
    """In a process of its own: ``rate`` frames a second, evenly; 0: as many as possible."""
    with inside(lab.nodes["a"]):
        outlet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        outlet.bind(("eth1", 0))
    outlet.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
    frame = ctypes.create_string_buffer(udp_frame(lab), FRAME_BYTES)
    vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(frame), FRAME_BYTES))
    message = struct.pack("QI4xQQQQI4xI4x", 0, 0, ctypes.addressof(vector), 1, 0, 0, 0, 0)
    messages = ctypes.create_string_buffer(message * _BATCH)
    send = ctypes.CDLL(None).sendmmsg
    end = time.monotonic_ns() + int(seconds * 1e9)
    if not rate:
        while time.monotonic_ns() < end:
            send(outlet.fileno(), messages, _BATCH, 0)
        return
    schedule_in_real_time()
    sleep = Waiter([]).wait
    burst = max(1, rate * _TICK // 1_000_000_000)
    gap = burst * 1_000_000_000 // rate
    due = time.monotonic_ns()
    while due < end:
        late = time.monotonic_ns() - due
        if late < 0:
            sleep(-late)
            continue
        send(outlet.fileno(), messages, burst, 0)
        due += gap if late < gap else late


def received(lab: Lab) -> int:
    """Frames that have reached node b."""
    with inside(lab.nodes["b"]):
        text = Path("/proc/thread-self/net/dev").read_text()
    line = next(line for line in text.splitlines() if line.strip().startswith("eth1:"))
    return int(line.split()[2])


async def frames_per_second(lab: Lab, rate: int, seconds: float) -> float:
    before, begun = received(lab), time.monotonic()
    sender = _fork.Process(target=send_frames, args=(lab, rate, seconds))
    sender.start()
    await asyncio.to_thread(sender.join)
    return (received(lab) - before) / (time.monotonic() - begun)


def send_tcp(connection: socket.socket, seconds: float) -> None:
    block = bytes(1 << 20)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(block)
    connection.close()


async def tcp_gbit(lab: Lab, seconds: float) -> float:
    with inside(lab.nodes["b"]):
        listener = socket.create_server((lab.ipv4("b"), PORT))
    with inside(lab.nodes["a"]):
        connection = socket.socket()
    await asyncio.to_thread(connection.connect, (lab.ipv4("b"), PORT))
    inlet, _ = listener.accept()
    sender = _fork.Process(target=send_tcp, args=(connection, seconds))
    sender.start()
    connection.close()
    listener.close()
    begun = time.monotonic()
    total = await asyncio.to_thread(_drain, inlet)
    spent = time.monotonic() - begun
    await asyncio.to_thread(sender.join)
    return total * 8 / spent / 1e9


def _drain(inlet: socket.socket) -> int:
    buffer, total = bytearray(1 << 20), 0
    with inlet:
        while count := inlet.recv_into(buffer):
            total += count
    return total


def bridge(lab: Lab, up: bool) -> None:
    """Join the fabric's interfaces by a kernel bridge, or take it away again."""
    with inside(lab.fabric), IPRoute() as ip:
        if not up:
            ip.link("del", ifname="br0")
            return
        ip.link("add", ifname="br0", kind="bridge")
        index = ip.link_lookup(ifname="br0")[0]
        for interface in lab.attachments.values():
            ip.link("set", ifname=interface, master=index)
        ip.link("set", ifname="br0", state="up")


async def on_wire(
    lab: Lab, delay: int, measure: Callable[[], Awaitable[float]], folder: Path
) -> tuple[float, WireStats]:
    """A measurement with a wire of its own, so that its statistics are those of the measurement."""
    wire = await Wire.start(lab.star(Impairment(delay=delay)), lab.attachments, lab.fabric, log=folder / "wire.log")
    result = await measure()
    return result, await wire.stop()


async def measure_wire(lab: Lab, seconds: float, folder: Path) -> dict[str, float]:
    """One repeat on the wire."""
    figures = {}
    figures["flood"], stats = await on_wire(lab, 0, partial(frames_per_second, lab, 0, seconds), folder)
    figures["tcp"], stats = await on_wire(lab, 0, partial(tcp_gbit, lab, seconds), folder)
    for rate in PACED:
        figures[f"rate {rate}"], stats = await on_wire(
            lab, DELAY, partial(frames_per_second, lab, rate, seconds), folder
        )
        figures[f"p50 {rate}"], figures[f"p99 {rate}"] = stats.lag_p50_ns / 1e3, stats.lag_p99_ns / 1e3
    figures["sched"] = float(stats.sched != "other")
    return figures


async def measure_bridge(lab: Lab, seconds: float) -> dict[str, float]:
    return {"flood": await frames_per_second(lab, 0, seconds), "tcp": await tcp_gbit(lab, seconds)}


def measure(repeats: int, seconds: float) -> list[Row]:
    wires, bridges = [], []
    with tempfile.TemporaryDirectory() as folder, Lab(["a", "b"]) as lab:
        for _ in range(repeats):
            wires.append(asyncio.run(measure_wire(lab, seconds, Path(folder))))
            bridge(lab, True)
            bridges.append(asyncio.run(measure_bridge(lab, seconds)))
            bridge(lab, False)
    wire = {name: statistics.median(run[name] for run in wires) for name in wires[0]}
    plain = {name: statistics.median(run[name] for run in bridges) for name in bridges[0]}
    rows = [
        Row(
            "flood, full frames",
            wire["flood"],
            plain["flood"],
            "frames/s",
            f">= {GOAL_FRAMES}",
            wire["flood"] >= GOAL_FRAMES,
        ),
        Row("TCP, offloads on", wire["tcp"], plain["tcp"], "Gbit/s", f">= {GOAL_GBIT}", wire["tcp"] >= GOAL_GBIT),
    ]
    for rate in PACED:
        error = wire[f"p99 {rate}"]
        rows += [
            Row(f"paced at {rate}/s: relayed", wire[f"rate {rate}"], None, "frames/s", "", True),
            Row(f"paced at {rate}/s: delay error p50", wire[f"p50 {rate}"], None, "us", "", True),
            Row(f"paced at {rate}/s: delay error p99", error, None, "us", f"< {GOAL_ERROR_US}", error < GOAL_ERROR_US),
        ]
    rows.append(Row("scheduled in real time", wire["sched"], None, "", "", True))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("wire: needs root, to make network namespaces", file=sys.stderr)
        return 4
    rows = measure(options.repeats, options.seconds)
    print(f"{'the wire':40} {'wire':>12} {'bridge':>12} {'ratio':>7}  {'unit':9} {'goal':>10}")
    for row in rows:
        plain = f"{row.bridge:12.4g}" if row.bridge else " " * 12
        ratio = f"{row.wire / row.bridge:7.2f}" if row.bridge else " " * 7
        mark = "" if row.reached else "  missed"
        print(f"{row.what:40} {row.wire:12.6g} {plain} {ratio}  {row.unit:9} {row.goal:>10}{mark}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
