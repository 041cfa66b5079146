"""The packet sockets of the wire: one ring that all frames come in by, one socket per port that they go out
by."""

from __future__ import annotations

import mmap
import socket
import struct
import time

from testbed.backends.wire_linux import receive_from_all
from testbed.capture import clock_offset
from testbed.network.vnet import HEADER_BYTES, PLAIN

_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_COPY_THRESH = 5, 6, 7
_PACKET_VERSION, _PACKET_VNET_HDR, _PACKET_QDISC_BYPASS, _PACKET_IGNORE_OUTGOING = 10, 15, 20, 23
_SO_RCVBUFFORCE = 33
_TPACKET_V2 = 1

# struct tpacket2_hdr, followed at 32 by a sockaddr_ll: linux/if_packet.h
_SLOT = struct.Struct("=IIIHHIIHH4xHHi")
_STATUS_USER, _STATUS_COPY, _STATUS_VLAN = 1, 2, 16

_BLOCK_BYTES = 64 * 1024
_SLOTS, _MOST_RING_BYTES = 8192, 64 * 1024 * 1024
_COPY_BUFFER_BYTES = 64 * 1024 * 1024
_SLOT_OVERHEAD = 128
_LARGEST_FRAME = 65536 + 256

Arrival = tuple[int, int, bytes]
"""Index of the interface, time (CLOCK_MONOTONIC, ns), and the frame as the kernel took it from its sender: virtio-net
header, Ethernet header, rest."""


class Ring:
    """All frames that enter the current network namespace from outside, through memory shared with the
    kernel.

    The senders' side does the copying, in their time; a frame larger than a slot (a super-frame) comes by the
    socket's ordinary queue. Frames carry the kernel's time stamp, so that what the wire is late by is known
    and made up for.
    """

    def __init__(self, mtu: int) -> None:
        slot = 2048
        while slot < mtu + 18 + HEADER_BYTES + _SLOT_OVERHEAD and slot < _BLOCK_BYTES:
            slot *= 2
        self._size = min(_SLOTS * slot, _MOST_RING_BYTES)
        # Protocol 0: nothing arrives before everything is set.
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        option = self._socket.setsockopt
        option(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
        option(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        option(_SOL_PACKET, _PACKET_COPY_THRESH, 1)
        option(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        try:
            option(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _COPY_BUFFER_BYTES)
        except PermissionError:
            option(socket.SOL_SOCKET, socket.SO_RCVBUF, _COPY_BUFFER_BYTES)
        ring = struct.pack("=IIII", _BLOCK_BYTES, self._size // _BLOCK_BYTES, slot, self._size // slot)
        option(_SOL_PACKET, _PACKET_RX_RING, ring)
        self._memory = mmap.mmap(self._socket.fileno(), self._size, mmap.MAP_SHARED)
        self._status = memoryview(self._memory).cast("I")
        self._slot = slot
        self._next = 0
        self.dropped = 0
        self.truncated = 0
        receive_from_all(self._socket.fileno())

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self, limit: int) -> list[Arrival]:
        """Up to ``limit`` frames, in the order of their arrival. Times are CLOCK_MONOTONIC, ns."""
        arrivals: list[Arrival] = []
        status, memory, at = self._status, self._memory, self._next
        if not status[at >> 2] & _STATUS_USER:
            return arrivals
        # Stamps are wall-clock time; the wall clock may be stepped, so the difference is taken afresh each
        # time.
        difference = clock_offset()
        now = time.monotonic_ns()
        for _ in range(limit):
            flags, length, kept, mac, _, seconds, nanoseconds, tag, kind, _, _, interface = _SLOT.unpack_from(
                memory, at
            )
            if not flags & _STATUS_USER:
                break
            frame: bytes | None
            if kept == length:
                frame = memory[at + mac - HEADER_BYTES : at + mac + length]
            else:
                frame = self._take_copy(flags)
            status[at >> 2] = 0
            at += self._slot
            if at == self._size:
                at = 0
            if frame is None:
                continue
            if flags & _STATUS_VLAN:
                frame = _with_tag(frame, kind or 0x8100, tag)
            stamp = seconds * 1_000_000_000 + nanoseconds - difference
            arrivals.append((interface, stamp if stamp < now else now, frame))
        self._next = at
        return arrivals

    def count_drops(self) -> int:
        """Frames lost so far because the wire did not keep up with the ring, or a super-frame found no
        buffer."""
        _, dropped = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        self.dropped += dropped
        return self.dropped + self.truncated

    def _take_copy(self, flags: int) -> bytes | None:
        if flags & _STATUS_COPY:
            return self._socket.recv(_LARGEST_FRAME)
        self.truncated += 1
        return None


class Outlet:
    """The way out at one interface: frames sent here are received by whatever is at its other end."""

    def __init__(self, interface: str) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
        self._socket.bind((interface, 0))
        self.send = self._socket.send
        """Raises OSError where the interface is down or gone, or the kernel refuses the frame."""


def _with_tag(frame: bytes, kind: int, tag: int) -> bytes:
    """Put the VLAN tag back that the kernel has set aside."""
    head = bytearray(frame[:HEADER_BYTES])
    if head != PLAIN:
        head[6:8] = (int.from_bytes(head[6:8], "little") + 4).to_bytes(2, "little")
    cut = HEADER_BYTES + 12
    return bytes(head) + frame[HEADER_BYTES:cut] + kind.to_bytes(2, "big") + tag.to_bytes(2, "big") + frame[cut:]
