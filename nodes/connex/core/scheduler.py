"""Who may use a channel next: one lane per peer and traffic class, higher classes first, bulk in turns.

CONTROL goes before TOKEN, TOKEN before ACTIVATION and KV. These two take turns of at most ``ClassLimits.batch``
bytes, and so do the streams of one lane: deficit round robin with equal weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from connex.core.config import Config
from connex.core.events import ChannelWanted, Event
from connex.core.frames import Buffer, Frame, encode_header
from connex.core.identity import NodeName, TrafficClass

_URGENT_LIMIT = 4096
"""Control frames kept for a lane without a channel; older ones are dropped, which their timers recover."""


class Outgoing(NamedTuple):
    """Frames for one channel, as buffers to be written in this order: header, payload, header, payload…"""

    node: NodeName
    traffic_class: TrafficClass
    buffers: list[Buffer]


class Source(Protocol):
    """Something that puts DATA frames into a lane."""

    def fill(self, buffers: list[Buffer], budget: int, now: int) -> int:
        """Append frames of about ``budget`` bytes at most; returns the bytes of payload appended."""
        ...

    def wants_to_send(self, now: int) -> bool: ...


class Lane:
    """What waits for one channel."""

    __slots__ = ("channels", "node", "number", "sources", "traffic_class", "urgent", "wanted", "writable")

    def __init__(self, node: NodeName, traffic_class: TrafficClass) -> None:
        self.node = node
        self.traffic_class = traffic_class
        self.number = int(traffic_class)
        self.channels = 0
        self.writable = True
        self.wanted = False
        """Whether a ChannelWanted is out and unanswered."""
        self.urgent: deque[tuple[Buffer, Buffer]] = deque()
        self.sources: dict[Source, None] = {}


class Scheduler:
    """All lanes of a node."""

    def __init__(
        self,
        me: NodeName,
        config: Config,
        emit: Callable[[Event], None],
        locate: Callable[[NodeName], str | None],
    ) -> None:
        self._me = me
        self._batch = {kind: limits.batch for kind, limits in config.classes.items()}
        self._emit = emit
        self._locate = locate
        self.lanes: dict[tuple[NodeName, int], Lane] = {}
        self._busy: dict[Lane, None] = {}
        self.express: list[Outgoing] = []
        """Handed out with the next poll before all others: see ``connex.core.express``."""

    def lane(self, node: NodeName, traffic_class: int) -> Lane:
        key = (node, traffic_class)
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(node, TrafficClass(traffic_class))
            if node == self._me:
                lane.channels = 1
        return lane

    def open_lanes(self, traffic_class: TrafficClass = TrafficClass.CONTROL) -> list[NodeName]:
        """Other nodes to which a channel of the class is open."""
        return [
            node
            for (node, kind), lane in self.lanes.items()
            if kind == traffic_class and lane.channels and node != self._me
        ]

    def is_open(self, node: NodeName, traffic_class: int) -> bool:
        lane = self.lanes.get((node, traffic_class))
        return lane is not None and lane.channels > 0

    def post(self, node: NodeName, frame: Frame) -> None:
        """Queue one frame ahead of all DATA of its class."""
        lane = self.lane(node, frame.traffic_class)
        lane.urgent.append((encode_header(frame), frame.payload))
        if len(lane.urgent) > _URGENT_LIMIT:
            lane.urgent.popleft()
        self._wake(lane)

    def ready(self, node: NodeName, traffic_class: int, source: Source) -> None:
        """The source has something to send on that lane."""
        lane = self.lane(node, traffic_class)
        lane.sources[source] = None
        self._wake(lane)

    def withdraw(self, node: NodeName, traffic_class: int, source: Source) -> None:
        lane = self.lanes.get((node, traffic_class))
        if lane is not None:
            lane.sources.pop(source, None)

    def _wake(self, lane: Lane) -> None:
        if lane.channels:
            if lane.writable:
                self._busy[lane] = None
        elif not lane.wanted:
            self.want(lane.node, lane.traffic_class)

    def want(self, node: NodeName, traffic_class: TrafficClass) -> None:
        """Ask for a channel, unless one is there, or asked for already, or nobody knows where the node is."""
        lane = self.lane(node, traffic_class)
        locator = self._locate(node)
        if lane.channels or lane.wanted or locator is None:
            return
        lane.wanted = True
        self._emit(ChannelWanted(node, locator, traffic_class))

    def needed(self, node: NodeName, traffic_class: int) -> bool:
        """Whether anything waits for a channel that is not there."""
        lane = self.lanes.get((node, traffic_class))
        return lane is not None and not lane.channels and bool(lane.urgent or lane.sources)

    def opened(self, node: NodeName, traffic_class: int) -> None:
        lane = self.lane(node, traffic_class)
        lane.channels += 1
        lane.wanted = False
        lane.writable = True
        self._wake(lane)

    def closed(self, node: NodeName, traffic_class: int) -> None:
        lane = self.lane(node, traffic_class)
        lane.channels = max(0, lane.channels - 1)
        if not lane.channels:
            lane.urgent.clear()
            self._busy.pop(lane, None)

    def failed(self, node: NodeName, traffic_class: int) -> None:
        self.lane(node, traffic_class).wanted = False

    def writable(self, node: NodeName, traffic_class: int, writable: bool) -> None:
        lane = self.lane(node, traffic_class)
        lane.writable = writable
        if writable and (lane.urgent or lane.sources):
            self._wake(lane)
        elif not writable:
            self._busy.pop(lane, None)

    def forget(self, node: NodeName) -> None:
        """The node's life is over: nothing waits for it any more."""
        for (name, _), lane in self.lanes.items():
            if name == node:
                lane.urgent.clear()
                lane.sources.clear()
                self._busy.pop(lane, None)

    def frames(self, now: int) -> list[Outgoing]:
        """One turn of every channel that has something to send and room for it."""
        result = self.express
        busy = self._busy
        if not result and not busy:
            return result
        self.express = []
        for lane in sorted(busy, key=_by_class) if len(busy) > 1 else list(busy):
            buffers: list[Buffer] = []
            budget = self._batch[lane.traffic_class]
            urgent = lane.urgent
            while urgent and budget > 0:
                header, payload = urgent.popleft()
                buffers.append(header)
                if payload:
                    buffers.append(payload)
                budget -= len(header) + len(payload)
            if lane.sources and budget > 0:
                self._fill(lane, buffers, budget, now)
            if buffers:
                result.append(Outgoing(lane.node, lane.traffic_class, buffers))
            if not urgent and not lane.sources:
                busy.pop(lane, None)
        return result

    @staticmethod
    def _fill(lane: Lane, buffers: list[Buffer], budget: int, now: int) -> None:
        for source in list(lane.sources):
            share = max(1, budget // len(lane.sources))
            budget -= source.fill(buffers, share, now)
            del lane.sources[source]
            if source.wants_to_send(now):
                lane.sources[source] = None
            if budget <= 0:
                return


def _by_class(lane: Lane) -> int:
    return lane.traffic_class
