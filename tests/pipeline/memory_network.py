"""A Messenger within one process, whose endpoints move, are thawed, crash and are lied to at will: for what roles
make of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.adapters.plain_region import PlainRegion
from pipeline.application import Application
from pipeline.clock import Clock
from pipeline.parameters import Parameters
from pipeline.port import Buffer, Command, Role, RoleFactory, Service

Tamper = Callable[[str, str, bytes], list[bytes]]
"""What becomes of a message from one endpoint to another."""


class Stream:
    """``pipeline.port.Outbound``; holds ``room`` messages that are on their way."""

    def __init__(self, network: Network, sender: str, receiver: str) -> None:
        self.network = network
        self.sender, self.receiver = sender, receiver
        self.is_open = False
        self.ended = False
        self.waiting: list[bytes] = []
        self.flying: deque[bytes] = deque()

    def put(self, message: bytes) -> None:
        if self.ended:
            return
        self.waiting.append(message)
        self.network.move_on(self)


class Endpoint:
    """``pipeline.port.Endpoint``."""

    def __init__(self, network: Network, node: Node, name: str, regions: dict[str, PlainRegion]) -> None:
        self.network, self.node, self.name, self.regions = network, node, name, regions
        self.frozen = False
        self.role: Role | None = None

    def find(self, receiver: str) -> Stream | None:
        streams = [one for one in self.network.streams if (one.sender, one.receiver) == (self.name, receiver)]
        return streams[0] if streams else None

    def hears(self, sender: str) -> bool:
        return any((one.sender, one.receiver, one.is_open) == (sender, self.name, True) for one in self.network.streams)

    def open(self, receiver: str, service: Service) -> Stream:
        stream = Stream(self.network, self.name, receiver)
        self.network.streams.append(stream)
        self.network.soon(self.network.open, stream)
        return stream

    def region(self, name: str, size: int = 0) -> PlainRegion:
        return self.regions.setdefault(name, PlainRegion(size))


class Node:
    """``pipeline.port.Messenger``."""

    def __init__(self, network: Network, name: str) -> None:
        self.network, self.node = network, name
        self.commands: dict[str, Command] = {}
        self.arrive: RoleFactory | None = None

    async def host(self, name: str, make: RoleFactory) -> None:
        self.network.serve(Endpoint(self.network, self, name, {}), make)

    def on_arrival(self, make: RoleFactory) -> None:
        self.arrive = make

    def on_command(self, name: str, command: Command) -> None:
        self.commands[name] = command

    def record(self, event: str, **fields: Any) -> None:
        self.network.journal.append({"event": event, "node": self.node} | fields)

    async def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        return await self.commands[do](fields)


class Network:
    """All nodes, endpoints and streams. Endpoints are spread over nodes ``w0``, ``w1`` … as ``placement`` says."""

    def __init__(self, parameters: Mapping[str, Any], placement: list[list[str]], *, room: int = 1 << 30) -> None:
        self.parameters = Parameters.load(7, parameters)
        self.placement = placement
        self.room = room
        self.tamper: Tamper | None = None
        self.journal: list[dict[str, Any]] = []
        self.nodes: list[Node] = []
        self.endpoints: dict[str, Endpoint] = {}
        self.streams: list[Stream] = []
        self._clocks: list[Clock] = []

    async def __aenter__(self) -> Network:
        for index, names in enumerate(self.placement):
            await self.start(index, names)
        return self

    async def __aexit__(self, *_: object) -> None:
        for clock in self._clocks:
            clock.close()

    async def start(self, index: int, names: list[str]) -> None:
        """Start a node, for the first time or again."""
        node = Node(self, f"w{index}")
        self.nodes[index : index + 1] = [node]
        self._clocks.append(Clock())
        await Application(node, self._clocks[-1], self.parameters if names else None).host(names)

    async def traffic(self) -> dict[str, Any]:
        await self.nodes[0].ask("start")
        await self.until(lambda: self.counts("app.request") == self.parameters.requests)
        return await self.ask("finish")

    async def ask(self, do: str) -> dict[str, Any]:
        """Ask the node that serves the source."""
        async with asyncio.timeout(5):
            return await self.endpoints["source"].node.ask(do)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0)

    def counts(self, event: str) -> int:
        return sum(record["event"] == event for record in self.journal)

    @property
    def ended(self) -> int:
        """Requests that are done or have failed."""
        return self.counts("app.done") + self.counts("app.failed")

    # What is done to it

    def freeze(self, name: str) -> None:
        endpoint = self.endpoints[name]
        endpoint.frozen = True
        endpoint.role.freeze()  # type: ignore[union-attr]

    def thaw(self, name: str) -> None:
        endpoint = self.endpoints[name]
        endpoint.frozen = False
        endpoint.role.thaw()  # type: ignore[union-attr]
        self._go_on(name)

    def complete(self, name: str, to: int) -> None:
        """Serve a frozen endpoint on another node, from the bytes of its regions and its streams alone."""
        old = self.endpoints[name]
        regions = {}
        for key, region in old.regions.items():
            regions[key] = PlainRegion(len(region))
            regions[key].write(0, bytes(region.view))
        for stream in self.streams:
            if stream.sender == name:
                stream.waiting.clear()
        node = self.nodes[to]
        assert node.arrive is not None
        self.serve(Endpoint(self, node, name, regions), node.arrive)
        old.role.release("handover")  # type: ignore[union-attr]
        self._go_on(name)

    def migrate(self, name: str, to: int) -> None:
        self.freeze(name)
        self.complete(name, to)

    def crash(self, index: int) -> None:
        """A node vanishes; the others notice."""
        node = self.nodes[index]
        gone = [name for name, one in self.endpoints.items() if one.node is node]
        for name in gone:
            endpoint = self.endpoints.pop(name)
            endpoint.frozen = True
            endpoint.role.release("crash")  # type: ignore[union-attr]
        for stream in list(self.streams):
            if stream.sender in gone or stream.receiver in gone:
                self.reset(stream, f"w{index} died")

    def reset(self, stream: Stream, why: str) -> None:
        self.streams.remove(stream)
        was_open, stream.is_open, stream.ended = stream.is_open, False, True
        sender, receiver = self.endpoints.get(stream.sender), self.endpoints.get(stream.receiver)
        if sender is not None and sender.role is not None:
            self.soon(sender.role.stream_lost, stream, why)
        if receiver is not None and receiver.role is not None and was_open:
            self.soon(receiver.role.sender_lost, stream.sender, why)

    # How it works

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        asyncio.get_running_loop().call_soon(call, *arguments)

    def serve(self, endpoint: Endpoint, make: RoleFactory) -> None:
        self.endpoints[endpoint.name] = endpoint
        endpoint.role = make(endpoint)

    def open(self, stream: Stream) -> None:
        sender = self.endpoints.get(stream.sender)
        if stream.ended or stream.is_open or sender is None or sender.role is None or sender.frozen:
            return
        if stream.receiver not in self.endpoints:
            self.reset(stream, "endpoint unknown")
            return
        stream.is_open = True
        sender.role.stream_opened(stream)

    def move_on(self, stream: Stream) -> None:
        """Take messages onto the stream, and see to their delivery."""
        if self.endpoints[stream.sender].frozen:
            return
        while stream.waiting and len(stream.flying) < self.room:
            message = stream.waiting.pop(0)
            for copy in self.tamper(stream.sender, stream.receiver, message) if self.tamper else [message]:
                stream.flying.append(copy)
                self.soon(self._deliver, stream)

    def _deliver(self, stream: Stream) -> None:
        receiver = self.endpoints.get(stream.receiver)
        if stream.ended or not stream.flying or receiver is None or receiver.frozen:
            return
        message: Buffer = memoryview(stream.flying.popleft())
        assert receiver.role is not None
        receiver.role.take(stream.sender, message)
        sender = self.endpoints.get(stream.sender)
        if sender is None or sender.frozen or sender.role is None:
            return
        had_to_wait = bool(stream.waiting)
        self.move_on(stream)
        if had_to_wait and not stream.waiting:
            sender.role.stream_settled(stream)

    def _go_on(self, name: str) -> None:
        """What had stopped while the endpoint was frozen."""
        for stream in list(self.streams):
            if stream.sender == name:
                self.soon(self.open, stream)
                self.move_on(stream)
            if stream.receiver == name:
                for _ in stream.flying:
                    self.soon(self._deliver, stream)
