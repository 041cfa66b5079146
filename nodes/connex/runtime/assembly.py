"""The parts of a running node, and which of them each event of the core is for."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from connex.core import events
from connex.core.config import Config
from connex.core.node import Node as Core
from connex.runtime.engine import Engine
from connex.runtime.handshake import Credentials
from connex.runtime.hosting import Hosting
from connex.runtime.journal import Journal
from connex.runtime.links import Links
from connex.runtime.moves import Arrivals, Moves
from connex.runtime.records import record_of


class Assembly:
    """One life of a node: core, engine, journal, channels, endpoints and handovers, connected to each other."""

    def __init__(
        self, credentials: Credentials, config: Config, journal: Path | None, arrivals: Arrivals, poll_ns: int = 0
    ) -> None:
        me = credentials.me
        self.journal = Journal(me, journal)
        self.core = Core(me, config, secrets.randbits, accepts=lambda endpoint: arrivals.refusal(me.node, endpoint))
        self.engine = Engine(self.core, config, self.journal, asyncio.get_running_loop(), poll_ns)
        self.links = Links(self.engine, credentials, config)
        self.hosting = Hosting(self.engine)
        self.moves = Moves(self.engine, self.hosting, arrivals)
        self._inbound = self.hosting.streams.inbound
        self.engine.on_event = self._event
        self.engine.on_write = self.links.write
        self.links.on_refused = self._refused
        self._handlers: dict[type[events.Event], Callable[[Any], object]] = {
            events.ChannelWanted: self.links.want,
            events.EndpointHosted: self._hosted,
            events.FreezeRequested: self.moves.freeze,
            events.EndpointThawed: self.moves.thaw,
            events.EndpointReleased: self.hosting.released,
            events.EndpointResumed: self.hosting.resumed,
            events.RegionReceived: self.moves.region_received,
            events.HandoverChanged: self.moves.changed,
            events.RegionsWanted: self.moves.regions_wanted,
            events.StreamOpened: self.hosting.opened,
            events.StreamMoved: self.hosting.moved,
            events.SendSpace: self._space,
            events.StreamClosed: self.hosting.closed,
            events.StreamWasReset: self.hosting.reset,
            events.PeerChanged: self._peer_changed,
            events.BindingLearned: _nothing,
            events.FenceChanged: _nothing,
            events.FrameRefused: _nothing,
        }

    def note(self, event: str, fields: dict[str, Any]) -> None:
        """Put a record into the journal, if there is one, and write it."""
        if self.journal.active:
            now = self.engine.now()
            self.journal.record(now, event, fields)
            self.engine.touched(now)

    async def close(self, patience_s: float) -> None:
        """Let go of everything; what was written has ``patience_s`` to leave."""
        await self.moves.close()
        self.hosting.close()
        await self.links.close(patience_s)
        self.engine.close()
        self.journal.close()

    def _event(self, event: events.Event) -> None:
        kind = type(event)
        if kind is events.MessageReady:
            stream = self._inbound.get(event.stream)  # type: ignore[union-attr]
            if stream is not None:
                stream.endpoint.message_ready(stream)
            return
        if self.journal.active:
            record = record_of(event, self.hosting.epoch_of)
            if record is not None:
                self.journal.record(self.engine.now(), *record)
        self._handlers[kind](event)

    def _hosted(self, event: events.EndpointHosted) -> None:
        endpoint = self.hosting.hosted(event)
        if event.cause == "handover":
            self.moves.hosted(endpoint)

    def _space(self, event: events.SendSpace) -> None:
        stream = self.hosting.streams.outbound.get(event.stream)
        if stream is not None:
            stream.has_space()
        else:
            self.moves.space(event)

    def _peer_changed(self, event: events.PeerChanged) -> None:
        if event.state == "dead":
            self.links.drop_peer(event.peer.node)

    def _refused(self, who: str, text: str) -> None:
        self.note("channel.refused", {"peer": who, "text": text})


def _nothing(_: object) -> None:
    """History only."""
