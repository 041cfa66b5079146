"""One direction of a link, as a pure function of the frames that enter it and of time.

A frame first waits for the line and is sent at its rate (``rate``, ``queue``), then travels (``delay``,
``jitter``) and on its way may be lost, doubled, held back or damaged. Times are ns on any clock the caller
likes; sizes are bytes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

from faults.impairment import Impairment

NEVER = 1 << 62
"""A time that does not come."""

AUTOMATIC_QUEUE_LIMIT = 256 * 1024 * 1024
"""Where no queue is asked for nothing is dropped, up to this many waiting bytes: memory is finite. What
exceeds it is counted as ``overrun``: the emulation was asked for more than it can hold."""

NS_BITS_PER_BYTE = 8_000_000_000

Frame = TypeVar("Frame")
Damage = Callable[[Frame, Random], Frame]


@dataclass(slots=True)
class LineCounters:
    """What became of the frames of one line. ``lost``, ``overflowed``, ``down``, ``oversized`` and
    ``overrun`` are drops."""

    frames: int = 0
    """Frames that were to enter, dropped ones included."""
    bytes: int = 0
    lost: int = 0
    """By the configured loss."""
    overflowed: int = 0
    """Found the configured queue full."""
    down: int = 0
    """Entered, waited or travelled while the line was down."""
    oversized: int = 0
    """Larger than the link's MTU."""
    overrun: int = 0
    """Found the automatic queue at its memory limit."""
    duplicated: int = 0
    reordered: int = 0
    corrupted: int = 0


def check(impairment: Impairment) -> None:
    """Refuse an impairment that no line can show. Raises ValueError naming the parameter."""
    for name in ("loss", "duplicate", "reorder", "corrupt"):
        value = getattr(impairment, name)
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name}: {value} is not a probability; expected a number from 0 to 1")
    for name in ("delay", "jitter", "reorder_by", "rate", "queue"):
        value = getattr(impairment, name)
        if value < 0:
            raise ValueError(f"{name}: {value} is negative; expected 0 or more")
    burst, loss = impairment.loss_burst, impairment.loss
    if burst < 1.0:
        raise ValueError(f"loss_burst: a mean burst of {burst} frames is shorter than one frame; expected 1 or more")
    if burst > 1.0 and loss < 1.0 and loss / (burst * (1.0 - loss)) > 1.0:
        raise ValueError(
            f"loss_burst: a loss of {loss} needs a mean burst of at least {loss / (1.0 - loss):.4g}, not {burst}"
        )


def check_effective(impairment: Impairment, changed: Iterable[str]) -> None:
    """Refuse a change that would be accepted and then change nothing. Raises ValueError saying what is
    missing."""
    names = set(changed)
    if "queue" in names and impairment.queue and not impairment.rate:
        raise ValueError("queue: has no effect without a rate; give the line a rate too")
    if "loss_burst" in names and impairment.loss_burst > 1.0 and not impairment.loss:
        raise ValueError("loss_burst: has no effect without loss; give the line a loss too")
    if "reorder" in names and impairment.reorder and not impairment.reorder_by:
        raise ValueError("reorder: has no effect without reorder_by, the time by which a frame is held back")
    if "reorder_by" in names and impairment.reorder_by and not impairment.reorder:
        raise ValueError("reorder_by: has no effect without reorder, the share of frames that are held back")


