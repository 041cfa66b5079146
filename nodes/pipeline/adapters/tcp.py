"""The pipeline on bare TCP: a connection for each stream, to addresses that never change. The simplest thing that
works, to compare with.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.adapters.plain_region import PlainRegion
from pipeline.adapters.tcp_control import ControlServer
from pipeline.adapters.tcp_journal import Journal
from pipeline.adapters.tcp_stream import Incoming, Outgoing, Take
from pipeline.port import Command, Role, RoleFactory, Service

CONNECT_WITHIN_S = 5.0


class TcpMessenger:
    """``pipeline.port.Messenger`` with ``static`` addresses (``host:port``) of all endpoints. Nothing moves, so
    nothing arrives.
    """

    def __init__(
        self,
        node: str,
        listen: str,
        static: Mapping[str, str],
        *,
        journal: Path | None = None,
        control: Path | None = None,
    ) -> None:
        self.node = node
        self.static = dict(static)
        self._listen = listen
        self._control_path = control
        self._endpoints: dict[str, _Endpoint] = {}
        self._incoming: set[Incoming] = set()
        self._server: asyncio.Server | None = None
        self._stop = asyncio.Event()
        self._journal = Journal(node, journal)
        self._control = ControlServer(self._journal)
        for name, command in (
            ("hello", self._hello),
            ("status", self._status),
            ("metrics", self._metrics),
            ("stop", self._stop_asked),
        ):
            self._control.add(name, command)

    # Life

    async def start(self) -> None:
        """Listen. Raises OSError where that is impossible."""
        host, port = split(self._listen)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Incoming(self._route, self._ended), host, port, backlog=256)
        if self._control_path is not None:
            await self._control.open(self._control_path)
        self._journal.record(
            "node.started",
            {
                "incarnation": self._journal.incarnation,
                "locator": self.locator,
                "pid": os.getpid(),
                "cluster": "",
                "time": time.time(),
            },
        )

    @property
    def locator(self) -> str:
        """Where this node is reached."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def stop(self) -> None:
        self._stop.set()

    async def stopped(self) -> None:
        """Wait for ``stop``, also from the control socket."""
        await self._stop.wait()

    async def close(self) -> None:
        """End every connection and let go of every socket and file."""
        self._journal.record("node.stopping", {"cause": "closed"})
        for endpoint in self._endpoints.values():
            endpoint.close()
        for connection in list(self._incoming):
            connection.abort()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        await self._control.close()
        self._journal.close()

    # Messenger

    async def host(self, name: str, make: RoleFactory) -> None:
        self._endpoints[name] = _Endpoint(self, name, make)

    def on_arrival(self, make: RoleFactory) -> None:
        """Nothing ever arrives."""

    def on_command(self, name: str, command: Command) -> None:
        self._control.add(name, command)

    def record(self, event: str, **fields: Any) -> None:
        self._journal.record(event, fields)

    # Incoming connections

    def hears(self, sender: str, receiver: str) -> bool:
        return any((one.sender, one.receiver) == (sender, receiver) for one in self._incoming)

    def _route(self, connection: Incoming, sender: str, receiver: str) -> Take | None:
        endpoint = self._endpoints.get(receiver)
        if endpoint is None:
            return None
        self._incoming.add(connection)
        return endpoint.role.take

    def _ended(self, connection: Incoming, why: str) -> None:
        if connection in self._incoming:
            self._incoming.discard(connection)
            self._endpoints[connection.receiver].role.sender_lost(connection.sender, why)

    # Commands

    async def _hello(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"node": self.node, "incarnation": self._journal.incarnation, "pid": os.getpid()}

    async def _status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        streams = [
            {"from": e.name, "to": s.receiver, "open": s.is_open} for e in self._endpoints.values() for s in e.streams
        ]
        return {
            "endpoints": {name: {"epoch": 1, "frozen": False} for name in self._endpoints},
            "streams": streams,
            "members": [{"node": self.node, "incarnation": self._journal.incarnation, "locator": self.locator}],
            "peers": [],
            "handovers": [],
        }

    async def _metrics(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"channels_open": len(self._incoming) + sum(len(e.streams) for e in self._endpoints.values())}

    async def _stop_asked(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self.stop()
        return {}


class _Endpoint:
    """``pipeline.port.Endpoint``, and what calls its role."""

    def __init__(self, messenger: TcpMessenger, name: str, make: RoleFactory) -> None:
        self.name = name
        self.streams: list[Outgoing] = []
        self._messenger = messenger
        self._regions: dict[str, PlainRegion] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False
        self.role: Role = make(self)

    def find(self, receiver: str) -> Outgoing | None:
        return next((stream for stream in self.streams if stream.receiver == receiver), None)

    def hears(self, sender: str) -> bool:
        return self._messenger.hears(sender, self.name)

    def open(self, receiver: str, service: Service) -> Outgoing:
        stream = Outgoing(self.name, receiver, self._opened, self._settled, self._lost)
        self.streams.append(stream)
        task = asyncio.get_running_loop().create_task(self._connect(stream))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return stream

    def region(self, name: str, size: int = 0) -> PlainRegion:
        if name not in self._regions:
            self._regions[name] = PlainRegion(size)
        return self._regions[name]

    def close(self) -> None:
        self._closed = True
        self.role.release("closed")
        for task in self._connecting:
            task.cancel()
        for stream in list(self.streams):
            stream.abort()

    async def _connect(self, stream: Outgoing) -> None:
        where = self._messenger.static.get(stream.receiver)
        try:
            if where is None:
                raise OSError(f"no address is known of endpoint {stream.receiver}")
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await asyncio.get_running_loop().create_connection(lambda: stream, *split(where))
        except TimeoutError:
            self._lost(stream, f"{where} did not answer within {CONNECT_WITHIN_S:g} s")
        except OSError as error:
            self._lost(stream, str(error))

    def _opened(self, stream: Outgoing) -> None:
        if not self._closed:
            self.role.stream_opened(stream)

    def _settled(self, stream: Outgoing) -> None:
        if not self._closed:
            self.role.stream_settled(stream)

    def _lost(self, stream: Outgoing, why: str) -> None:
        if stream in self.streams:
            self.streams.remove(stream)
            if not self._closed:
                self.role.stream_lost(stream, why)


def split(locator: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[host]:port``. Raises ValueError."""
    host, _, port = locator.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{locator!r} is no address; expected host:port, or [host]:port for IPv6")
    return host.removeprefix("[").removesuffix("]"), int(port)
