"""The process that captures at nodes' own interfaces. Started by ``sniffer.Sniffer``.

Each interface has a packet socket in the node's namespace with a ring shared with the kernel (TPACKET_V3:
frames of any size in large blocks). A block is handed over when it is full or after ``RETIRE`` ms; the kernel
counts what found no room.
"""

from __future__ import annotations

import json
import mmap
import selectors
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from testbed.backends import wire_linux
from testbed.backends.wire_messages import encode
from testbed.backends.wire_stats import CaptureStats
from testbed.capture import INBOUND, OUTBOUND, CaptureWriter, clock_offset

_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION = 5, 6, 10
_TPACKET_V3 = 2
_ETH_P_ALL = 3
_PACKET_OUTGOING = 4
_STATUS_USER, _STATUS_VLAN = 1, 16

_BLOCK_BYTES = 256 * 1024
_MOST_RING_BYTES, _ALL_RINGS_BYTES = 16 * 1024 * 1024, 128 * 1024 * 1024
RETIRE = 10
"""After this many ms the kernel hands a block over even if it is not full."""

# struct tpacket_hdr_v1 in a block, struct tpacket3_hdr before a frame, the type in its sockaddr_ll:
# linux/if_packet.h
_BLOCK = struct.Struct("=8xIII")
_FRAME = struct.Struct("=IIIIIIHH4xIH")
_TYPE_AT = 48 + 10


class Point:
    """One interface and its file."""

    def __init__(self, port: str, interface: str, path: Path, ring_bytes: int) -> None:
        """Works on the network namespace that the process is in."""
        self.port = port
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V3)
        self._blocks = ring_bytes // _BLOCK_BYTES
        frames = ring_bytes // 2048
        ring = struct.pack("=IIIIIII", _BLOCK_BYTES, self._blocks, 2048, frames, RETIRE, 0, 0)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, ring)
        self._memory = mmap.mmap(self._socket.fileno(), ring_bytes, mmap.MAP_SHARED)
        self._view = memoryview(self._memory)
        self._next = 0
        self._dropped = 0
        self._writer = CaptureWriter(path, interface, f"seen at the node's own interface, {port}")
        self._socket.bind((interface, _ETH_P_ALL))

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> None:
        """Write down every block that the kernel has handed over."""
        while True:
            at = self._next * _BLOCK_BYTES
            status, frames, first = _BLOCK.unpack_from(self._memory, at)
            if not status & _STATUS_USER:
                return
            self._write(frames, at + first)
            struct.pack_into("=I", self._memory, at + 8, 0)
            self._next = (self._next + 1) % self._blocks

    def _write(self, frames: int, at: int) -> None:
        # The kernel stamps with the wall clock, which may be stepped: go back to the monotonic one at once.
        difference = clock_offset()
        view, write = self._view, self._writer.write
        for _ in range(frames):
            following, seconds, nanoseconds, kept, length, status, mac, _, tag, kind = _FRAME.unpack_from(view, at)
            direction = OUTBOUND if view[at + _TYPE_AT] == _PACKET_OUTGOING else INBOUND
            moment = seconds * 1_000_000_000 + nanoseconds - difference
            data: memoryview | bytes = view[at + mac : at + mac + kept]
            if kept < length:
                self._dropped += 1  # larger than a block: no frame is, but half a frame must never pass for one
            elif status & _STATUS_VLAN:
                words = struct.pack("!HH", kind or 0x8100, tag)
                write(moment, direction, b"".join((data[:12], words, data[12:])))
            else:
                write(moment, direction, data)
            at += following

    @property
    def stats(self) -> CaptureStats:
        _, dropped, _ = struct.unpack("=III", self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 12))
        self._dropped += dropped
        return CaptureStats(self._writer.frames, self._writer.bytes, self._dropped)

    def close(self) -> None:
        self._writer.close(time.monotonic_ns(), self.stats.dropped)


class SnifferProcess:
    def __init__(self, control: socket.socket, setup: dict[str, Any]) -> None:
        self._control = control
        self._received = b""
        self._stopped = False
        self._points: list[Point] = []
        wanted = setup["points"]
        ring = min(_MOST_RING_BYTES, _ALL_RINGS_BYTES // max(1, len(wanted)) // _BLOCK_BYTES * _BLOCK_BYTES)
        for point in wanted:
            wire_linux.enter_network_namespace(point["netns_fd"])
            try:
                made = Point(point["port"], point["interface"], Path(point["path"]), max(ring, 4 * _BLOCK_BYTES))
            except OSError as error:
                raise ValueError(f"port {point['port']}, interface {point['interface']!r}: {error}") from error
            self._points.append(made)

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._obey)
            for point in self._points:
                selector.register(point, selectors.EVENT_READ, point.read)
            while not self._stopped:
                for key, _ in selector.select():
                    key.data()

    def _obey(self) -> None:
        data = self._control.recv(1 << 16)
        if not data:
            self._finish()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            answer: dict[str, Any] = {"id": request["id"], "ok": True}
            match request["do"]:
                case "stats":
                    pass
                case "stop":
                    self._finish()
                case unknown:
                    answer |= {"ok": False, "error": f"{unknown!r} is not a request that the capture process knows"}
            answer["captures"] = {point.port: _as_json(point.stats) for point in self._points}
            self._control.sendall(encode(answer))

    def _finish(self) -> None:
        """What was sent before this call is in a block that the kernel hands over within ``RETIRE`` ms: wait
        for it."""
        end = time.monotonic() + 3 * RETIRE / 1000
        while time.monotonic() < end:
            for point in self._points:
                point.read()
            time.sleep(RETIRE / 1000)
        for point in self._points:
            point.read()
            point.close()
        self._stopped = True


def _as_json(stats: CaptureStats) -> dict[str, int]:
    return {"frames": stats.frames, "bytes": stats.bytes, "dropped": stats.dropped}


def main(arguments: list[str]) -> int:
    control = socket.socket(fileno=int(arguments[0]))
    wire_linux.die_with_parent(int(arguments[1]))
    with control.makefile("rb", buffering=0) as lines:
        setup = json.loads(lines.readline())
    try:
        process = SnifferProcess(control, setup)
    except (OSError, ValueError) as error:
        control.sendall(encode({"id": 0, "ok": False, "error": str(error)}))
        return 1
    control.sendall(encode({"id": 0, "ok": True}))
    process.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
