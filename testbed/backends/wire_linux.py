"""What the wire asks of Linux beyond Python's standard library: namespaces, scheduling and waiting to the
microsecond."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct

_libc = ctypes.CDLL(None, use_errno=True)

_CLONE_NEWNET = 0x40000000
_ETH_P_ALL = 3
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_HEAP = 256 * 1024 * 1024
PRIORITY = 50
"""Real-time priority: above everything ordinary, below the kernel's own watchdogs."""


def _fail(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def enter_network_namespace(fd: int) -> None:
    """Make the calling thread work in the network namespace that ``fd`` stands for. Raises OSError."""
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        raise _fail("cannot enter the network namespace")


def receive_from_all(packet_socket: int) -> None:
    """Bind an AF_PACKET socket to every protocol and interface (``socket.bind`` insists on one interface's
    name)."""
    address = struct.pack("=HHiHBB8x", socket.AF_PACKET, socket.htons(_ETH_P_ALL), 0, 0, 0, 0)
    if _libc.bind(packet_socket, address, len(address)) != 0:
        raise _fail("cannot bind the packet socket")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends, however it ends. Exits at once if it already
    has."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise _fail("cannot ask to be killed with the parent")
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this one, has ended")


def schedule_in_real_time() -> str:
    """Run before all ordinary processes, if this user may. Returns what was reached: ``fifo:50`` or
    ``other``."""
    # Without it every sleep may be 50 us longer than asked for.
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
    except PermissionError:
        return "other"
    return f"fifo:{PRIORITY}"


def keep_heap() -> None:
    """Keep freed memory: handing 64 KiB frames back to the kernel and taking them again costs more than
    copying them."""
    _libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_HEAP)
    _libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_HEAP)


class _PollFd(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Waiter:
    """Waits for any of a few descriptors to become readable, with a timeout in ns (``ppoll``; select.poll has
    ms)."""

    READABLE = 1

    def __init__(self, fds: list[int]) -> None:
        self._fds = (_PollFd * len(fds))(*[_PollFd(fd, self.READABLE, 0) for fd in fds])
        self._time = _Timespec()
        self._call = _libc.ppoll
        self._arguments = (ctypes.byref(self._fds), ctypes.c_ulong(len(fds)), ctypes.byref(self._time), None)

    def wait(self, timeout: int) -> list[int]:
        """Positions, in the list given, of the descriptors that are readable or closed; empty when the time
        is up."""
        self._time.seconds, self._time.nanoseconds = divmod(timeout, 1_000_000_000)
        if self._call(*self._arguments) <= 0:
            return []
        return [position for position, entry in enumerate(self._fds) if entry.revents]
