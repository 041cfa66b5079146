"""What carries frames between simulated nodes: well-behaved as TCP is, or worse than any network.

The core assumes nothing of a channel but that frames come whole. ``ordered`` channels behave as TCP over a network that
loses packets: late instead of lost, in order, silent while the way is cut, and broken with everything in flight when
one side gives up. The others lose, repeat and reorder frames one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from connex.core.frames import Frame
from connex.core.identity import TrafficClass

MS = 1_000_000
_LATEST = 300 * MS


@dataclass
class Weather:
    """What happens to single frames, as probabilities, and how long they take (ns)."""

    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    """Held back by up to 300 ms, past later frames and past epochs; on ordered channels what follows waits, too."""
    delay: int = 100_000
    ordered: bool = False


class _Channel:
    """One direction of a connection between two lives."""

    __slots__ = ("alive", "clear_at", "held")

    def __init__(self) -> None:
        self.alive = True
        self.clear_at = 0
        """When the last frame of an ordered channel arrives."""
        self.held: list[tuple[Frame, int]] = []
        """What waits for the way to be open again."""


Key = tuple[str, str, TrafficClass]
Arrive = Callable[[str, str, int, Frame], None]
"""From, to, to which life, what."""


class Clock(Protocol):
    """Virtual time in ns."""

    now: int

    def after(self, delay: int, what: Callable[[], None]) -> None: ...


class Channels:
    """All open channels."""

    def __init__(self, clock: Clock, weather: Callable[[], Weather], draw: random.Random) -> None:
        self._clock = clock
        self._weather = weather
        self._random = draw
        self._open: dict[Key, _Channel] = {}
        self.cut: set[tuple[str, str]] = set()
        """Directions in which nothing passes."""
        self.filters: list[Callable[[str, str, Frame], bool]] = []
        """Each may return False to drop a frame."""
        self.fates: list[Callable[[str, str, Frame], list[int]]] = []
        """Each says how much later than usual (ns) the copies of a frame arrive; none is a loss."""
        self.on_arrival: Arrive = _nowhere

    def is_open(self, here: str, there: str, kind: TrafficClass) -> bool:
        return (here, there, kind) in self._open

    def open(self, here: str, there: str, kind: TrafficClass) -> None:
        self._open[here, there, kind] = _Channel()
        self._open[there, here, kind] = _Channel()

    def reachable(self, here: str, there: str) -> bool:
        """Whether a connection between them can be made."""
        return (here, there) not in self.cut and (there, here) not in self.cut

    def close(self, here: str, there: str) -> list[TrafficClass]:
        """Break all channels between the two, with what is in flight; returns their classes."""
        kinds = []
        for key in [key for key in self._open if key[:2] in ((here, there), (there, here))]:
            self._open.pop(key).alive = False
            if key[0] == here:
                kinds.append(key[2])
        return kinds

    def partners(self, node: str) -> list[str]:
        return sorted({there for here, there, _ in self._open if here == node})

    def send(self, here: str, there: str, life: int, kind: TrafficClass, frame: Frame) -> None:
        """Put a frame on its way to that life of a node."""
        channel = self._open.get((here, there, kind))
        if channel is None or not all(keep(here, there, frame) for keep in self.filters):
            return
        weather, draw = self._weather(), self._random
        for fate in self.fates:
            delays = fate(here, there, frame)
            if delays != [0]:
                for delay in delays:
                    self._clock.after(weather.delay + delay, self._arrival(here, there, life, channel, frame))
                return
        if weather.ordered:
            if (here, there) in self.cut:
                channel.held.append((frame, life))
            else:
                self._send_in_order(here, there, life, channel, frame, weather)
            return
        if (here, there) in self.cut:
            return
        copies = 0 if draw.random() < weather.loss else 2 if draw.random() < weather.repeat else 1
        for _ in range(copies):
            late = draw.randrange(_LATEST) if weather.late and draw.random() < weather.late else 0
            self._clock.after(weather.delay + late, self._arrival(here, there, life, channel, frame))

    def _send_in_order(
        self, here: str, there: str, life: int, channel: _Channel, frame: Frame, weather: Weather
    ) -> None:
        wait = weather.delay
        if weather.loss and self._random.random() < weather.loss:
            wait += 2 * weather.delay + 200 * MS  # a retransmission time-out of Linux, at least
        if weather.late and self._random.random() < weather.late:
            wait += self._random.randrange(_LATEST // 10)
        now = self._clock.now
        channel.clear_at = max(channel.clear_at, now + wait)
        self._clock.after(channel.clear_at - now, self._arrival(here, there, life, channel, frame))

    def restore(self, pairs: set[tuple[str, str]]) -> None:
        """These directions are open again; what had waited goes on."""
        self.cut -= pairs
        for (here, there, _), channel in list(self._open.items()):
            if (here, there) in pairs:
                held, channel.held = channel.held, []
                for frame, life in held:
                    self._send_in_order(here, there, life, channel, frame, self._weather())

    def _arrival(self, here: str, there: str, life: int, channel: _Channel, frame: Frame) -> Callable[[], None]:
        def arrive() -> None:
            # A broken TCP connection delivers nothing more; a hostile network may.
            if channel.alive or not self._weather().ordered:
                self.on_arrival(here, there, life, frame)

        return arrive


def _nowhere(*_: object) -> None:
    """Until somebody listens."""
