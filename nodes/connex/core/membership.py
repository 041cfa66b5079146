"""Which nodes there are, which of them live, and how a node comes and goes."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from connex.core import frames
from connex.core.context import Context
from connex.core.errors import RemoteProtocolError, ResetCause
from connex.core.events import ChannelWanted, PeerChanged
from connex.core.frames import BodyReader, Flag, Frame, FrameType
from connex.core.identity import Life, NodeName, Peer, TrafficClass
from connex.core.memory import remember
from connex.core.routing import Routing
from connex.core.timers import Key

ALIVE, LEAVING, LEFT, DEAD = 1, 2, 3, 4
_JOIN_RETRY = 1_000_000_000
_TICK: Key = ("tick", "", "")
_EXCHANGE: Key = ("exchange", "", "")


class Standing(Enum):
    """What is known of one life of a node."""

    THERE = "there"
    SILENT = "silent"
    """Taken for dead, or never met: it may still live, cut off from here."""
    OVER = "over"
    """It has ended for certain: the node has left, or lives another life."""


class Member(NamedTuple):
    """A node that has taken part, and what is known of it."""

    node: NodeName
    incarnation: int
    locator: str
    state: int


class _Life:
    """A peer that this node has, or had, a channel with."""

    __slots__ = ("heard_at", "peer", "state")

    def __init__(self, peer: Peer, now: int) -> None:
        self.peer = peer
        self.heard_at = now
        self.state = "alive"


class Membership:
    """Members, the lives of peers, joining and leaving.

    Only peers that matter (the other ends of streams and handovers, as ``watched`` says) are watched by heartbeat, so
    that control traffic follows the work and not the number of nodes.
    """

    def __init__(self, context: Context, routing: Routing, watched: Callable[[], set[Life]]) -> None:
        self._context = context
        self._routing = routing
        self._watched = watched
        self.on_lost: Callable[[Peer, ResetCause, str, int], None] = _nobody
        self.on_joined: Callable[[int], None] = _nobody
        self.members: dict[NodeName, Member] = {}
        self._changes = 0
        """How often the members have changed."""
        self._fingerprint: tuple[tuple[int, int], bytes] = ((-1, -1), b"")
        self._lives: dict[NodeName, _Life] = {}
        self._over: dict[Life, None] = {}
        """Lives that were followed by another."""
        self._strangers: dict[Life, int] = {}
        """Lives watched that are not those met, and since when."""
        self._seeds: dict[str, bool] = {}
        """Locators to join at, and whether an attempt has failed since."""
        self.joining = False
        self._ticked_at = 0
        self._watching: set[NodeName] = set()
        context.on_alarm("tick", self._tick)
        context.on_alarm("join", self._join_due)
        context.on_alarm("exchange", self._exchange)

    # Lives

    def peer(self, node: NodeName) -> Peer | None:
        """The life of the node that a channel was last opened with, or this node itself."""
        if node == self._context.me.node:
            return self._context.me
        life = self._lives.get(node)
        return life.peer if life is not None else None

    def state(self, node: NodeName) -> str:
        """alive, suspected, dead or left; empty if no channel was ever opened."""
        life = self._lives.get(node)
        return life.state if life is not None else ""

    def standing(self, life: Life) -> Standing:
        if life.node == self._context.me.node:
            return Standing.THERE if life == self._context.me.life else Standing.OVER
        if life in self._over:
            return Standing.OVER
        known = self._lives.get(life.node)
        if known is None or known.peer.life != life or known.state == "dead":
            return Standing.SILENT
        return Standing.OVER if known.state == "left" else Standing.THERE

    def heard(self, node: NodeName, now: int) -> None:
        life = self._lives.get(node)
        if life is not None:
            life.heard_at = now
            if life.state in ("suspected", "dead"):
                self._change(life, "alive")

    def opened(self, peer: Peer, traffic_class: TrafficClass, now: int) -> None:
        """A channel to this life of the peer is open: an earlier life of it is over."""
        life = self._lives.get(peer.node)
        if life is not None and life.peer.incarnation != peer.incarnation:
            remember(self._over, life.peer.life, None)
            self._lose(life, ResetCause.OWNER_RESTARTED, f"{peer.node} has restarted", now)
            life = None
        self._context.locators[peer.node] = peer.locator
        if life is None:
            life = self._lives[peer.node] = _Life(peer, now)
            self._change(life, "alive")
        else:
            life.heard_at = now
            if life.state in ("suspected", "dead"):
                self._change(life, "alive")
        member = Member(*peer, ALIVE)
        unknown = peer.node not in self.members
        self._set(peer.node, member)
        if traffic_class is TrafficClass.CONTROL:
            self._seeds.pop(peer.locator, None)
            if _EXCHANGE not in self._context.timers:
                self._context.timers.set(_EXCHANGE, now + self._context.config.exchange)
            if unknown:
                self._pass_on(member)
            if self.joining or unknown:
                self._send_join(peer.node, now)
            for endpoint in self._routing.owned.values():
                self._routing.announce(endpoint.binding(self._context.me), [peer.node], now)
        self.watch(now)

    def watch(self, now: int) -> None:
        """See to it that heartbeats run if there is anybody to watch."""
        if _TICK not in self._context.timers:
            self._ticked_at = now
            self._context.timers.set(_TICK, now + self._context.config.heartbeat)

    def _tick(self, key: Key, now: int) -> None:
        config = self._context.config
        stalled = now - self._ticked_at > config.suspect_after
        self._ticked_at = now
        lives = self._watched()
        self._find_strangers(lives, now)
        watched = {life.node for life in lives} - {self._context.me.node, ""}
        fresh, self._watching = watched - self._watching, watched
        for node in sorted(watched):
            life = self._lives.get(node)
            if life is None:
                member = self.members.get(node)
                known = min(one for one in lives if one.node == node)
                peer = Peer(*member[:3]) if member is not None else Peer(*known, self._context.locators.get(node, ""))
                self._lives[node] = _Life(peer, now)
                continue
            if node in fresh:
                # Nobody had asked it to speak before: its silence until now says nothing.
                life.heard_at = max(life.heard_at, now)
            if stalled:
                # It was this node that stood still: what it did not hear says nothing of the others.
                life.heard_at = max(life.heard_at, now - config.heartbeat)
            silence = now - life.heard_at
            if life.state in ("dead", "left"):
                # Something was begun with it since, in the belief that it lives.
                self.on_lost(life.peer, ResetCause.OWNER_DIED, f"{node} is {life.state}", now)
                continue
            if silence >= config.dead_after:
                self._lose(life, ResetCause.OWNER_DIED, f"nothing heard of {node} for {silence // 1_000_000} ms", now)
                self._change(life, "dead")
                continue
            if silence >= config.suspect_after and life.state == "alive":
                self._change(life, "suspected")
            if silence >= config.heartbeat:
                self._context.control(node, FrameType.HEARTBEAT, frames.number(now, 8) + bytes(8))
        if watched or self._strangers:
            self._context.timers.set(_TICK, now + config.heartbeat)

    def _find_strangers(self, watched: set[Life], now: int) -> None:
        """Streams may lead to another life of a node than the one that was met here, told by whoever knew it. It is
        over if it was met before, or if the other one is heard all the while; and dead if neither is heard.
        """
        before, self._strangers = self._strangers, {}
        patience = self._context.config.dead_after
        for life in sorted(watched):
            met = self._lives.get(life.node)
            here = life.node == self._context.me.node
            if life == self._context.me.life or (not here and (met is None or met.peer.life == life)):
                continue
            since = self._strangers[life] = before.get(life, now)
            heard = met is not None and met.state == "alive" and met.heard_at - since >= patience
            if here or life in self._over or heard:
                remember(self._over, life, None)
                self.on_lost(Peer(*life, ""), ResetCause.OWNER_RESTARTED, f"{life.node} has restarted", now)
            elif met is not None and met.state in ("dead", "left") and now - since >= patience:
                self.on_lost(Peer(*life, ""), ResetCause.OWNER_DIED, f"{life.node} is {met.state}", now)

    def receive_heartbeat(self, node: NodeName, frame: Frame) -> None:
        if not frame.flags & Flag.REPLY:
            body = BodyReader(frame.payload)
            sent_at = body.take(8)
            self._context.control(node, FrameType.HEARTBEAT, bytes(8) + sent_at, flags=Flag.REPLY)

    def _lose(self, life: _Life, cause: ResetCause, text: str, now: int) -> None:
        node = life.peer.node
        self._context.settle_all(node)
        self._context.scheduler.forget(node)
        member = self.members.get(node)
        if member is not None and member.incarnation == life.peer.incarnation and member.state == ALIVE:
            self._set(node, member._replace(state=DEAD))
        self.on_lost(life.peer, cause, text, now)

    def _change(self, life: _Life, state: str) -> None:
        life.state = state
        self._context.emit(PeerChanged(life.peer, state))

    # Joining and leaving

    def join(self, locator: str, now: int) -> None:
        """Take part: exchange bindings with the node there, or find out that nobody is there."""
        if locator == self._context.me.locator:
            return
        self.joining = True
        self._seeds[locator] = False
        self._context.emit(ChannelWanted("", locator, TrafficClass.CONTROL))
        self._context.timers.set(("join", "", ""), now + self._context.config.dead_after)

    def seed_failed(self, locator: str, now: int) -> None:
        """Nobody answers at that locator; it is tried again until somebody does."""
        if locator not in self._seeds:
            return
        self._seeds[locator] = True
        self._context.timers.set(("join", locator, ""), now + _JOIN_RETRY)
        if self.joining and all(self._seeds.values()):
            self._finish_joining(now)

    def _join_due(self, key: Key, now: int) -> None:
        locator = key[1]
        if not locator:
            self._finish_joining(now)
        elif locator in self._seeds:
            self._context.emit(ChannelWanted("", str(locator), TrafficClass.CONTROL))

    def _finish_joining(self, now: int) -> None:
        if self.joining:
            self.joining = False
            self._context.timers.clear(("join", "", ""))
            self.on_joined(now)

    def _send_join(self, node: NodeName, now: int) -> None:
        def send(_: int) -> None:
            body = _member(Member(*self._context.me, ALIVE)) + self._digest()
            self._context.control(node, FrameType.JOIN, body)

        self._context.repeat("join", "", node, send, now)

    def _digest(self) -> bytes:
        """A fingerprint of what this node knows: equal for two nodes that need not tell each other anything.

        Whether somebody is taken for dead is each node's own opinion, and no part of it.
        """
        version = (self._changes, self._routing.table.changes)
        if self._fingerprint[0] != version:
            known = [Member(*self._context.me, ALIVE), *self.members.values()]
            facts = [_member(one._replace(state=LEFT if one.state == LEFT else ALIVE)) for one in known]
            facts += [frames.binding(binding) for binding in self._routing.table.all()]
            self._fingerprint = version, blake2b(b"".join(sorted(facts)), digest_size=_DIGEST).digest()
        return self._fingerprint[1]

    def receive_join(self, node: NodeName, frame: Frame, now: int) -> None:
        body = BodyReader(frame.payload)
        if not frame.flags & Flag.REPLY:
            member, digest = _read_member(body), body.take(_DIGEST)
            body.finish()
            if member.node != node:
                raise RemoteProtocolError(f"JOIN of {member.node!r} from {node!r}")
            self._note(member)
            self._tell_all(node, digest)
            return
        members = [_read_member(body) for _ in range(body.number(2))]
        bindings = [body.binding() for _ in range(body.number(2))]
        body.finish()
        self._context.settle("join", "", node)
        for member in members:
            self._note(member)
        for binding in bindings:
            self._routing.learn(binding, "join", now)
        if not frame.message:
            self._finish_joining(now)

    def _tell_all(self, node: NodeName, digest: bytes) -> None:
        """Answer with all that is known here, in pages; with nothing if the other knows the same."""
        known = [Member(*self._context.me, ALIVE), *self.members.values()]
        bindings = self._routing.table.all()  # those that say of an endpoint that it is gone, too
        if digest == self._digest():
            known, bindings = [], []
        pages = max(1, -(-max(len(known), len(bindings)) // _PER_REPLY))
        for page in range(pages):
            part = slice(page * _PER_REPLY, (page + 1) * _PER_REPLY)
            reply = _list([_member(one) for one in known[part]]) + _list(
                [frames.binding(one) for one in bindings[part]]
            )
            self._context.control(node, FrameType.JOIN, reply, flags=Flag.REPLY, message=pages - 1 - page)

    def _pass_on(self, member: Member) -> None:
        """Tell those there is a channel to of a new member; whoever misses it learns of it in the next exchange."""
        body = _list([_member(member)]) + _list([])
        for node in self._context.scheduler.open_lanes():
            if node != member.node:
                self._context.control(node, FrameType.JOIN, body, flags=Flag.REPLY, message=1)

    def _exchange(self, key: Key, now: int) -> None:
        """Anti-entropy: compare members and bindings with one neighbour drawn at random."""
        self._context.timers.set(key, now + self._context.config.exchange)
        neighbours = self._context.scheduler.open_lanes()
        if neighbours:
            self._send_join(neighbours[self._context.draw(32) % len(neighbours)], now)

    def _set(self, node: NodeName, member: Member) -> None:
        if self.members.get(node) != member:
            self.members[node] = member
            self._changes += 1

    def _note(self, member: Member) -> None:
        """Keep what is newer: another life, or a later state of the same one."""
        known = self.members.get(member.node)
        life = self._lives.get(member.node)
        if member.node == self._context.me.node:
            return
        if life is not None and member.incarnation != life.peer.incarnation and life.state == "alive":
            return
        if known is None and len(self.members) >= self._context.config.members:
            return
        if known is not None and known.incarnation == member.incarnation and known.state >= member.state:
            return
        self._set(member.node, member)
        if member.state == ALIVE:
            self._context.locators[member.node] = member.locator

    def leave(self, now: int) -> None:
        """Say goodbye to everybody there is a channel to."""
        body = _member(Member(*self._context.me, LEFT))
        for node in self._context.scheduler.open_lanes():
            self._context.control(node, FrameType.LEAVE, body)

    def receive_leave(self, node: NodeName, frame: Frame, now: int) -> None:
        if frame.flags & Flag.REPLY:
            return
        body = BodyReader(frame.payload)
        member = _read_member(body)
        body.finish()
        life = self._lives.get(node)
        if member.node != node:
            raise RemoteProtocolError(f"LEAVE of {member.node!r} from {node!r}")
        if life is None or member.incarnation != life.peer.incarnation:
            return  # a late word of an earlier life
        self._context.control(node, FrameType.LEAVE, flags=Flag.REPLY)
        self._set(node, member._replace(state=LEFT))
        self._change(life, "left")
        self.on_lost(life.peer, ResetCause.NODE_LEFT, f"{node} has left", now)


_PER_REPLY = 32
_DIGEST = 8


def _member(member: Member) -> bytes:
    return (
        frames.text(member.node)
        + frames.number(member.incarnation, 8)
        + frames.text(member.locator)
        + bytes((member.state,))
    )


def _read_member(body: BodyReader) -> Member:
    member = Member(body.text(), body.number(8), body.text(), body.number(1))
    if not member.node or not ALIVE <= member.state <= DEAD:
        raise RemoteProtocolError(f"member {member.node!r} in state {member.state}")
    return member


def _list(items: list[bytes]) -> bytes:
    return frames.number(len(items), 2) + b"".join(items)


def _nobody(*_: object) -> None:
    """Until somebody listens."""
