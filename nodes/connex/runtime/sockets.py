"""What the kernel is told about the connection of a channel, by traffic class."""

from __future__ import annotations

import socket
from typing import NamedTuple

from connex.core.config import KIB, MIB, Config
from connex.core.identity import TrafficClass

_TCP_NOTSENT_LOWAT = 25
"""Linux's number; the socket module of Python 3.11 does not name it on every build."""


class Tuning(NamedTuple):
    """Options of one class. Sizes in bytes; 0 leaves the kernel's own sizing."""

    dscp: int
    notsent: int
    """Unsent bytes in the kernel above which the socket is not writable: what waits there cannot be overtaken or
    withdrawn.
    """
    buffer: int
    high: int
    """Bytes that may wait in the process before the channel stops taking more."""


TUNINGS: dict[TrafficClass, Tuning] = {
    TrafficClass.CONTROL: Tuning(48, 128 * KIB, 0, 256 * KIB),
    TrafficClass.TOKEN: Tuning(46, 128 * KIB, 0, 256 * KIB),
    TrafficClass.ACTIVATION: Tuning(26, 512 * KIB, 0, 512 * KIB),
    TrafficClass.KV: Tuning(8, 1 * MIB, 4 * MIB, 512 * KIB),
}
"""DSCP: network control (CS6), expedited forwarding, assured forwarding 31, and bulk (CS1)."""


def tune(sock: socket.socket, traffic_class: TrafficClass, config: Config) -> None:
    """Set the options of the class on a TCP socket of either family."""
    tuning = TUNINGS[traffic_class]
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, tuning.notsent)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tuning.dscp << 2)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tuning.dscp << 2)
    if tuning.buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, tuning.buffer)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, tuning.buffer)
    # A peer that is not heard of is judged by heartbeats; the kernel only cleans up behind that, with patience to
    # spare.
    patience_ms = max(3 * config.dead_after // 1_000_000, 1000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(patience_ms // 1000, 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
