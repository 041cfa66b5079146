"""All channels of a node: who is connected in which class, opening what the core wants, accepting what others open."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable

from connex.core.config import Config
from connex.core.errors import ChannelRefused
from connex.core.events import ChannelWanted
from connex.core.identity import NodeName, Peer, TrafficClass
from connex.core.scheduler import Outgoing
from connex.runtime.channel import Channel
from connex.runtime.engine import Engine
from connex.runtime.handshake import Acceptor, Code, Credentials, Initiator, Refusal
from connex.runtime.locator import LocatorError, parse_locator
from connex.runtime.metrics import Traffic

_log = logging.getLogger("connex")

HANDSHAKE_DEADLINE_S = 2.0
"""A connection that has not proven itself by then is closed."""
CONNECT_DEADLINE_S = 0.7
"""An attempt to connect is given up after this time, and a new one made: sooner than the kernel repeats a lost SYN."""
HALF_OPEN_LIMIT = 64
"""Connections accepted and not proven yet; more are refused."""
_BACKOFF_S = 0.05
_BACKOFF_MOST_S = 1.0
_STEADY_S = 1.0
"""A channel that lived this long counts as a success: the next attempt is not delayed. After a shorter life it waits,
but never long, because somebody is there.
"""
_UNSTEADY = 2

_Key = tuple[NodeName, TrafficClass]
_Place = tuple[str, TrafficClass]


class _Attempt:
    """Opening one channel, from the core's wish to its success or failure."""

    def __init__(self, event: ChannelWanted) -> None:
        self.key: _Place = (event.locator, event.traffic_class)
        self.events = [event]
        """All wishes that it serves: a seed and a named node may be reached at one place."""
        self.task: asyncio.Task[None] | None = None


