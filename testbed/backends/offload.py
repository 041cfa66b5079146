"""Segmentation and checksum offloads of an interface, by the ethtool ioctl."""

from __future__ import annotations

import array
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946
_GET_STRING_SET_INFO, _GET_STRINGS, _GET_FEATURES, _SET_FEATURES = 0x37, 0x1B, 0x3A, 0x3B
_FEATURE_NAMES = 4
_NAME_BYTES = 32

OFFLOADS = (
    "tx-checksum-ip-generic",
    "tx-checksum-ipv4",
    "tx-checksum-ipv6",
    "tx-checksum-sctp",
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp-accecn-segmentation",
    "tx-sctp-segmentation",
    "tx-udp-segmentation",
    "tx-gso-list",
    "tx-generic-segmentation",
    "rx-gro",
    "rx-gro-list",
    "rx-udp-gro-forwarding",
)
"""Features, by the kernel's names, with which an interface carries frames that would not fit on a wire, or whose
checksum is not filled in. Receive offloads are only ever switched off: off is what a veth has by itself."""


def offloads(interface: str) -> dict[str, bool]:
    """Which of the offloads that this interface has are on. Raises OSError where there is no such interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        names = _names(control, interface)
        active = _active(control, interface, len(names))
    return {name: bool(active >> names.index(name) & 1) for name in OFFLOADS if name in names}


def set_offloads(interface: str, on: bool) -> None:
    """Switch the offloads of an interface of the current network namespace.

    Off: every frame is at most as large as the MTU and complete, as on a real wire. On: the kernel's default for
    a veth. Raises OSError where there is no such interface, this user may not, or the kernel does not do it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        names = _names(control, interface)
        chosen = [names.index(name) for name in OFFLOADS if name in names and not (on and name.startswith("rx-"))]
        _set(control, interface, len(names), chosen, on)
        active = _active(control, interface, len(names))
    wrong = [names[bit] for bit in chosen if not on and active >> bit & 1]
    if wrong:
        raise OSError(f"{interface}: the kernel keeps {', '.join(wrong)} on, so its frames are not those of a wire")


def _call(control: socket.socket, interface: str, command: array.array[int]) -> None:
    address, _ = command.buffer_info()
    request = struct.pack("16sP16x", interface.encode(), address)
    try:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError as error:
        raise OSError(error.errno, f"{interface}: ethtool: {error.strerror}") from None


def _names(control: socket.socket, interface: str) -> list[str]:
    info = array.array("B", struct.pack("=IIQI", _GET_STRING_SET_INFO, 0, 1 << _FEATURE_NAMES, 0))
    _call(control, interface, info)
    (count,) = struct.unpack_from("=I", info, 16)
    strings = array.array("B", struct.pack("=III", _GET_STRINGS, _FEATURE_NAMES, count) + bytes(count * _NAME_BYTES))
    _call(control, interface, strings)
    text = strings.tobytes()[12:]
    return [text[at : at + _NAME_BYTES].rstrip(b"\0").decode() for at in range(0, len(text), _NAME_BYTES)]


def _active(control: socket.socket, interface: str, count: int) -> int:
    """The features that are on, as a number with a bit for each."""
    blocks = -(-count // 32)
    features = array.array("B", struct.pack("=II", _GET_FEATURES, blocks) + bytes(blocks * 16))
    _call(control, interface, features)
    # struct ethtool_get_features_block: available, requested, active, never_changed
    words = [struct.unpack_from("=I", features, 8 + block * 16 + 8)[0] for block in range(blocks)]
    return sum(int(word) << (32 * block) for block, word in enumerate(words))


def _set(control: socket.socket, interface: str, count: int, bits: list[int], on: bool) -> None:
    blocks = -(-count // 32)
    words = [0] * (2 * blocks)  # struct ethtool_set_features_block: valid, requested
    for bit in bits:
        words[bit // 32 * 2] |= 1 << bit % 32
        if on:
            words[bit // 32 * 2 + 1] |= 1 << bit % 32
    command = array.array("B", struct.pack(f"=II{len(words)}I", _SET_FEATURES, blocks, *words))
    _call(control, interface, command)
