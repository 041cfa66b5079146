"""The core's face: one node of Connex as a pure function of frames, commands and time.

Four kinds of method and no fifth: getters, handlers, commands and polls. After every handler or command drain the
polls completely (``connex.core.drain``) before the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connex.core.arrival import Arrivals
from connex.core.binding import Binding
from connex.core.config import Config
from connex.core.context import Context
from connex.core.departure import Departures
from connex.core.doubt import Doubts
from connex.core.endings import Endings
from connex.core.errors import LocalProtocolError, RemoteProtocolError, ResetCause, UnknownEndpoint
from connex.core.events import Event
from connex.core.express import Express
from connex.core.fence import Fences
from connex.core.flow import Flow, Message
from connex.core.frames import Buffer, Flag, Frame, FrameType
from connex.core.handover import Handover, HandoverTable
from connex.core.handovers import Handovers
from connex.core.identity import EndpointName, HandoverId, Life, NodeName, Peer, StreamId, TrafficClass
from connex.core.membership import Member, Membership
from connex.core.moving import Moving
from connex.core.opening import Opening
from connex.core.refusals import Refusals
from connex.core.routing import Routing
from connex.core.scheduler import Outgoing
from connex.core.stream import Allocate
from connex.core.table import StreamTable
from connex.core.witness import Witnesses

_DATA = FrameType.DATA
_ACK = FrameType.ACK
_HANDOVER_TYPES = range(FrameType.PREPARE, FrameType.UNKNOWN + 1)


class Node:
    """One node. ``draw(bits)`` gives random numbers; ``accepts(endpoint)`` says why an arriving endpoint is declined,
    or None.
    """

    def __init__(
        self,
        me: Peer,
        config: Config,
        draw: Callable[[int], int],
        *,
        accepts: Callable[[EndpointName], str | None],
    ) -> None:
        self._check_name(me.node, config)
        self._config = config
        self._context = Context(me, config, draw)
        self._routing = Routing(self._context)
        context, routing = self._context, self._routing
        self._table = table = StreamTable(context, routing)
        refusals = Refusals(context, routing, table)
        self._endings = endings = Endings(context, routing, table, refusals, self._life)
        self._opening = opening = Opening(context, routing, table, refusals, endings)
        self._express = Express(context, table)
        self._flow = flow = Flow(context, routing, table, refusals, endings, opening, self._life)
        moving = Moving(context, routing, table, opening)
        self._membership = membership = Membership(context, routing, self._watched)
        self._witnesses = witnesses = Witnesses(context, routing, moving, endings, membership)
        self._handover_table = handovers = HandoverTable(context, moving)
        self._fences = fences = Fences(context, routing, table, endings, handovers, self._life)
        source = Departures(context, routing, flow, opening, moving, endings, handovers, self._life)
        target = Arrivals(context, routing, flow, moving, endings, handovers, witnesses, self._life, accepts)
        self._doubts = doubts = Doubts(context, routing, handovers, source, fences, membership)
        self._handovers = Handovers(context, routing, handovers, source, target, doubts, self._life)
        self._flow.on_addressed = witnesses.addressed
        self._routing.on_learned = self._learned
        self._routing.on_seen = witnesses.seen
        self._routing.on_broken = witnesses.broken
        self._routing.on_fenced = self._fenced
        self._membership.on_lost = self._lost
        self._membership.on_joined = self._joined
        self.events = self._context.events
        """What ``next_event`` takes from."""
        self._waiting: list[EndpointName] = []
        self._left = False
        self._dispatch: dict[int, Callable[[NodeName, Frame, int], None]] = {
            FrameType.HEARTBEAT: lambda node, frame, now: self._membership.receive_heartbeat(node, frame),
            FrameType.JOIN: self._membership.receive_join,
            FrameType.LEAVE: self._membership.receive_leave,
            FrameType.OPEN: self._opening.receive_open,
            FrameType.RESET: self._endings.receive_reset,
            FrameType.STALE: self._opening.receive_stale,
            FrameType.ANNOUNCE: self._routing.receive_announce,
            FrameType.RESOLVE: self._routing.receive_resolve,
            FrameType.FENCE: self._receive_fence,
            **dict.fromkeys(_HANDOVER_TYPES, self._handovers.receive),
        }

    # Getters

    @property
    def me(self) -> Peer:
        return self._context.me

    @property
    def joining(self) -> bool:
        return self._membership.joining

    def binding(self, endpoint: EndpointName) -> Binding | None:
        """The newest binding known of the endpoint."""
        return self._routing.table.get(endpoint)

    def owned(self) -> list[Binding]:
        return [endpoint.binding(self.me) for endpoint in self._routing.owned.values()]

    def is_frozen(self, endpoint: EndpointName) -> bool:
        hosted = self._routing.owned.get(endpoint)
        return hosted is not None and hosted.frozen

    def members(self) -> list[Member]:
        return list(self._membership.members.values())

    def peer_state(self, node: NodeName) -> str:
        return self._membership.state(node)

    def handovers(self) -> list[Handover]:
        return list(self._handover_table.all.values())

    def streams(self) -> list[dict[str, Any]]:
        """What every stream looks like from here, for people and metrics."""
        result: list[dict[str, Any]] = []
        for out in self._table.outbound.values():
            result.append(
                {
                    "stream": out.route.stream,
                    "side": "sender",
                    "from": out.route.sender,
                    "to": out.route.receiver,
                    "class": out.route.traffic_class.name,
                    "label": out.route.label,
                    "peer": out.node,
                    "peer_epoch": out.peer_epoch,
                    "open": out.opened,
                    "messages": out.send.next_message,
                    "bytes": out.send.next_offset,
                    "acknowledged": out.send.acknowledged_offset,
                    "limit": out.send.limit,
                }
            )
        for into in self._table.inbound.values():
            result.append(
                {
                    "stream": into.route.stream,
                    "side": "receiver",
                    "from": into.route.sender,
                    "to": into.route.receiver,
                    "class": into.route.traffic_class.name,
                    "label": into.route.label,
                    "peer": into.node,
                    "peer_epoch": into.peer_epoch,
                    "open": True,
                    "messages": into.receive.message,
                    "bytes": into.receive.offset,
                    "received": into.receive.received,
                    "finished": into.receive.finished,
                    "limit": into.credit.limit,
                }
            )
        return result

    def can_send(self, stream: StreamId, size: int) -> bool:
        """Whether ``size`` bytes may be sent now; if not, SendSpace follows. Raises LocalProtocolError if the stream
        is over.
        """
        return self._flow.can_send(stream, size)

    def written(self, stream: StreamId) -> int:
        """Bytes handed to ``send`` so far on a stream that leaves from here, on all nodes that its sender was on."""
        return self._table.own(stream).send.next_offset

    def placement(self, node: NodeName, header: Frame, length: int) -> memoryview | None:
        """Where the payload of this DATA frame may be received directly; then pass that very view as
        ``frame.payload``.
        """
        return self._flow.place(node, header, length)

    # Handlers

    def channel_opened(self, peer: Peer, traffic_class: TrafficClass, now: int) -> None:
        self._context.scheduler.opened(peer.node, traffic_class)
        self._membership.opened(peer, traffic_class, now)

    def channel_closed(self, node: NodeName, traffic_class: TrafficClass, now: int) -> None:
        """A channel broke: what was in flight on it may be lost."""
        self._context.scheduler.closed(node, traffic_class)
        self._flow.channel_lost(node, traffic_class, now)
        if self._context.scheduler.needed(node, traffic_class):
            self._context.scheduler.want(node, traffic_class)

    def channel_failed(self, node: NodeName, locator: str, traffic_class: TrafficClass, now: int) -> None:
        """A channel that was wanted could not be opened; it is asked for again when something waits for it."""
        if node:
            self._context.channel_failed(node, traffic_class, now)
        self._membership.seed_failed(locator, now)

    def channel_writable(self, node: NodeName, traffic_class: TrafficClass, writable: bool, now: int) -> None:
        self._context.scheduler.writable(node, traffic_class, writable)

    def receive_frame(self, node: NodeName, frame: Frame, now: int) -> None:
        """Take a frame that arrived on a channel with ``node``. Raises RemoteProtocolError if the channel should be
        ended.
        """
        self._membership.heard(node, now)
        kind = frame.type
        if kind == _DATA:
            self._flow.receive_data(node, frame, now)
        elif kind == _ACK:
            self._flow.receive_ack(node, frame, now)
        else:
            handler = self._dispatch.get(kind)
            if handler is None:
                raise RemoteProtocolError(f"frame of type {kind} on an open channel")
            handler(node, frame, now)
            if kind != FrameType.HEARTBEAT:
                # Streams, handovers and promises come with such frames, and who is at their other ends is watched.
                self._membership.watch(now)

    def receive_message(self, node: NodeName, frame: Frame, now: int) -> bytes | None:
        """The short way for a DATA frame that is the next message of its stream as a whole, with none waiting before
        it: its payload, delivered by this call. None if it is not; then nothing has changed, and ``receive_frame``
        takes it.
        """
        payload = self._express.receive(node, frame, now)
        if payload is not None:
            self._membership.heard(node, now)
        return payload

    def handle_timer(self, now: int) -> None:
        """Do what is due. Call it at ``next_deadline()``; later is allowed."""
        self._context.handle_timer(now)

    # Commands

    def join(self, locator: str, now: int) -> None:
        """Take part in the cluster of the node at that locator. ``host`` waits until that has succeeded or nobody was
        found.
        """
        self._membership.join(locator, now)

    def host(self, endpoint: EndpointName, now: int) -> None:
        """Serve an endpoint here; EndpointHosted says when. Raises LocalProtocolError if a living node is known to
        own it.
        """
        self._check_name(endpoint, self._config)
        if self._left:
            raise LocalProtocolError(f"host {endpoint}: this node has left")
        if endpoint in self._routing.owned or endpoint in self._waiting:
            raise LocalProtocolError(f"host {endpoint}: it is hosted here already")
        if self._membership.joining:
            self._waiting.append(endpoint)
            return
        known = self.binding(endpoint)
        if known is not None and not known.gone and self._lives(known):
            raise LocalProtocolError(
                f"host {endpoint}: {known.node} owns it under epoch {known.epoch}; move it from there instead"
            )
        hosted = self._routing.own(endpoint, known.epoch + 1 if known is not None else 1, "host", now)
        self._routing.announce(hosted.binding(self.me), self._context.scheduler.open_lanes(), now)

    def end(self, endpoint: EndpointName, now: int) -> None:
        """The endpoint exists no longer: its streams are reset with that cause."""
        hosted = self._hosted(endpoint)
        if hosted.handover is not None:
            self._handovers.source.cancel(hosted.handover, "the endpoint ends", now)
        self._endings.end_all(hosted, ResetCause.ENDPOINT_ENDED, f"{endpoint} has ended", now)
        self._routing.disown(hosted, "ended")
        gone = Binding(endpoint, hosted.epoch, "", 0, "")
        self._routing.table.learn(gone)
        self._routing.announce(gone, self._context.scheduler.open_lanes(), now)

    def leave(self, now: int) -> None:
        """End what is still hosted here and say goodbye. Hand endpoints over before, so that nothing is left to end."""
        for endpoint in list(self._routing.owned):
            if not self._handovers.in_doubt(endpoint):
                self.end(endpoint, now)
        self._left = True
        self._membership.leave(now)

    def open_stream(
        self, sender: EndpointName, receiver: EndpointName, traffic_class: TrafficClass, label: str, now: int
    ) -> StreamId:
        """Open a stream from a hosted endpoint. Messages may be sent at once; StreamOpened says when the receiver has
        accepted.
        """
        self._check_name(receiver, self._config)
        if traffic_class is TrafficClass.CONTROL:
            raise LocalProtocolError("open a stream in class CONTROL: that class is the protocol's own")
        stream = self._opening.open(self._hosted(sender), receiver, traffic_class, label, now)
        self._membership.watch(now)
        return stream

    def send(self, stream: StreamId, payload: Buffer, now: int) -> int:
        """Send one message; returns its number. The buffer must not change until it has been acknowledged."""
        return self._flow.write(stream, payload, now)

    def try_send(self, stream: StreamId, payload: Buffer, now: int) -> int | None:
        """``send`` if ``can_send``, else None: in one step, because most messages go this way."""
        number = self._express.send(stream, payload, now)
        return number if number >= 0 else self._flow.try_write(stream, payload, now)

    def close(self, stream: StreamId, now: int) -> None:
        """No message follows; StreamClosed says when all have been delivered."""
        self._flow.finish(stream, now)

    def reset(self, stream: StreamId, text: str, now: int) -> None:
        """Give the stream up, on both sides, with the cause ``cancelled``."""
        self._endings.reset(stream, ResetCause.CANCELLED, text, now)

    def consume(self, stream: StreamId, now: int) -> Message | None:
        """Take the next complete message, if there is one; taking it is its delivery."""
        return self._flow.take(stream, now)

    def set_allocator(self, stream: StreamId, allocate: Allocate) -> None:
        """Who provides the buffers for messages of an inbound stream that arrive in more than one frame."""
        into = self._table.inbound.get(stream)
        if into is None:
            raise LocalProtocolError(f"stream {stream:016x} does not arrive here")
        into.receive.allocate = allocate

    def begin_handover(
        self, endpoint: EndpointName, target: NodeName, state_bytes: int, hold: bool, now: int
    ) -> HandoverId:
        """Begin to move an endpoint; with ``hold`` only its preparation and pre-copy, until ``execute`` or
        ``cancel``.
        """
        hosted = self._hosted(endpoint)
        peer = self._life(target)
        member = self._membership.members.get(target)
        if peer is None and member is not None:
            peer = Peer(*member[:3])
        if peer is None:
            raise LocalProtocolError(
                f"move {endpoint} to {target}: no such node is known;"
                f" known are {', '.join(sorted(self._membership.members)) or 'none'}"
            )
        if self._membership.state(target) in ("dead", "left"):
            raise LocalProtocolError(f"move {endpoint} to {target}: that node is {self._membership.state(target)}")
        handover = self._handovers.source.begin(hosted, peer, state_bytes, hold, now)
        self._membership.watch(now)
        return handover

    def execute(self, handover: HandoverId, now: int) -> None:
        self._handovers.source.execute(handover, now)

    def cancel(self, handover: HandoverId, text: str, now: int) -> None:
        """Abort a handover before its commit. Raises LocalProtocolError afterwards."""
        self._handovers.source.cancel(handover, text, now)

    def send_region(self, handover: HandoverId, name: str, size: int, offset: int, data: Buffer, now: int) -> None:
        """Hand over bytes of a state region for which RegionsWanted or FreezeRequested asked."""
        self._handovers.source.send_region(handover, name, size, offset, data, now)

    def precopied(self, handover: HandoverId, dirty: int, now: int) -> None:
        """All that RegionsWanted asked for is handed over; ``dirty`` bytes have changed since."""
        self._handovers.source.precopied(handover, dirty, now)

    def decline(self, handover: HandoverId, text: str) -> None:
        """Refuse a handover that arrives here and is not committed: what RegionReceived brought cannot be held."""
        self._handovers.target.decline(handover, text)

    def frozen(self, handover: HandoverId, now: int) -> None:
        """The application of the endpoint has stopped, and its last dirty bytes are handed over."""
        self._handovers.source.frozen(handover, now)

    # Polls

    def next_event(self) -> Event | None:
        events = self._context.events
        return events.popleft() if events else None

    def frames_to_send(self, now: int) -> list[Outgoing]:
        return self._context.scheduler.frames(now)

    def next_deadline(self) -> int | None:
        return self._context.timers.next()

    # Between the parts

    def _life(self, node: NodeName) -> Peer | None:
        return self._membership.peer(node)

    def _lives(self, binding: Binding) -> bool:
        """Whether the owner that the binding names may still serve."""
        if binding.node == self.me.node:
            return binding.incarnation == self.me.incarnation
        life = self._life(binding.node)
        if life is not None and life.incarnation != binding.incarnation:
            return False
        return self._membership.state(binding.node) not in ("dead", "left")

    def _hosted(self, endpoint: EndpointName) -> Any:
        hosted = self._routing.owned.get(endpoint)
        if hosted is None:
            raise UnknownEndpoint(
                f"endpoint {endpoint} is not hosted on {self.me.node};"
                f" hosted are {', '.join(sorted(self._routing.owned)) or 'none'}"
            )
        return hosted

    def _watched(self) -> set[Life]:
        lives = {out.other for out in self._table.outbound.values()}
        lives |= {into.other for into in self._table.inbound.values()}
        lives |= self._fences.lives()
        for handover in self._handover_table.all.values():
            lives.add(handover.peer.life)
            lives |= handover.named
            lives = lives.union(*handover.ends.values())
        return lives

    def _learned(self, binding: Binding, now: int) -> None:
        self._opening.learned(binding, now)
        self._witnesses.moved(binding.endpoint, now)

    def _fenced(self, endpoint: Any, now: int) -> None:
        self._handovers.source.fenced(endpoint, now)
        if endpoint.name in self._routing.owned:
            self._handovers.target.fenced(endpoint, now)

    def _receive_fence(self, node: NodeName, frame: Frame, now: int) -> None:
        if frame.flags & Flag.REPLY:
            self._doubts.answered(node, frame, now)
        else:
            self._fences.receive(node, frame, now)

    def _lost(self, peer: Peer, cause: ResetCause, text: str, now: int) -> None:
        self._fences.lost(peer, text, now)
        self._handovers.lost(peer, text, now)
        self._opening.lost(peer, cause, now)

    def _joined(self, now: int) -> None:
        waiting, self._waiting = self._waiting, []
        for endpoint in waiting:
            self.host(endpoint, now)

    @staticmethod
    def _check_name(name: str, config: Config) -> None:
        if not name or len(name.encode()) > config.name:
            raise LocalProtocolError(f"name {name!r}: expected 1 to {config.name} bytes")
