"""Latencies by the million, kept to 0.2 % in a small table."""

from __future__ import annotations

_BITS = 9
"""Binary digits kept of each."""


class Latencies:
    def __init__(self) -> None:
        self.count = 0
        self._table: dict[int, int] = {}
        """How many, by what is left of the latency."""

    def add(self, latency: int) -> None:
        """Count one, in ns."""
        self.count += 1
        dropped = latency.bit_length() - _BITS
        kept = latency >> dropped << dropped if dropped > 0 else latency
        self._table[kept] = self._table.get(kept, 0) + 1

    def quantile(self, part: float) -> int:
        """The least latency, in ns, that ``part`` (0 to 1) of all do not exceed. Raises ValueError without any."""
        needed = part * self.count
        below = 0
        for latency in sorted(self._table):
            below += self._table[latency]
            if below >= needed:
                return latency
        raise ValueError("no latencies yet; add some first")
