"""Nodes of the core in virtual time: real frames, encoded and decoded, and the smallest applications that can move.

An application takes every message as it comes; its only state is one region. What it does is noted: what was sent and
delivered, where and under which epoch, and how streams ended.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from connex.core import events
from connex.core.config import Config
from connex.core.drain import drain
from connex.core.errors import LocalProtocolError, RemoteProtocolError
from connex.core.frames import Frame, decode_header
from connex.core.identity import Peer, TrafficClass
from connex.core.node import Node
from connex.core.scheduler import Outgoing
from testbed.simulation.channels import MS, Channels, Weather

__all__ = ["MS", "Cluster", "Delivered", "Ending", "Weather"]


@dataclass(slots=True)
class Delivered:
    """A message that an application has taken. Time in ns."""

    stream: int
    number: int
    payload: bytes
    endpoint_epoch: int
    node: str
    at: int


@dataclass(slots=True)
class Ending:
    """One end of a stream was reset."""

    stream: int
    side: str
    cause: str
    node: str
    at: int


@dataclass
class Cluster:
    """Nodes by name, one clock, and everything that was seen."""

    names: tuple[str, ...] = ("a", "b", "c")
    seed: int = 0
    config: Config = field(default_factory=Config)
    weather: Weather = field(default_factory=Weather)
    reading: bool = True
    """Whether applications take messages as they come."""
    begins: Iterable[str] | None = None
    """The nodes that are started at once; all if None."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 1_000 * MS
        self.nodes: dict[str, Node] = {}
        self.stopped: set[str] = set()
        """Nodes that do nothing, and for which what arrives is lost."""
        self.paused: dict[str, list[Callable[[], None]]] = {}
        """Nodes whose process stands still, and what waits for it in the kernel's buffers."""
        self.channels = Channels(self, lambda: self.weather, self.random)
        self.channels.on_arrival = self._arrive
        self.cut = self.channels.cut
        self.filters = self.channels.filters
        self.delivered: dict[int, list[Delivered]] = defaultdict(list)
        self.sent: dict[int, list[bytes]] = defaultdict(list)
        self.endings: list[Ending] = []
        self.log: list[tuple[int, str, events.Event]] = []
        self.frames: list[tuple[int, str, str, Frame]] = []
        """Every frame that was sent."""
        self.regions: dict[tuple[str, str], bytearray] = {}
        self.on_event: Callable[[str, events.Event], None] = _nobody
        self.on_frame: Callable[[str, str, Frame], None] = _nobody
        """Called with every frame that is sent, before it is on its way."""
        self.on_arrival: Callable[[str, Frame], Callable[[], None] | None] = _nobody
        """Called with every frame before its node takes it; what it returns is called afterwards."""
        self.on_delivery: Callable[[Delivered, int], None] = _nobody
        """Called with every message taken, and the offset of its end."""
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._lives = 0
        for name in self.names if self.begins is None else self.begins:
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
        self.paused.pop(name, None)
        del self.nodes[name]
        for other in self.channels.partners(name):
            self._break(name, other)

    def pause(self, name: str) -> None:
        """Stop the process; what comes for it waits in the kernel."""
        if name in self.nodes:
            self.paused.setdefault(name, [])

    def resume(self, name: str) -> None:
        for what in self.paused.pop(name, []):
            self.after(0, what)

    def _break(self, name: str, other: str) -> None:
        """The channels between the two are gone; both are told as soon as they can be."""
        for kind in self.channels.close(name, other):
            for here, there in ((name, other), (other, name)):
                self.after(self.weather.delay, self._closer(here, there, kind))

    def _closer(self, here: str, there: str, kind: TrafficClass) -> Callable[[], None]:
        life = self.nodes[here].me.incarnation if here in self.nodes else 0

        def close() -> None:
            if here in self.paused:
                self.paused[here].append(close)
            elif here in self.nodes and self.nodes[here].me.incarnation == life:
                self.do(here, lambda node: node.channel_closed(there, kind, self.now))

        return close

    # Time

    def after(self, delay: int, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, what))

    def run(self, duration: int) -> None:
        """Let virtual time pass."""
        end = self.now + duration
        queue = self._queue
        while True:
            deadline, who = end, ""
            for name, node in self.nodes.items():
                due = node.next_deadline()
                if due is not None and due < deadline and name not in self.stopped and name not in self.paused:
                    deadline, who = due, name
            if queue and queue[0][0] <= deadline:
                at, _, what = heapq.heappop(queue)
                self.now = max(self.now, at)
                what()
            elif who:
                self.now = max(self.now, deadline)
                self.do(who, lambda node: node.handle_timer(self.now))
            else:
                self.now = end
                return

    def run_until(self, condition: Callable[[], bool], limit: int = 20_000 * MS, step: int = MS) -> None:
        """Let time pass until the condition holds; fails after ``limit``."""
        end = self.now + limit
        while not condition():
            assert self.now < end, f"still not so after {limit // MS} ms of virtual time"
            self.run(step)

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
        if not name or name in self.paused or self.nodes[name].is_frozen(endpoint) or not self.sending(name, stream):
            return False
        self.sent[stream].append(payload)
        try:
            self.do(name, lambda node: node.send(stream, payload, self.now))
        except LocalProtocolError:
            self.sent[stream].pop()
            raise
        return True

    def sending(self, name: str, stream: int) -> bool:
        return any(info["stream"] == stream and info["side"] == "sender" for info in self.nodes[name].streams())

    def move(self, endpoint: str, target: str, hold: bool = False) -> int:
        name = self.owner(endpoint)
        handover = self.do(name, lambda node: node.begin_handover(endpoint, target, 1000, hold, self.now))
        assert isinstance(handover, int)
        return handover

    def peer_states(self, name: str) -> dict[str, str]:
        """What the node thinks of those that it has streams with."""
        ends = {info["peer"] for info in self.nodes[name].streams()}
        return {peer: self.nodes[name].peer_state(peer) for peer in sorted(ends)}

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
        first = self.nodes[self.names[0]]
        for name in [name for name in self.nodes if name != first.me.node]:
            self.join(name, first.me.locator)
            self.run(5 * MS)

    def join(self, name: str, locator: str) -> None:
        self.do(name, lambda node: node.join(locator, self.now))

    def _event(self, node: Node, event: events.Event) -> None:
        name = node.me.node
        if isinstance(event, events.RegionReceived):
            event = event._replace(data=bytes(event.data))  # a view lives only as long as its call
        self.log.append((self.now, name, event))
        self.on_event(name, event)
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
            self.endings.append(Ending(event.stream, event.side, event.cause.label, name, self.now))
        elif isinstance(event, events.PeerChanged) and event.state == "dead" and self.weather.ordered:
            # As the runtime does: to escape the backoff of TCP after a partition.
            self._break(name, event.peer.node)

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
            payload = bytes(message.payload)
            delivered = Delivered(stream, message.number, payload, epoch, name, self.now)
            self.delivered[stream].append(delivered)
            self.on_delivery(delivered, message.offset + len(payload))
            count += 1
        return count

    # Channels

    def connect(self, here: str, there: str, kind: TrafficClass = TrafficClass.CONTROL) -> None:
        """Open a channel that nobody has asked for."""
        self._connect(self.nodes[here], events.ChannelWanted(there, self.nodes[there].me.locator, kind))

    def restore(self, *pairs: tuple[str, str]) -> None:
        """These directions (all, if none are named) are open again."""
        self.channels.restore(set(pairs) or set(self.cut))

    def _connect(self, node: Node, wanted: events.ChannelWanted) -> None:
        name = node.me.node
        if self.nodes.get(name) is not node:
            return
        if name in self.paused:
            self.paused[name].append(lambda: self._connect(node, wanted))
            return
        other = next((one for one in self.nodes.values() if one.me.locator == wanted.locator), None)
        if other is None or other.me.node in self.stopped or not self._reachable(name, other.me.node):
            self.do(name, lambda one: one.channel_failed(wanted.node, wanted.locator, wanted.traffic_class, self.now))
            return
        there, kind = other.me.node, wanted.traffic_class
        if self.channels.is_open(name, there, kind):
            return
        if there in self.paused:
            # The kernel takes the connection, but nobody there answers the first frame.
            self.paused[there].append(lambda: self._connect(node, wanted))
            return
        self.channels.open(name, there, kind)
        self.do(there, lambda one: one.channel_opened(node.me, kind, self.now))
        self.do(name, lambda one: one.channel_opened(other.me, kind, self.now))

    def _reachable(self, here: str, there: str) -> bool:
        return self.channels.reachable(here, there) if self.weather.ordered else (here, there) not in self.cut

    def _transmit(self, name: str, outgoing: Outgoing) -> None:
        buffers = iter(outgoing.buffers)
        there, kind = outgoing.node, outgoing.traffic_class
        life = self.nodes[there].me.incarnation if there in self.nodes else 0
        for header in buffers:
            frame, length = decode_header(header)
            if length:
                frame = frame._replace(payload=bytes(next(buffers)))
            self.frames.append((self.now, name, there, frame))
            self.on_frame(name, there, frame)
            self.channels.send(name, there, life, kind, frame)

    def _arrive(self, name: str, there: str, life: int, frame: Frame) -> None:
        node = self.nodes.get(there)
        if node is None or node.me.incarnation != life or there in self.stopped:
            return
        if there in self.paused:
            self.paused[there].append(lambda: self._arrive(name, there, life, frame))
            return
        afterwards = self.on_arrival(there, frame)
        try:
            self.do(there, lambda one: one.receive_frame(name, frame, self.now))
        except RemoteProtocolError as error:
            raise AssertionError(f"{there} called a frame of {name} a violation: {error}: {frame}") from error
        if afterwards is not None:
            afterwards()


def _nobody(*_: object) -> None:
    """Until somebody listens."""