class Line(Generic[Frame]):
    """One direction of a link.

    After every ``enter`` or ``change``, ask ``next_time`` and call ``leave`` when that time has come. Frames
    leave in the order in which they entered, whatever the jitter and however the delay is changed, except
    those that ``reorder`` holds back.
    """

    def __init__(self, name: str, impairment: Impairment, seed: int, damage: Damage[Frame]) -> None:
        check(impairment)
        self.name = name
        self.counters = LineCounters()
        self.due = NEVER  # when the calendar that this line is in will look at it
        self._random = Random(f"{seed}/{name}")
        self._damage = damage
        self._queue: deque[tuple[Frame, int]] = deque()
        self._waiting = 0
        self._serving: Frame | None = None
        self._served_at = 0
        self._travelling: deque[tuple[int, Frame]] = deque()
        self._held_back: list[tuple[int, int, Frame]] = []
        self._last_out = 0
        self._number = 0
        self._losing = False
        self._adopt(impairment)

    @property
    def impairment(self) -> Impairment:
        return self._impairment

    def waiting(self, now: int) -> int:
        """Bytes that wait for the line, without the frame that is being sent."""
        self._serve(now)
        return self._waiting

    def fits(self, size: int, now: int) -> bool:
        """Whether a frame of ``size`` bytes would find room in the queue."""
        if not self._rate:
            return True
        self._serve(now)
        return self._serving is None or self._waiting + size <= self._limit

    def change(self, impairment: Impairment, now: int) -> None:
        """Behave differently from ``now`` on, towards waiting frames too.

        A line that goes down loses the frames that wait and travel. Raises ValueError, changing nothing, if
        no line can behave as asked.
        """
        check(impairment)
        self._serve(now)
        if impairment.down:
            self._cut()
        elif self._serving is not None and impairment.rate != self._rate:
            left = self._served_at - now
            self._served_at = now + (left * self._rate // impairment.rate if impairment.rate else 0)
        self._adopt(impairment)
        self._serve(now)

    def enter(self, frame: Frame, size: int, now: int) -> None:
        """A frame of ``size`` bytes reaches the line at ``now``."""
        counters = self.counters
        counters.frames += 1
        counters.bytes += size
        if self._down:
            counters.down += 1
        elif not self._rate:
            self._travel(frame, now)
        else:
            self._serve(now)
            if self._serving is None:
                self._serving = frame
                self._served_at = now + size * NS_BITS_PER_BYTE // self._rate
            elif self._waiting + size <= self._limit:
                self._queue.append((frame, size))
                self._waiting += size
            elif self._impairment.queue:
                counters.overflowed += 1
            else:
                counters.overrun += 1

    def next_time(self) -> int:
        """The earliest time at which a frame may leave, NEVER if the line is empty."""
        if self._travelling:
            time = self._travelling[0][0]
        elif self._serving is not None:
            time = self._served_at + self._delay
        else:
            time = NEVER
        if self._held_back and self._held_back[0][0] < time:
            return self._held_back[0][0]
        return time

    def leave(self, now: int) -> list[tuple[int, Frame]]:
        """Frames that leave up to ``now``, in order, each with the exact time."""
        if self._serving is not None:
            self._serve(now)
        travelling = self._travelling
        leaving: list[tuple[int, Frame]] = []
        while travelling and travelling[0][0] <= now:
            leaving.append(travelling.popleft())
        if self._held_back and self._held_back[0][0] <= now:
            while self._held_back and self._held_back[0][0] <= now:
                time, _, frame = heapq.heappop(self._held_back)
                leaving.append((time, frame))
            leaving.sort(key=_time)
        return leaving

    def _adopt(self, impairment: Impairment) -> None:
        # The fast path reads these, not the dataclass.
        self._impairment = impairment
        self._delay = impairment.delay
        self._rate = impairment.rate
        self._down = impairment.down
        self._limit = impairment.queue or AUTOMATIC_QUEUE_LIMIT
        self._plain = not (impairment.per_frame or impairment.jitter)
        loss, burst = impairment.loss, impairment.loss_burst
        self._begin_losing = loss if burst == 1.0 or loss == 1.0 else loss / (burst * (1.0 - loss))
        self._stop_losing = 1.0 / burst
        if burst == 1.0 or not loss:
            self._losing = False
        self.per_frame = impairment.per_frame

    def _serve(self, now: int) -> None:
        """Finish sending whatever is finished by ``now``."""
        while self._serving is not None and self._served_at <= now:
            self._travel(self._serving, self._served_at)
            if not self._queue:
                self._serving = None
                return
            self._serving, size = self._queue.popleft()
            self._waiting -= size
            if self._rate:
                self._served_at += size * NS_BITS_PER_BYTE // self._rate

    def _travel(self, frame: Frame, now: int) -> None:
        out = now + self._delay
        if self._plain:
            if out < self._last_out:
                out = self._last_out
            self._last_out = out
            self._travelling.append((out, frame))
            return
        impairment, counters, random = self._impairment, self.counters, self._random.random
        if impairment.loss and self._lose():
            counters.lost += 1
            return
        if impairment.corrupt and random() < impairment.corrupt:
            frame = self._damage(frame, self._random)
            counters.corrupted += 1
        if impairment.jitter:
            out += int(random() * (impairment.jitter + 1))
        copies = 1
        if impairment.duplicate and random() < impairment.duplicate:
            counters.duplicated += 1
            copies = 2
        if impairment.reorder and random() < impairment.reorder:
            counters.reordered += 1
            for _ in range(copies):
                self._number += 1
                heapq.heappush(self._held_back, (out + impairment.reorder_by, self._number, frame))
            return
        out = self._last_out = max(out, self._last_out)
        for _ in range(copies):
            self._travelling.append((out, frame))

    def _lose(self) -> bool:
        """Gilbert's model: in the losing state every frame is lost. With a burst of 1 losses are
        independent."""
        if self._impairment.loss_burst == 1.0 or self._impairment.loss == 1.0:
            return self._random.random() < self._impairment.loss
        # A loss ends its burst with a probability of 1 / burst; the state is drawn before the frame meets it.
        threshold = 1.0 - self._stop_losing if self._losing else self._begin_losing
        self._losing = self._random.random() < threshold
        return self._losing

    def _cut(self) -> None:
        gone = len(self._queue) + len(self._travelling) + len(self._held_back) + (self._serving is not None)
        self.counters.down += gone
        self._queue.clear()
        self._travelling.clear()
        self._held_back.clear()
        self._serving = None
        self._waiting = 0


def _time(entry: tuple[int, object]) -> int:
    return entry[0]


def merged(current: Impairment, changes: Mapping[str, int | float | bool]) -> Impairment:
    """``current`` with ``changes``, checked: possible, and not without effect. Raises ValueError."""
    result = current.merge(dict(changes))
    check(result)
    check_effective(result, changes)
    return result
