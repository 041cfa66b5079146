"""A node as applications hold it: one process's part in the cluster."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from connex.core.config import Config
from connex.core.errors import ChannelRefused, ConnexError, HandoverFailed, LocalProtocolError
from connex.core.identity import EndpointName, HandoverId, NodeName, Peer
from connex.core.membership import ALIVE
from connex.core.node import Node as Core
from connex.runtime.assembly import Assembly
from connex.runtime.channel import Channel
from connex.runtime.control import ControlServer
from connex.runtime.endpoint import Endpoint
from connex.runtime.errors import NodeClosed
from connex.runtime.handshake import Credentials
from connex.runtime.locator import format_locator, parse_locator
from connex.runtime.moves import Arrivals, Factory, Handover
from connex.runtime.status import add_commands, status

_FAREWELL_S = 1.0
"""How long closing waits for what was written to leave."""


class ListenError(ConnexError, OSError):
    """The address to listen on cannot be used."""


class Node:
    """One node. Use it as ``async with connex.Node(…) as node``, or call ``start`` and ``close``.

    ``listen`` is the address and port to accept channels on (port 0: any free one), ``locator`` the address that others
    are told (by default the same). ``seeds`` are locators of nodes to join; the node's own may be among them. Nodes of
    one ``cluster`` share its ``secret``. ``journal`` is a folder for the journal, ``control`` the path of the control
    socket; both are optional and cost nothing when absent.

    ``poll_ns`` trades processor time for latency: for so long after any message the event loop looks for the next one
    instead of sleeping (0: never; 200,000 suits a node that has a processor to itself).
    """

    def __init__(
        self,
        name: NodeName,
        *,
        listen: str = "127.0.0.1:0",
        locator: str | None = None,
        secret: bytes = b"",
        cluster: str = "default",
        seeds: Sequence[str] = (),
        journal: Path | None = None,
        control: Path | None = None,
        config: Config | None = None,
        poll_ns: int = 0,
    ) -> None:
        self.name = name
        self.config = config or Config()
        self.control = ControlServer()
        """Serves the control socket, if there is one: ``node.control.add(name, handler)`` adds a command of the
        application's own.
        """
        self._listen = listen
        self._locator = locator
        self._secret = secret
        self._cluster = cluster
        self._seeds = seeds
        self._journal = journal
        self._poll_ns = poll_ns
        self._control_path = control
        self._arrivals = Arrivals()
        self._assembly: Assembly | None = None
        self._closed = False
        self._left = False
        self._stop = asyncio.Event()
        self._failure: Exception | None = None
        add_commands(self.control, self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "not started" if self._assembly is None else f"at {self.locator}"
        return f"<Node {self.name!r} {state}>"

    # Life

    async def start(self) -> Self:
        """Open sockets and files, and begin to join. Raises ListenError, JournalError or ControlError and leaves
        nothing open then.
        """
        if self._assembly is not None or self._closed:
            raise LocalProtocolError(f"node {self.name} was started already; make a new one")
        sock = self._bind()
        try:
            peer = Peer(self.name, secrets.randbits(64) or 1, self._own_locator(sock))
            assembly = Assembly(
                Credentials(peer, self._cluster, self._secret),
                self.config,
                self._journal,
                self._arrivals,
                self._poll_ns,
            )
        except BaseException:
            sock.close()
            raise
        self._assembly = assembly
        assembly.engine.on_failure = self._fail
        try:
            await assembly.links.listen(sock)
            if self._control_path is not None:
                await self.control.open(self._control_path, assembly.journal)
        except BaseException:
            await self._release("could not start")
            raise
        assembly.note(
            "node.started",
            {
                "incarnation": f"{peer.incarnation:016x}",
                "locator": peer.locator,
                "pid": os.getpid(),
                "cluster": self._cluster,
                "time": time.time(),
            },
        )
        now = assembly.engine.now()
        for seed in self._seeds:
            parse_locator(seed)
            assembly.core.join(seed, now)
        assembly.engine.touched(now)
        return self

    async def close(self, cause: str = "closed") -> None:
        """End what is hosted here (its streams are reset), say goodbye, and let go of every socket, file and task."""
        if self._assembly is None or self._closed:
            return
        if not self._left and self._failure is None:
            self._say_goodbye()
        await self._release(cause)

    async def leave(self, timeout_s: float | None = None) -> list[EndpointName]:
        """Hand every endpoint over to a member that takes it and end those that nobody takes, then say goodbye;
        returns the names handed over.

        ``timeout_s`` bounds the handovers together. The node stays open for what it still has to answer: ``close`` it
        afterwards.
        """
        moved: list[EndpointName] = []
        try:
            async with asyncio.timeout(timeout_s):
                for turn, name in enumerate(list(self.endpoints)):
                    if await self._hand_over(name, turn):
                        moved.append(name)
        except TimeoutError:
            # What is left is ended below, which its streams are told.
            pass
        self._say_goodbye()
        return moved

    def stop(self) -> None:
        """Let ``stopped`` return: whoever runs the node then closes it."""
        self._stop.set()

    async def stopped(self) -> None:
        """Wait for ``stop`` (also from the control socket). Raises what made the node unable to go on, such as a
        journal that cannot be written.
        """
        await self._stop.wait()
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Self:
        """Start, and wait until this node has joined its seeds or found that nobody is there.

        Raises ChannelRefused if they are there and do not accept it: wrong secret, cluster or version.
        """
        await self.start()
        try:
            await self._joined()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What it is

    @property
    def me(self) -> Peer:
        """Name, incarnation and locator of this life."""
        return self._live.core.me

    @property
    def locator(self) -> str:
        """Where others reach this node."""
        return self.me.locator

    @property
    def endpoints(self) -> Mapping[EndpointName, Endpoint]:
        """The endpoints served here."""
        return self._live.hosting.endpoints

    @property
    def core(self) -> Core:
        """The protocol's own state, for looking at it. Its commands are this class's to call."""
        return self._live.core

    def channels(self) -> list[Channel]:
        """The open connections."""
        return self._live.links.channels()

    def status(self) -> dict[str, Any]:
        """Endpoints, streams, members, peers and handovers as this node sees them, ready for JSON."""
        return status(self)

    def metrics(self) -> dict[str, int]:
        """Counters since the start: messages, drains, channels, and frames and bytes by class."""
        live = self._live
        return {
            "delivered": live.hosting.delivered + sum(one.delivered for one in self.endpoints.values()),
            "drains": live.engine.drains,
            "channels_open": len(self.channels()),
            "channels_opened": live.links.opened_channels,
            "channels_failed": live.links.failed_attempts,
            "channels_refused": live.links.refused_channels,
        } | live.links.traffic.totals(self.channels())

    def record(self, event: str, fields: Mapping[str, Any]) -> None:
        """Put an event of the application into the journal. Its name begins with ``app.``; the fields are ready for
        JSON.
        """
        if not event.startswith("app."):
            raise LocalProtocolError(f"journal event {event!r}: expected a name that begins with app.")
        if self._assembly is not None:
            self._assembly.note(event, dict(fields))

    # Endpoints

    async def _joined(self) -> None:
        await self._live.hosting.joined()
        links = self._live.links
        if links.turned_away and not links.channels():
            raise ChannelRefused(f"node {self.name} cannot join: {links.turned_away}")

    async def host(self, name: EndpointName) -> Endpoint:
        """Serve an endpoint here. Waits until the node has joined, or found nobody to join.

        Raises LocalProtocolError if a living node owns it already: ``migrate`` it from there instead; ChannelRefused if
        this node's seeds do not accept it.
        """
        live = self._live
        await self._joined()
        if self._closed:
            raise NodeClosed(f"node {self.name} was closed")
        now = live.engine.now()
        live.core.host(name, now)
        live.engine.touched(now)
        return live.hosting.endpoints[name]

    def on_arrival(self, pattern: str, factory: Factory) -> None:
        """Accept endpoints whose name fits ``pattern`` (as in ``stage-*``) from other nodes.

        When one has arrived, ``factory(endpoint)`` makes its application, with regions and streams in place; messages
        follow when it returns (or, if it is a coroutine function, ends). Without a pattern that fits, an arriving
        endpoint is declined.
        """
        self._arrivals.add(pattern, factory)

    # Handovers

    async def migrate(self, endpoint: EndpointName, *, to: NodeName, timeout_s: float | None = None) -> Handover:
        """Move an endpoint to another node; returns when that serves it. Raises HandoverFailed: the message says
        whether it goes on here.

        After ``timeout_s`` the handover is given up, unless its commit is out; then its outcome is awaited.
        """
        moves = self._live.moves
        return await moves.completed(moves.begin(endpoint, to, hold=False), timeout_s)

    async def prepare(self, endpoint: EndpointName, *, to: NodeName) -> HandoverId:
        """Copy the endpoint's regions to another node ahead of time, while it goes on here; then ``execute`` or
        ``cancel``.
        """
        moves = self._live.moves
        handover = moves.begin(endpoint, to, hold=True)
        await moves.prepared(handover)
        return handover

    async def execute(self, handover: HandoverId, *, timeout_s: float | None = None) -> Handover:
        """Carry out a prepared handover. Raises HandoverFailed."""
        moves = self._live.moves
        moves.execute(handover)
        return await moves.completed(handover, timeout_s)

    def cancel(self, handover: HandoverId, text: str = "cancelled") -> None:
        """Give a handover up: the endpoint goes on here. Raises HandoverFailed if its commit is out already."""
        self._live.moves.cancel(handover, text)

    # Inside

    @property
    def _live(self) -> Assembly:
        if self._assembly is None:
            raise LocalProtocolError(f"node {self.name} has not been started; use async with, or await start()")
        return self._assembly

    async def _hand_over(self, name: EndpointName, turn: int) -> bool:
        """Move the endpoint to the first member that takes it, beginning with another one each turn."""
        members = [one.node for one in self.core.members() if one.state == ALIVE and one.node != self.name]
        for index in range(len(members)):
            try:
                await self.migrate(name, to=members[(turn + index) % len(members)])
            except HandoverFailed:
                if name not in self.endpoints:
                    return False
                continue
            return True
        return False

    def _say_goodbye(self) -> None:
        if self._left:
            return
        self._left = True
        engine = self._live.engine
        now = engine.now()
        self._live.core.leave(now)
        engine.touched(now)

    async def _release(self, cause: str) -> None:
        assembly = self._live
        self._closed = True
        self._stop.set()
        assembly.note("node.stopping", {"cause": cause})
        await assembly.close(_FAREWELL_S)
        await self.control.close()

    def _fail(self, error: Exception) -> None:
        """The node must not go on: what it does would not be in its history."""
        self._failure = error
        self._stop.set()
        for channel in self.channels():
            channel.abort()

    def _bind(self) -> socket.socket:
        address = parse_locator(self._listen)
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(256)
        except OSError as error:
            sock.close()
            raise ListenError(
                error.errno,
                f"node {self.name} cannot listen on {self._listen}: {error.strerror};"
                " give it a free address of this machine",
            ) from error
        sock.setblocking(False)
        return sock

    def _own_locator(self, sock: socket.socket) -> str:
        if self._locator is not None:
            parse_locator(self._locator)
            return self._locator
        host, port = sock.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            raise ListenError(
                f"node {self.name} listens on every address ({self._listen});"
                " say with locator= at which one others reach it"
            )
        return format_locator(host, port)
