"""Packet programs: what a switch may do to a frame on its way out, knowing how much waits before it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from testbed.network.vnet import PLAIN, fix_ipv4_checksum

_ETHERNET = 14
_IPV4, _IPV6 = b"\x08\x00", b"\x86\xdd"
_CE = 3
_NOTATION = re.compile(r"(?P<name>[a-z-]+):(?P<number>[0-9]+)(?P<unit>B|KiB|MiB)")
_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024 * 1024}


class PacketProgram(Protocol):
    """Runs on every frame before it enters the line of the port it leaves by."""

    def run(self, frame: bytes, at: int, waiting: int) -> bytes | None:
        """The frame to send on, or None to drop it.

        The Ethernet header begins at ``at`` (what stands before is the virtio-net header, if anything);
        ``waiting`` bytes wait for the line.
        """
        ...


class EcnMark:
    """Marks "congestion experienced" on packets whose sender understands it, when ``threshold`` bytes wait
    (RFC 3168)."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold

    def run(self, frame: bytes, at: int, waiting: int) -> bytes:
        if waiting < self.threshold:
            return frame
        kind = frame[at + 12 : at + 14]
        ip = at + _ETHERNET
        if kind == _IPV4 and frame[ip + 1] & 3 in (1, 2):
            marked = bytearray(frame)
            marked[ip + 1] |= _CE
            fix_ipv4_checksum(marked, ip)
            return bytes(marked)
        if kind == _IPV6 and (frame[ip + 1] >> 4) & 3 in (1, 2):
            marked = bytearray(frame)
            marked[ip + 1] |= _CE << 4
            return bytes(marked)
        return frame


class Trim:
    """Cuts the payload off IP packets when ``threshold`` bytes wait, so that the receiver learns at once what
    it lacks.

    As in NDP: 64 bytes are left, the IP length says so, the transport header still tells the original length.
    """

    KEPT = 64

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold

    def run(self, frame: bytes, at: int, waiting: int) -> bytes:
        kind = frame[at + 12 : at + 14]
        if waiting < self.threshold or len(frame) - at <= self.KEPT or kind not in (_IPV4, _IPV6):
            return frame
        ip = at + _ETHERNET
        cut = bytearray(frame[: at + self.KEPT])
        # The bytes that an unfinished checksum or a segmentation would need are gone.
        cut[:at] = PLAIN[:at]
        if kind == _IPV4:
            cut[ip + 2 : ip + 4] = (self.KEPT - _ETHERNET).to_bytes(2, "big")
            fix_ipv4_checksum(cut, ip)
        else:
            cut[ip + 4 : ip + 6] = (self.KEPT - _ETHERNET - 40).to_bytes(2, "big")
        return bytes(cut)


PROGRAMS: dict[str, Callable[[int], PacketProgram]] = {"ecn-mark": EcnMark, "trim": Trim}


def make_program(text: str) -> PacketProgram:
    """The program written as ``name:threshold``, such as ``ecn-mark:64KiB``. Raises ValueError."""
    match = _NOTATION.fullmatch(text)
    if match is None or match["name"] not in PROGRAMS:
        known = ", ".join(f"{name}:64KiB" for name in PROGRAMS)
        raise ValueError(f"packet program {text!r}: not known; expected one of {known} (with a threshold of your own)")
    return PROGRAMS[match["name"]](int(match["number"]) * _UNITS[match["unit"]])