class Links:
    """The channels of one node."""

    def __init__(self, engine: Engine, credentials: Credentials, config: Config) -> None:
        self.engine = engine
        self.config = config
        self.opened_channels = 0
        self.failed_attempts = 0
        self.refused_channels = 0
        self.turned_away = ""
        """Why another node does not want this one, if one said so."""
        self.traffic = Traffic()
        self.on_refused: Callable[[str, str], None] = _nobody
        """Called with whom and why when a handshake fails or a peer breaks the protocol."""
        self._journal = engine.journal
        self._credentials = credentials
        self._channels: dict[_Key, list[Channel]] = {}
        self._all: set[Channel] = set()
        self._half_open: dict[Channel, asyncio.TimerHandle] = {}
        self._attempts: dict[_Place, _Attempt] = {}
        self._failures: dict[_Place, int] = {}
        """How often in a row a channel to that place could not be opened, or did not last."""
        self._opened_at: dict[Channel, float] = {}
        self._server: asyncio.Server | None = None
        self._closing = False
        self._empty: asyncio.Event = asyncio.Event()

    # Listening

    async def listen(self, sock: socket.socket) -> None:
        """Accept connections on a bound socket from now on."""
        self._server = await self.engine.loop.create_server(
            lambda: Channel(self, Acceptor(self._credentials, secrets.token_bytes(16))), sock=sock, backlog=256
        )

    # Opening

    def want(self, event: ChannelWanted) -> None:
        """Open a channel that the core asks for; it hears of the outcome."""
        key = (event.locator, event.traffic_class)
        if self._closing:
            return
        attempt = self._attempts.get(key)
        if attempt is not None:
            attempt.events.append(event)
            return
        attempt = self._attempts[key] = _Attempt(event)
        attempt.task = self.engine.loop.create_task(self._dial(attempt))

    async def _dial(self, attempt: _Attempt) -> None:
        failures = self._failures.get(attempt.key, 0)
        if failures:
            await asyncio.sleep(min(_BACKOFF_S * 2 ** (failures - 1), _BACKOFF_MOST_S))
        locator, traffic_class = attempt.key
        channel = Channel(self, Initiator(self._credentials, traffic_class, secrets.token_bytes(16)))
        channel.attempt = attempt
        try:
            address = parse_locator(locator)
            async with asyncio.timeout(CONNECT_DEADLINE_S):
                await self.engine.loop.create_connection(lambda: channel, address.host, address.port)
        except (OSError, TimeoutError, LocatorError) as error:
            self._failed(attempt, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)

    def _failed(self, attempt: _Attempt, text: str) -> None:
        self._attempts.pop(attempt.key, None)
        if self._closing:
            return
        self.failed_attempts += 1
        self._failures[attempt.key] = min(self._failures.get(attempt.key, 0) + 1, 10)
        self._tell_failure(attempt.events, text)

    def _tell_failure(self, failed: list[ChannelWanted], text: str) -> None:
        for event in failed:
            _log.debug("no %s channel to %s: %s", event.traffic_class.name, event.node or event.locator, text)
            now = self.engine.now()
            self.engine.core.channel_failed(event.node, event.locator, event.traffic_class, now)
            self.engine.touched(now)

    # What channels tell (channel.Owner)

    def connected(self, channel: Channel) -> None:
        self._watch(channel)
        waiting = len(self._half_open)
        if channel.initiated or waiting <= HALF_OPEN_LIMIT:
            return
        if waiting > 2 * HALF_OPEN_LIMIT:
            self.refused_channels += 1
            channel.abort()
            return
        raise Refusal(
            Code.LIMIT,
            f"{self._credentials.me.node} has {HALF_OPEN_LIMIT} connections that have not proven themselves;"
            " try again later",
        )

    def _watch(self, channel: Channel) -> None:
        self._all.add(channel)
        self._half_open[channel] = self.engine.loop.call_later(HANDSHAKE_DEADLINE_S, self._too_slow, channel)

    def _too_slow(self, channel: Channel) -> None:
        self._half_open.pop(channel, None)
        if not channel.over:
            self.refused(channel, f"no complete handshake after {HANDSHAKE_DEADLINE_S:g} s; expected HELLO and PROOF")
        channel.abort()

    def opened(self, channel: Channel) -> None:
        peer = channel.peer
        assert peer is not None
        disappointed = self._match(channel, peer)
        timer = self._half_open.pop(channel, None)
        if timer is not None:
            timer.cancel()
        self.opened_channels += 1
        self._opened_at[channel] = self.engine.loop.time()
        now = self.engine.now()
        channels = self._channels.setdefault((peer.node, channel.traffic_class), [])
        superseded = [one for one in channels if self._supersedes(channel, one)]
        channels.append(channel)
        channels.sort(key=self._initiator)
        core = self.engine.core
        core.channel_opened(peer, channel.traffic_class, now)
        core.channel_writable(peer.node, channel.traffic_class, not channels[0].paused, now)
        self.engine.touched(now)
        for one in superseded:
            one.abort()
        self._drop_former_lives(peer)
        self._tell_failure(disappointed, f"{peer.node} answers there")

    def _match(self, channel: Channel, peer: Peer) -> list[ChannelWanted]:
        """End the attempt that led here; returns what it was meant for and does not serve. Raises ChannelRefused if
        that is all.
        """
        attempt = channel.attempt
        if attempt is None:
            return []
        disappointed = [event for event in attempt.events if event.node not in ("", peer.node)]
        if len(disappointed) == len(attempt.events):
            raise ChannelRefused(f"at {peer.locator} answers {peer.node}, expected {disappointed[0].node}")
        self._attempts.pop(attempt.key, None)
        return disappointed

    def _initiator(self, channel: Channel) -> NodeName:
        """The node that opened the channel: both sides send on the one whose opener sorts first."""
        peer = channel.peer
        assert peer is not None
        return self._credentials.me.node if channel.initiated else peer.node

    @staticmethod
    def _supersedes(channel: Channel, other: Channel) -> bool:
        """Whoever opens a second channel of a class has given the first one up."""
        return channel.initiated == other.initiated and channel.peer == other.peer

    def _drop_former_lives(self, peer: Peer) -> None:
        for channel in list(self._all):
            former = channel.peer
            if former is not None and former.node == peer.node and former.incarnation != peer.incarnation:
                channel.abort()

    def writable(self, channel: Channel, writable: bool) -> None:
        peer = channel.peer
        assert peer is not None
        if self._active(peer.node, channel.traffic_class) is not channel:
            return
        now = self.engine.now()
        self.engine.core.channel_writable(peer.node, channel.traffic_class, writable, now)
        if writable:
            self.engine.touched(now)

    def refused(self, channel: Channel, text: str, final: bool = False) -> None:
        """A handshake failed, or a peer broke the protocol; ``final``: it would fail the same way again."""
        self.refused_channels += 1
        if final and channel.initiated:
            self.turned_away = text
        who = channel.peer.node if channel.peer is not None else channel.address
        _log.warning("channel with %s: %s", who, text)
        self.on_refused(who, text)

    def closed(self, channel: Channel, error: Exception | None) -> None:
        self._all.discard(channel)
        self.traffic.gone(channel)
        timer = self._half_open.pop(channel, None)
        if timer is not None:
            timer.cancel()
        opened_at = self._opened_at.pop(channel, None)
        attempt = channel.attempt
        if attempt is not None:
            if opened_at is None:
                self._failed(attempt, "the handshake did not succeed")
            elif self.engine.loop.time() - opened_at >= _STEADY_S:
                self._failures.pop(attempt.key, None)
            else:
                self._failures[attempt.key] = min(self._failures.get(attempt.key, 0) + 1, _UNSTEADY)
        if opened_at is not None:
            self._forget(channel)
        if not self._all:
            self._empty.set()

    def _forget(self, channel: Channel) -> None:
        peer = channel.peer
        assert peer is not None
        key = (peer.node, channel.traffic_class)
        channels = self._channels[key]
        channels.remove(channel)
        if not channels:
            del self._channels[key]
        if self._closing:
            return
        now = self.engine.now()
        core = self.engine.core
        core.channel_closed(peer.node, channel.traffic_class, now)
        if channels:
            core.channel_writable(peer.node, channel.traffic_class, not channels[0].paused, now)
        self.engine.touched(now)

    # Writing

    def write(self, outgoing: Outgoing) -> None:
        """Write the journal, then put frames on their channel; without one they are lost, and the core recovers."""
        if self._journal.pending:
            self.engine.flush()
        node, traffic_class, buffers = outgoing
        channels = self._channels.get((node, traffic_class))
        if channels:
            channels[0].write(buffers)

    def _active(self, node: NodeName, traffic_class: TrafficClass) -> Channel | None:
        channels = self._channels.get((node, traffic_class))
        return channels[0] if channels else None

    def drop_peer(self, node: NodeName) -> None:
        """The peer is taken for dead: its connections would only hold back a new beginning."""
        for (name, _), channels in list(self._channels.items()):
            if name == node:
                for channel in list(channels):
                    channel.abort()

    def channels(self) -> list[Channel]:
        """All that are open."""
        return [channel for channels in self._channels.values() for channel in channels]

    # Closing

    async def close(self, patience_s: float) -> None:
        """Stop listening and connecting, let what was written leave, and close every connection; after ``patience_s``
        by force.
        """
        self._closing = True
        dials = [attempt.task for attempt in self._attempts.values() if attempt.task is not None]
        for task in dials:
            task.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for channel in list(self._all):
            if channel.peer is None:
                channel.abort()
            else:
                channel.finish()
        if self._all:
            try:
                await asyncio.wait_for(self._empty.wait(), patience_s)
            except TimeoutError:
                for channel in list(self._all):
                    channel.abort()
                await asyncio.wait_for(self._empty.wait(), patience_s)
        if self._server is not None:
            await self._server.wait_closed()


def _nobody(*_: object) -> None:
    """Until somebody listens."""
