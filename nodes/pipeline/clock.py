"""Callbacks at points of time, to some ten microseconds: event loops count in milliseconds, and a step of computation
is shorter than that.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_SECOND = 1_000_000_000
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _TimerSpec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class Timer:
    """One callback that is due."""

    __slots__ = ("callback", "when")

    def __init__(self, when: int, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Clock:
    """CLOCK_MONOTONIC in ns, with timers in the running event loop, all on one ``timerfd`` of Linux."""

    def __init__(self) -> None:
        """Raises OSError where there are no file descriptors left."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create: " + os.strerror(ctypes.get_errno()))
        self._spec = _TimerSpec()
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()
        self._armed = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._file, self._ready)

    @staticmethod
    def now() -> int:
        return time.monotonic_ns()

    def call_at(self, when: int, callback: Callable[[], None]) -> Timer:
        """Call back at ``when``, or as soon as possible if that has passed; never within this call."""
        timer = Timer(when, callback)
        heappush(self._heap, (when, next(self._order), timer))
        if not self._armed or when < self._armed:
            self._arm(when)
        return timer

    def call_in(self, delay: int, callback: Callable[[], None]) -> Timer:
        return self.call_at(time.monotonic_ns() + delay, callback)

    def close(self) -> None:
        """Nothing is called any more."""
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1
        self._heap.clear()

    def _arm(self, when: int) -> None:
        self._armed = when = max(1, when)  # a time of 0 would disarm it
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(when, _SECOND)
        if self._libc.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(self._spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime: " + os.strerror(ctypes.get_errno()))

    def _ready(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return  # it was armed anew after the loop had seen it ready
        self._armed = 0
        now = time.monotonic_ns()
        heap = self._heap
        try:
            while heap and heap[0][0] <= now:
                callback = heappop(heap)[2].callback
                if callback is not None:
                    callback()
        finally:
            while heap and heap[0][2].callback is None:
                heappop(heap)
            if heap and self._file >= 0:
                self._arm(heap[0][0])
