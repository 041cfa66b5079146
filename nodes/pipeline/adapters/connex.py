"""The pipeline on Connex: endpoints move, streams go on."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import connex
from pipeline.port import Command, Role, RoleFactory, Service

PATTERNS = ("source", "sink", "stage-*")
"""Endpoints that any node takes."""
_CLASSES = {Service.TOKEN: connex.TrafficClass.TOKEN, Service.ACTIVATION: connex.TrafficClass.ACTIVATION}


class ConnexMessenger:
    """``pipeline.port.Messenger`` on a started Connex node."""

    def __init__(self, node: connex.Node) -> None:
        self._node = node

    @property
    def node(self) -> str:
        return self._node.name

    async def host(self, name: str, make: RoleFactory) -> None:
        """Raises connex.LocalProtocolError if a living node serves the endpoint already."""
        _Endpoint(self._node, await self._node.host(name), make)

    def on_arrival(self, make: RoleFactory) -> None:
        for pattern in PATTERNS:
            self._node.on_arrival(pattern, lambda endpoint: _Endpoint(self._node, endpoint, make))

    def on_command(self, name: str, command: Command) -> None:
        self._node.control.add(name, command)

    def record(self, event: str, **fields: Any) -> None:
        self._node.record(event, fields)


class _Endpoint:
    """``pipeline.port.Endpoint``, and what calls its role."""

    def __init__(self, node: connex.Node, endpoint: connex.Endpoint, make: RoleFactory) -> None:
        self.name = endpoint.name
        self._node = node
        self._endpoint = endpoint
        self._streams: dict[int, _Outbound] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._adopt()
        self.role: Role = make(self)
        take = self.role.take
        endpoint.on_freeze(self.role.freeze)
        endpoint.on_thaw(self.role.thaw)
        endpoint.on_release(self._released)
        endpoint.on_stream_end(self._ended)
        endpoint.on_message(lambda message: take(message.stream.sender, message.payload))

    def find(self, receiver: str) -> _Outbound | None:
        return next((stream for stream in self._streams.values() if stream.receiver == receiver), None)

    def hears(self, sender: str) -> bool:
        return any(stream.sender == sender for stream in self._endpoint.inbound.values())

    def open(self, receiver: str, service: Service) -> _Outbound:
        try:
            stream = self._endpoint.start_stream(receiver, _CLASSES[service])
        except (connex.LocalProtocolError, connex.EndpointMoved) as error:
            # The endpoint is on its way out, or a limit is reached: the role tries again if it is still there.
            outbound = _Outbound(self, receiver, None, is_open=False)
            asyncio.get_running_loop().call_soon(self._could_not_open, outbound, str(error))
            return outbound
        outbound = self._streams[stream.id] = _Outbound(self, receiver, stream, is_open=False)
        self.start(self._watch_opening(stream, outbound))
        return outbound

    def region(self, name: str, size: int = 0) -> connex.StateRegion:
        return self._endpoint.region(name, size)

    def start(self, work: Any) -> None:
        """Run a coroutine beside everything else, as long as the endpoint is here."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _adopt(self) -> None:
        """Take over the streams that came with the endpoint. One that nobody had accepted yet is given up: the role
        opens it afresh.
        """
        if not self._endpoint.outbound:
            return
        accepted = {int(one["stream"], 16) for one in self._node.status()["streams"] if one.get("open")}
        for stream in list(self._endpoint.outbound.values()):
            if stream.id in accepted:
                self._streams[stream.id] = _Outbound(self, stream.receiver, stream, is_open=True)
            else:
                stream.reset("it had not been accepted when its sender moved")

    async def _watch_opening(self, stream: connex.OutboundStream, outbound: _Outbound) -> None:
        try:
            await stream.opened()
        except connex.ConnexError:
            return  # it ended first: _ended is told
        outbound.is_open = True
        self.role.stream_opened(outbound)

    def _ended(self, stream: connex.Stream) -> None:
        why = str(stream.error or "it was closed at the other end")
        if isinstance(stream, connex.InboundStream):
            self.role.sender_lost(stream.sender, why)
            return
        outbound = self._streams.pop(stream.id, None)
        if outbound is not None:
            outbound.is_open = False
            self.role.stream_lost(outbound, why)

    def _could_not_open(self, outbound: _Outbound, why: str) -> None:
        if self._endpoint.released is None:
            self.role.stream_lost(outbound, why)

    def _released(self, cause: str) -> None:
        self.role.release(cause)
        for task in self._tasks:
            task.cancel()


class _Outbound:
    """``pipeline.port.Outbound``. Almost always there is room, and a message goes to Connex at once."""

    def __init__(
        self, endpoint: _Endpoint, receiver: str, stream: connex.OutboundStream | None, *, is_open: bool
    ) -> None:
        """``stream`` is None of one that could not even be begun."""
        self.receiver = receiver
        self.is_open = is_open
        self._endpoint = endpoint
        self._stream = stream
        self._waiting: deque[bytes] = deque()
        self._before = 0
        """Where the stream ended when the foremost waiting message was last handed over."""

    @property
    def waiting(self) -> list[bytes]:
        waiting = list(self._waiting)
        if waiting and self._stream is not None and self._stream.offset != self._before:
            del waiting[0]  # it has just gone, and the pump has not woken up yet
        return waiting

    def put(self, message: bytes) -> None:
        stream = self._stream
        if stream is None:
            return
        if self._waiting:
            self._waiting.append(message)
            return
        try:
            stream.send_nowait(message)
        except connex.WouldWait:
            self._waiting.append(message)
            self._before = stream.offset
            self._endpoint.start(self._pump(stream))
        except (connex.StreamReset, connex.EndpointMoved):
            return  # the role has been or will be told

    async def _pump(self, stream: connex.OutboundStream) -> None:
        """Send what waits, message by message, as room comes up."""
        try:
            while self._waiting:
                self._before = stream.offset
                await stream.send(self._waiting[0])
                self._waiting.popleft()
        except (connex.StreamReset, connex.EndpointMoved):
            return  # the role is told
        self._endpoint.role.stream_settled(self)
