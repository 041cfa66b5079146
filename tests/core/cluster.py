"""Nodes of the core in virtual time: real frames, encoded and decoded, over channels that may lose, repeat and
reorder them.

The application is the smallest one that can move: it takes every message, and its only state is one region.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from connex.core import events
from connex.core.config import Config
from connex.core.drain import drain
from connex.core.errors import RemoteProtocolError
from connex.core.frames import Frame, decode_header
from connex.core.identity import Peer, TrafficClass
from connex.core.node import Node
from connex.core.scheduler import Outgoing

MS = 1_000_000


@dataclass
class Weather:
    """What channels do to single frames, as probabilities, and how long they take."""

    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    """Held back by up to 300 ms, past later frames and past epochs."""
    delay: int = 100_000


@dataclass
class Delivered:
    stream: int
    number: int
    payload: bytes
    endpoint_epoch: int
    node: str
    at: int


@dataclass
class Ending:
    stream: int
    side: str
    cause: str
    node: str


@dataclass
class Cluster:
    """Nodes by name, one clock, and everything that was seen."""

    names: tuple[str, ...] = ("a", "b", "c")
    seed: int = 0
    config: Config = field(default_factory=Config)
    weather: Weather = field(default_factory=Weather)
    reading: bool = True
    """Whether applications take messages as they come."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 1_000 * MS
        self.nodes: dict[str, Node] = {}
        self.stopped: set[str] = set()
        self.cut: set[tuple[str, str]] = set()
        self.delivered: dict[int, list[Delivered]] = defaultdict(list)
        self.sent: dict[int, list[bytes]] = defaultdict(list)
        self.endings: list[Ending] = []
        self.log: list[tuple[int, str, events.Event]] = []
        self.frames: list[tuple[int, str, str, Frame]] = []
        self.regions: dict[tuple[str, str], bytearray] = {}
        self.filters: list[Callable[[str, str, Frame], bool]] = []
        """Each may return False to drop a frame."""
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._channels: set[tuple[str, str, TrafficClass]] = set()
        self._lives = 0
        for name in self.names:
            self.start(name)

    # Lives

    def start(self, name: str) -> Node:
        self._lives += 1
        peer = Peer(name, self._lives, f"10.0.0.{self.names.index(name) + 1}:7400")
        node = Node(peer, self.config, self.random.getrandbits, accepts=lambda endpoint: None)
        self.nodes[name] = node
        self.stopped.discard(name)
        return node

    def kill(self, name: str) -> None:
        """End the process: its channels break, its memory is gone."""
        self.stopped.add(name)
        del self.nodes[name]
        for here, there, kind in list(self._channels):
            if name in (here, there):
                self._channels.discard((here, there, kind))
                other = there if here == name else here
                if other in self.nodes:
                    self.after(self.weather.delay, self._closer(other, name, kind))

    def _closer(self, other: str, name: str, kind: TrafficClass) -> Callable[[], None]:
        return lambda: self.do(other, lambda node: node.channel_closed(name, kind, self.now))

    # Time

    def after(self, delay: int, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, what))

    def run(self, duration: int) -> None:
        """Let virtual time pass."""
        end = self.now + duration
        while True:
            deadline, who = min(
                ((node.next_deadline() or end, name) for name, node in self.nodes.items() if name not in self.stopped),
                default=(end, ""),
            )
            if self._queue and self._queue[0][0] <= min(deadline, end):
                at, _, what = heapq.heappop(self._queue)
                self.now = max(self.now, at)
                what()
            elif deadline < end:
                self.now = max(self.now, deadline)
                self.do(who, lambda node: node.handle_timer(self.now))
            else:
                self.now = end
                return

    def run_until(self, condition: Callable[[], bool], limit: int = 20_000 * MS) -> None:
        """Let time pass until the condition holds; fails after ``limit``."""
        end = self.now + limit
        while not condition():
            assert self.now < end, f"still not so after {limit // MS} ms of virtual time"
            self.run(1 * MS)

    def do(self, name: str, what: Callable[[Node], object]) -> object:
        """Touch a node and carry out what it wants then."""
        if name not in self.nodes:
            return None
        node = self.nodes[name]
        result = what(node)
        drain(node, self.now, lambda event: self._event(node, event), lambda out: self._transmit(name, out))
        return result

    # Applications

    def host(self, name: str, endpoint: str) -> None:
        self.regions[name, endpoint] = bytearray(1000)
        self.do(name, lambda node: node.host(endpoint, self.now))

    def open(self, name: str, sender: str, receiver: str, kind: TrafficClass = TrafficClass.TOKEN) -> int:
        stream = self.do(name, lambda node: node.open_stream(sender, receiver, kind, "", self.now))
        assert isinstance(stream, int)
        return stream

    def owner(self, endpoint: str) -> str:
        """The node that serves the endpoint under the newest epoch; empty if none."""
        owners = [
            (binding.epoch, name)
            for name, node in self.nodes.items()
            for binding in node.owned()
            if binding.endpoint == endpoint
        ]
        return max(owners)[1] if owners else ""

    def send(self, endpoint: str, stream: int, payload: bytes) -> bool:
        """Send from wherever the endpoint is; False if it cannot send just now."""
        name = self.owner(endpoint)
        if not name or self.nodes[name].is_frozen(endpoint) or not self.sending(name, stream):
            return False
        self.sent[stream].append(payload)
        self.do(name, lambda node: node.send(stream, payload, self.now))
        return True

    def sending(self, name: str, stream: int) -> bool:
        return any(info["stream"] == stream and info["side"] == "sender" for info in self.nodes[name].streams())

    def move(self, endpoint: str, target: str, hold: bool = False) -> int:
        name = self.owner(endpoint)
        handover = self.do(name, lambda node: node.begin_handover(endpoint, target, 1000, hold, self.now))
        assert isinstance(handover, int)
        return handover

    def seen(self, kind: type[events.Event], **fields: object) -> list[events.Event]:
        return [
            event
            for _, _, event in self.log
            if isinstance(event, kind) and all(getattr(event, key) == value for key, value in fields.items())
        ]

    def payloads(self, stream: int) -> list[bytes]:
        return [one.payload for one in self.delivered[stream]]

    def introduce(self) -> None:
        """Let all nodes know each other."""
        for name in self.names[1:]:
            locator = self.nodes[self.names[0]].me.locator
            self.do(name, lambda node, locator=locator: node.join(locator, self.now))  # type: ignore[misc]
            self.run(5 * MS)

    def _event(self, node: Node, event: events.Event) -> None:
        name = node.me.node
        self.log.append((self.now, name, event))
        if isinstance(event, events.ChannelWanted):
            self.after(self.weather.delay, lambda: self._connect(node, event))
        elif isinstance(event, events.MessageReady) and self.reading:
            self.read(name, event.stream)
        elif isinstance(event, events.RegionsWanted):
            self._send_region(node, event.handover, event.endpoint)
            node.precopied(event.handover, 0, self.now)
        elif isinstance(event, events.FreezeRequested):
            self._send_region(node, event.handover, event.endpoint)
            node.frozen(event.handover, self.now)
        elif isinstance(event, events.RegionReceived):
            region = self.regions.setdefault((name, event.endpoint), bytearray(event.size))
            region[event.offset : event.offset + len(event.data)] = event.data
        elif isinstance(event, events.StreamWasReset):
            self.endings.append(Ending(event.stream, event.side, event.cause.label, name))

    def _send_region(self, node: Node, handover: int, endpoint: str) -> None:
        region = self.regions[node.me.node, endpoint]
        node.send_region(handover, "state", len(region), 0, bytes(region), self.now)

    def read(self, name: str, stream: int) -> int:
        """Take every complete message of the stream; returns how many."""
        node = self.nodes[name]
        count = 0
        while (message := node.consume(stream, self.now)) is not None:
            info = next((one for one in node.streams() if one["stream"] == stream and one["side"] == "receiver"), None)
            epoch = 0
            if info is not None:
                binding = next((one for one in node.owned() if one.endpoint == info["to"]), None)
                assert binding is not None, "a message was delivered by a node that does not own the endpoint"
                epoch = binding.epoch
            self.delivered[stream].append(
                Delivered(stream, message.number, bytes(message.payload), epoch, name, self.now)
            )
            count += 1
        return count

    # Channels

    def _connect(self, node: Node, wanted: events.ChannelWanted) -> None:
        name = node.me.node
        if self.nodes.get(name) is not node:
            return
        other = next((one for one in self.nodes.values() if one.me.locator == wanted.locator), None)
        if other is None or other.me.node in self.stopped or (name, other.me.node) in self.cut:
            self.do(name, lambda one: one.channel_failed(wanted.node, wanted.locator, wanted.traffic_class, self.now))
            return
        there, kind = other.me.node, wanted.traffic_class
        if (name, there, kind) in self._channels:
            return
        self._channels |= {(name, there, kind), (there, name, kind)}
        self.do(there, lambda one: one.channel_opened(node.me, kind, self.now))
        self.do(name, lambda one: one.channel_opened(other.me, kind, self.now))

    def _transmit(self, name: str, outgoing: Outgoing) -> None:
        buffers = iter(outgoing.buffers)
        for header in buffers:
            frame, length = decode_header(header)
            if length:
                frame = frame._replace(payload=bytes(next(buffers)))
            self.frames.append((self.now, name, outgoing.node, frame))
            self._carry(name, outgoing.node, outgoing.traffic_class, frame)

    def _carry(self, name: str, there: str, kind: TrafficClass, frame: Frame) -> None:
        if (name, there, kind) not in self._channels or (name, there) in self.cut:
            return
        if not all(keep(name, there, frame) for keep in self.filters):
            return
        weather, draw = self.weather, self.random
        copies = 0 if draw.random() < weather.loss else 2 if draw.random() < weather.repeat else 1
        life = self.nodes[there].me.incarnation if there in self.nodes else 0
        for _ in range(copies):
            delay = weather.delay
            if weather.late and draw.random() < weather.late:
                delay += draw.randrange(300 * MS)
            self.after(delay, self._arrival(name, there, life, frame))

    def _arrival(self, name: str, there: str, life: int, frame: Frame) -> Callable[[], None]:
        def arrive() -> None:
            node = self.nodes.get(there)
            if node is None or node.me.incarnation != life or there in self.stopped:
                return
            try:
                self.do(there, lambda one: one.receive_frame(name, frame, self.now))
            except RemoteProtocolError as error:
                raise AssertionError(f"{there} called a frame of {name} a violation: {error}: {frame}") from error

        return arrive
