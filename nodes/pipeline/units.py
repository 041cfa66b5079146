"""What computes in a stage: units that are busy for a given time with each step, one step after the other.

Like a device with a queue, a unit begins the next step when it is through with the one before, however late the process
is woken to see it: a busy machine makes results appear later, but does not slow the device down.
"""

from __future__ import annotations

from heapq import heapreplace


class Units:
    def __init__(self, count: int, step: int) -> None:
        """``step`` is the time in ns that one step takes."""
        self.count = count
        self._step = step
        self._free = [0] * count
        """When each unit is through with what it has, as a heap."""

    def begin(self, now: int) -> int:
        """Give the first unit that is free a step that has been there since ``now``; returns when it is done."""
        done = max(self._free[0], now) + self._step
        heapreplace(self._free, done)
        return done
