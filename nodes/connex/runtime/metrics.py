"""Counters of a node, gathered when somebody asks: nothing is counted twice for their sake."""

from __future__ import annotations

from collections import Counter

from connex.core.identity import TrafficClass
from connex.runtime.channel import Channel


class Traffic:
    """Frames and bytes by class, of channels that are gone and those that are open."""

    def __init__(self) -> None:
        self._gone: Counter[str] = Counter()

    def gone(self, channel: Channel) -> None:
        """A channel has closed: keep its numbers."""
        self._gone.update(_numbers(channel))

    def totals(self, channels: list[Channel]) -> dict[str, int]:
        """``<class>.<what>`` -> number, bytes counted with headers."""
        totals = Counter(
            {
                f"{kind.name}.{what}": 0
                for kind in TrafficClass
                for what in ("received_bytes", "received_frames", "sent_bytes")
            }
        )
        totals.update(self._gone)
        for channel in channels:
            totals.update(_numbers(channel))
        return dict(totals)


def _numbers(channel: Channel) -> dict[str, int]:
    name = channel.traffic_class.name
    return {
        f"{name}.received_bytes": channel.received_bytes,
        f"{name}.received_frames": channel.received_frames,
        f"{name}.sent_bytes": channel.sent_bytes,
    }
