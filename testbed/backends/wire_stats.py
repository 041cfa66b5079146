"""What the wire counts and measures of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from testbed.network.line import LineCounters

_FINE = 16_384
_MICROSECOND = 1_000


class Lag:
    """A histogram of how late frames left, in steps of 1 us up to 16 ms; beyond that only the maximum is
    exact."""

    def __init__(self) -> None:
        self._counts = [0] * (_FINE + 1)
        self.largest = 0

    def record(self, lag: int) -> None:
        """``lag`` in ns, 0 or more."""
        step = lag // _MICROSECOND
        self._counts[step if step < _FINE else _FINE] += 1
        if lag > self.largest:
            self.largest = lag

    def percentile(self, share: float) -> int:
        """The lag in ns (rounded up to 1 us) that ``share`` of all frames did not exceed; 0 without
        frames."""
        wanted = share * sum(self._counts)
        seen = 0
        for step, count in enumerate(self._counts):
            seen += count
            if seen and seen >= wanted:
                return self.largest if step == _FINE else (step + 1) * _MICROSECOND
        return 0


@dataclass(frozen=True, slots=True)
class CaptureStats:
    """One capture file: what was written into it, and what was seen but could not be."""

    frames: int = 0
    bytes: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class WireStats:
    """Everything since the start. A super-frame counts as one frame. Times in ns."""

    frames: int
    """Frames taken from nodes."""
    bytes: int
    delivered: int
    """Frames handed to nodes."""
    lost: int
    """Dropped by configured loss."""
    blocked: int
    """Dropped by ``block``."""
    down: int
    """Dropped because a line was down."""
    overflowed: int
    """Dropped because a configured queue was full."""
    oversized: int
    """Dropped because they exceed the MTU of a link."""
    programmed: int
    """Dropped by a packet program."""
    overrun: int
    """Lost because the emulation could not keep up or hold them: the results prove nothing where this is not
    0."""
    undeliverable: int
    """The interface of the receiving node was down or gone, or its kernel refused the frame."""
    lag_p50_ns: int
    lag_p99_ns: int
    lag_max_ns: int
    capture_dropped: int
    sched: str
    """``fifo:50`` (in real time) or ``other``."""
    lines: dict[str, LineCounters] = field(default_factory=dict)
    """``link/direction`` -> its counters."""
    captures: dict[str, CaptureStats] = field(default_factory=dict)
    """Port -> its capture."""

    @property
    def dropped_by_impairment(self) -> int:
        """Drops that were asked for, by name: ``lost``, ``blocked``, ``down``, ``programmed``."""
        return self.lost + self.blocked + self.down + self.programmed

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> WireStats:
        lines = {name: LineCounters(**counters) for name, counters in data["lines"].items()}
        captures = {port: CaptureStats(**counters) for port, counters in data["captures"].items()}
        return cls(**{**data, "lines": lines, "captures": captures})
