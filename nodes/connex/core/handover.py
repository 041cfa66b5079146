"""Planned handover of an endpoint: preparation, execution, one commit point, completion (``docs/wire.md``, Handovers).

The source is the authority until it sends COMMIT. From then on it does not serve again unless it has proof that the
target never accepted: the target itself, in the same life, saying that it knows no such handover. If the target's
life ends first, the streams are reset with that cause.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from connex.core import frames
from connex.core.binding import Binding
from connex.core.context import Context
from connex.core.credit import ReceiveCredit
from connex.core.endings import Endings
from connex.core.endpoint import Endpoint, Inbound, Outbound, Route
from connex.core.errors import LocalProtocolError, RemoteProtocolError, ResetCause
from connex.core.events import EndpointThawed, FreezeRequested, HandoverChanged, RegionReceived, RegionsWanted
from connex.core.flow import Flow
from connex.core.frames import BodyReader, Buffer, Flag, Frame, FrameType
from connex.core.identity import EndpointName, HandoverId, NodeName, Peer, TrafficClass
from connex.core.moving import Moving
from connex.core.routing import Routing
from connex.core.state import (
    PEERS,
    REGION,
    STATE,
    MovedStream,
    decode_peers,
    decode_region,
    decode_streams,
    encode_peers,
    encode_region,
    encode_streams,
)
from connex.core.stream import ReceiveStream, SendStream
from connex.core.timers import Key

_REMEMBERED = 1024


class Phase(Enum):
    """Where a handover stands, at its source (the first six) or its target."""

    PREPARING = "preparing"
    PRECOPY = "precopy"
    HOLDING = "holding"
    FREEZING = "freezing"
    TRANSFER = "transfer"
    COMMITTING = "committing"
    RECEIVING = "receiving"
    COMMITTED = "committed"


class Handover:
    """One handover, seen from one side."""

    __slots__ = (
        "endpoint",
        "epoch",
        "final",
        "hold",
        "id",
        "moved",
        "peer",
        "phase",
        "rounds",
        "side",
        "state",
        "stream",
    )

    def __init__(self, ident: HandoverId, endpoint: EndpointName, epoch: int, side: str, peer: Peer) -> None:
        self.id = ident
        self.endpoint = endpoint
        self.epoch = epoch
        """The epoch at the source; the target will own the one after it."""
        self.side = side
        self.peer = peer
        """The life of the other node that takes part: a later life of it does not."""
        self.phase = Phase.PREPARING if side == "source" else Phase.RECEIVING
        self.hold = False
        self.rounds = 0
        self.final = -1
        """Bytes still dirty after the last round of pre-copy; -1 while a round is being written."""
        self.moved = 0
        self.stream: Outbound | Inbound | None = None
        self.state: list[MovedStream] | None = None


class Handovers:
    """All handovers that this node takes part in."""

    def __init__(
        self,
        context: Context,
        routing: Routing,
        flow: Flow,
        moving: Moving,
        endings: Endings,
        peers: Callable[[NodeName], Peer | None],
        accepts: Callable[[EndpointName], str | None],
    ) -> None:
        self._context = context
        self._routing = routing
        self._flow = flow
        self._moving = moving
        self._endings = endings
        self._peer = peers
        self._accepts = accepts
        self.all: dict[HandoverId, Handover] = {}
        self._over: dict[HandoverId, bool] = {}
        """Handovers that have ended here, and whether by a commit: their ids are never taken up again."""
        flow.on_transfer = self._record_received
        flow.on_progress = self._transfer_progressed
        context.on_alarm("handover", self._timed_out)

    # Commands

    def begin(self, endpoint: Endpoint, target: Peer, expected: int, hold: bool, now: int) -> HandoverId:
        if endpoint.handover is not None or endpoint.restricted:
            raise LocalProtocolError(
                f"move {endpoint.name}: an earlier handover of it has not completed yet; wait for it and try again"
            )
        if target.node == self._context.me.node:
            raise LocalProtocolError(f"move {endpoint.name} to {target.node}: it is there already")
        if len(self.all) >= self._context.config.handovers:
            raise LocalProtocolError(
                f"move {endpoint.name}: this node takes part in {len(self.all)} handovers, its limit"
            )
        handover = Handover(self._context.draw(64) or 1, endpoint.name, endpoint.epoch, "source", target)
        handover.hold = hold
        self.all[handover.id] = handover
        endpoint.handover = handover.id
        self._say(handover, "begun")
        body = frames.text(endpoint.name) + frames.text(self._context.me.node) + frames.number(expected, 8)
        self._repeat(handover, FrameType.PREPARE, body, now)
        self._context.timers.set(("handover", handover.id, ""), now + self._context.config.handover_timeout)
        return handover.id

    def execute(self, ident: HandoverId, now: int) -> None:
        """Go on with a handover that was prepared to be held."""
        handover = self._at_source(ident)
        handover.hold = False
        if handover.phase is Phase.HOLDING:
            handover.phase = Phase.PRECOPY
            self._want_regions(handover)

    def cancel(self, ident: HandoverId, text: str, now: int) -> None:
        """Abort before the commit. Raises LocalProtocolError once COMMIT is out: then only the target knows."""
        handover = self._at_source(ident)
        if handover.phase is Phase.COMMITTING:
            raise LocalProtocolError(
                f"cancel the handover of {handover.endpoint}: its commit is already on the way to {handover.peer.node}"
            )
        self._abort(handover, text, now)

    def send_region(self, ident: HandoverId, name: str, size: int, offset: int, data: Buffer, now: int) -> None:
        handover = self._at_source(ident, Phase.PRECOPY, Phase.FREEZING)
        handover.moved += len(data)
        self._flow.write(ident, encode_region(name, size, offset, data), now)

    def precopied(self, ident: HandoverId, dirty: int, now: int) -> None:
        """A round of regions has been handed over; ``dirty`` bytes have changed again meanwhile."""
        handover = self._at_source(ident, Phase.PRECOPY)
        handover.final = dirty
        self._advance(handover, now)

    def decline(self, ident: HandoverId, text: str) -> None:
        """The target cannot hold what arrives. Nothing happens if that is too late or over already."""
        handover = self.all.get(ident)
        if handover is not None and handover.phase is Phase.RECEIVING:
            self._drop(handover, text)
            self._send(handover.peer.node, FrameType.DECLINED, ident, frames.text(text, 2))

    def frozen(self, ident: HandoverId, now: int) -> None:
        """The application has stopped and its last regions are handed over: send the rest of the state."""
        handover = self._at_source(ident, Phase.FREEZING)
        endpoint = self._routing.owned[handover.endpoint]
        record = encode_streams(
            list(endpoint.outbound.values()), list(endpoint.inbound.values()), self._context.locators
        )
        handover.moved += len(record)
        self._flow.write(ident, record, now)
        handover.phase = Phase.TRANSFER
        self._say(handover, "state-sent")

    # Source

    def _advance(self, handover: Handover, now: int) -> None:
        """Once all that was handed over has arrived: another round, or hold, or freeze; after the state, commit."""
        stream = handover.stream
        assert isinstance(stream, Outbound)
        if stream.send.awaiting:
            return
        if handover.phase is Phase.PRECOPY and handover.final >= 0:
            if (
                handover.final > self._context.config.precopy_goal
                and handover.rounds < self._context.config.precopy_rounds
            ):
                self._want_regions(handover)
            elif handover.hold:
                handover.phase = Phase.HOLDING
                self._say(handover, "precopied")
            else:
                self._say(handover, "precopied")
                self._freeze(handover)
        elif handover.phase is Phase.TRANSFER:
            handover.phase = Phase.COMMITTING
            self._say(handover, "commit-sent")
            self._repeat(
                handover,
                FrameType.COMMIT,
                frames.text(handover.endpoint),
                now,
                offset=stream.send.next_offset,
            )

    def _want_regions(self, handover: Handover) -> None:
        handover.final = -1
        handover.rounds += 1
        self._context.emit(RegionsWanted(handover.id, handover.endpoint))

    def _freeze(self, handover: Handover) -> None:
        handover.phase = Phase.FREEZING
        self._moving.freeze(self._routing.owned[handover.endpoint])
        self._say(handover, "frozen")
        self._context.emit(FreezeRequested(handover.endpoint, handover.id))

    def _transfer_progressed(self, stream: Outbound, now: int) -> None:
        handover = self.all.get(stream.route.stream)
        if handover is not None:
            self._advance(handover, now)

    def _prepared(self, handover: Handover, now: int) -> None:
        if handover.phase is not Phase.PREPARING:
            return
        self._settle(handover, FrameType.PREPARE)
        out = Outbound(_transfer_route(handover), SendStream(), handover.epoch, self._context.config)
        out.node, out.incarnation, out.peer_epoch = (
            handover.peer.node,
            handover.peer.incarnation,
            handover.epoch,
        )
        out.opened = True
        out.send.limit = self._context.config.classes[TrafficClass.KV].window
        out.confirmed_at = now
        handover.stream = out
        handover.phase = Phase.PRECOPY
        self._moving.add_transfer(out)
        self._say(handover, "prepared")
        endpoint = self._routing.owned[handover.endpoint]
        streams = list(endpoint.outbound.values()), list(endpoint.inbound.values())
        self._flow.write(handover.id, encode_peers(*streams, self._context.locators), now)
        self._want_regions(handover)

    def _committed(self, handover: Handover, now: int) -> None:
        if handover.phase is not Phase.COMMITTING:
            return
        self._settle(handover, FrameType.COMMIT)
        self._say(handover, "committed")
        endpoint = self._routing.owned[handover.endpoint]
        self._moving.release(endpoint)
        self._routing.disown(endpoint, "handover")
        self._routing.learn(endpoint.binding(handover.peer)._replace(epoch=handover.epoch + 1), "handover", now)
        self._end(handover, True)
        self._say(handover, "completed")
        self._repeat(handover, FrameType.RELEASE, b"", now)

    def _abort(self, handover: Handover, text: str, now: int, tell: bool = True) -> None:
        """The source serves on. Only ever called with COMMIT not sent, or proof that it was not accepted."""
        for kind in (FrameType.PREPARE, FrameType.COMMIT):
            self._settle(handover, kind)
        if tell:
            self._repeat(handover, FrameType.ABORT, frames.text(text, 2), now, most=10)
        self._end(handover, False)
        self._say(handover, "aborted", text)
        endpoint = self._routing.owned.get(handover.endpoint)
        if endpoint is None or endpoint.handover != handover.id:
            return
        if endpoint.frozen:
            self._moving.thaw(endpoint, now)
            self._context.emit(EndpointThawed(endpoint.name, endpoint.epoch, handover.id))
        endpoint.handover = None

    def _give_up(self, handover: Handover, text: str, now: int) -> None:
        """The commit is in doubt and nobody is left who could say: better ended, with the cause, than served twice."""
        self._settle(handover, FrameType.COMMIT)
        endpoint = self._routing.owned[handover.endpoint]
        self._end(handover, False)
        self._say(handover, "doubt", text)
        self._endings.end_all(endpoint, ResetCause.HANDOVER_IN_DOUBT, text, now)
        self._routing.disown(endpoint, "doubt")

    # Target

    def _prepare(self, node: NodeName, frame: Frame, now: int) -> None:
        body = BodyReader(frame.payload)
        name, source, _expected = body.text(), body.text(), body.number(8)
        body.finish()
        peer = self._peer(node)
        if source != node or peer is None or not name:
            raise RemoteProtocolError(f"PREPARE of {name!r} in the name of {source!r} from {node!r}")
        known = self._routing.table.get(name)
        reason = self._accepts(name)
        if name in self._routing.owned:
            reason = f"{name} is served here already, under epoch {self._routing.owned[name].epoch}"
        elif known is not None and known.epoch > frame.sender_epoch:
            reason = f"{name} has epoch {known.epoch} at {known.node or 'its end'}: {frame.sender_epoch} is over"
        elif len(self.all) >= self._context.config.handovers:
            reason = f"{len(self.all)} handovers at once, the limit of this node"
        elif any(other.endpoint == name and other.side == "target" for other in self.all.values()):
            reason = f"another handover of {name} to this node is under way"
        if reason is not None:
            self._send(node, FrameType.DECLINED, frame.stream, frames.text(reason, 2))
            return
        handover = Handover(frame.stream, name, frame.sender_epoch, "target", peer)
        config = self._context.config
        into = Inbound(
            _transfer_route(handover),
            ReceiveStream(config.message),
            ReceiveCredit(config.classes[TrafficClass.KV].window),
            handover.epoch,
        )
        into.node, into.incarnation, into.peer_epoch = peer.node, peer.incarnation, handover.epoch
        handover.stream = into
        self.all[handover.id] = handover
        self._moving.add_transfer(into)
        self._say(handover, "prepared")
        self._context.timers.set(("handover", handover.id, ""), now + config.handover_timeout)
        self._send(node, FrameType.PREPARED, handover.id)

    def _record_received(self, into: Inbound, now: int) -> None:
        handover = self.all[into.route.stream]
        while (message := self._flow.take(handover.id, now)) is not None:
            kind = message.payload[0] if message.payload else 0
            handover.moved += len(message.payload)
            try:
                if handover.state is not None or kind not in (REGION, STATE, PEERS):
                    raise RemoteProtocolError(
                        f"transfer record of type {kind}" + (" after the state" if handover.state is not None else "")
                    )
                if kind == REGION:
                    name, size, offset, data = decode_region(message.payload)
                    if size > self._context.config.region:
                        raise RemoteProtocolError(
                            f"region {name} of {size} bytes: the limit is {self._context.config.region}"
                        )
                    self._context.emit(RegionReceived(handover.id, handover.endpoint, name, size, offset, data))
                elif kind == PEERS:
                    self._get_ready(decode_peers(message.payload))
                else:
                    handover.state = decode_streams(message.payload, handover.endpoint)
            except RemoteProtocolError as error:
                self._drop(handover, str(error))
                self._send(handover.peer.node, FrameType.DECLINED, handover.id, frames.text(str(error), 2))
                return

    def _get_ready(self, peers: list[tuple[Binding, TrafficClass]]) -> None:
        """Open the channels that the endpoint's streams will need, so that its cutover does not wait for them."""
        for binding, traffic_class in peers:
            if binding.node and binding.locator and binding.node != self._context.me.node:
                self._context.locators.setdefault(binding.node, binding.locator)
                for kind in (TrafficClass.CONTROL, traffic_class):
                    self._context.scheduler.want(binding.node, kind)

    def _commit(self, handover: Handover, frame: Frame, now: int) -> None:
        """The one commit point."""
        if handover.phase is Phase.COMMITTED:
            self._send(
                handover.peer.node,
                FrameType.COMMITTED,
                handover.id,
                frames.text(handover.endpoint),
                handover.epoch,
                handover.epoch + 1,
            )
            return
        into = handover.stream
        assert isinstance(into, Inbound)
        known = self._routing.table.get(handover.endpoint)
        if (
            handover.state is None
            or into.receive.offset != frame.offset
            or (known is not None and known.epoch > handover.epoch)
        ):
            self._drop(handover, "commit without the state it commits")
            self._send(handover.peer.node, FrameType.UNKNOWN, handover.id)
            return
        handover.phase = Phase.COMMITTED
        self._context.timers.clear(("handover", handover.id, ""))
        self._moving.drop_transfer(handover.id)
        endpoint = self._routing.own(handover.endpoint, handover.epoch + 1, "handover", now)
        endpoint.restricted = True
        for moved in handover.state:
            self._moving.adopt(endpoint, moved, now)
        handover.state = None
        self._say(handover, "committed")
        nodes = {out.node for out in endpoint.outbound.values()} | {into.node for into in endpoint.inbound.values()}
        nodes |= {handover.peer.node, *self._context.scheduler.open_lanes()}
        self._routing.announce(endpoint.binding(self._context.me), nodes, now)
        self._repeat(handover, FrameType.COMMITTED, frames.text(handover.endpoint), now)

    def _released(self, handover: Handover, now: int) -> None:
        """The source knows: nothing is in doubt any more."""
        self._settle(handover, FrameType.COMMITTED)
        self._end(handover, True)
        self._say(handover, "completed")
        endpoint = self._routing.owned.get(handover.endpoint)
        if endpoint is not None and endpoint.epoch == handover.epoch + 1:
            endpoint.restricted = False

    def _drop(self, handover: Handover, text: str) -> None:
        """The target frees all it had received."""
        self._end(handover, False)
        self._say(handover, "aborted", text)

    # Both sides

    def receive(self, node: NodeName, frame: Frame, now: int) -> None:
        """A handover frame from ``node``."""
        handover = self.all.get(frame.stream)
        kind = frame.type
        if handover is not None and handover.peer.node != node:
            return
        side = handover.side if handover is not None else ""
        if kind == FrameType.PREPARE and handover is None:
            if frame.stream in self._over:
                self._send(node, FrameType.UNKNOWN, frame.stream)
            else:
                self._prepare(node, frame, now)
        elif kind == FrameType.PREPARE and handover is not None and handover.phase is Phase.RECEIVING:
            self._send(node, FrameType.PREPARED, frame.stream)
        elif kind == FrameType.PREPARED:
            if handover is None:
                self._send(node, FrameType.UNKNOWN, frame.stream)
            elif side == "source":
                self._prepared(handover, now)
        elif (
            kind == FrameType.DECLINED
            and handover is not None
            and side == "source"
            and handover.phase is not Phase.COMMITTING
        ):
            self._abort(handover, f"{node} declined: {BodyReader(frame.payload).text(2)}", now, tell=False)
        elif kind == FrameType.COMMIT:
            if handover is not None and side == "target":
                self._commit(handover, frame, now)
            elif self._over.get(frame.stream):
                self._send(
                    node,
                    FrameType.COMMITTED,
                    frame.stream,
                    bytes(frame.payload),
                    frame.sender_epoch,
                    frame.sender_epoch + 1,
                )
            else:
                self._over.setdefault(frame.stream, False)
                self._send(node, FrameType.UNKNOWN, frame.stream)
        elif kind == FrameType.COMMITTED:
            if handover is not None and side == "source":
                self._committed(handover, now)
            elif self._over.get(frame.stream):
                self._send(node, FrameType.RELEASE, frame.stream)
        elif kind == FrameType.RELEASE:
            if handover is not None and side == "target" and handover.phase is Phase.COMMITTED:
                self._released(handover, now)
            self._send(node, FrameType.RELEASED, frame.stream)
        elif kind == FrameType.RELEASED:
            self._context.settle(FrameType.RELEASE.name, frame.stream, node)
        elif kind == FrameType.ABORT:
            self._receive_abort(node, handover, frame)
        elif kind == FrameType.UNKNOWN and handover is not None and side == "source":
            self._abort(handover, f"{node} knows no such handover", now, tell=False)
        elif kind == FrameType.UNKNOWN and handover is not None and handover.phase is Phase.RECEIVING:
            self._drop(handover, f"{node} knows no such handover")

    def _receive_abort(self, node: NodeName, handover: Handover | None, frame: Frame) -> None:
        if frame.flags & Flag.REPLY:
            self._context.settle(FrameType.ABORT.name, frame.stream, node)
            return
        if handover is not None and handover.side == "target" and handover.phase is Phase.RECEIVING:
            self._drop(handover, BodyReader(frame.payload).text(2))
        elif handover is None:
            self._over.setdefault(frame.stream, False)
        self._send(node, FrameType.ABORT, frame.stream, flags=Flag.REPLY)

    def lost(self, peer: Peer, text: str, now: int) -> None:
        """The other node's life is over, or it is taken to be."""
        for handover in [one for one in self.all.values() if one.peer[:2] == peer[:2]]:
            if handover.side == "source" and handover.phase is Phase.COMMITTING:
                self._give_up(handover, text, now)
            elif handover.side == "source":
                self._abort(handover, text, now, tell=False)
            elif handover.phase is Phase.COMMITTED:
                self._released(handover, now)
            else:
                self._drop(handover, text)

    def fenced(self, endpoint: Endpoint, now: int) -> None:
        """A newer owner of an endpoint that was being moved from here: the handover is void."""
        handover = self.all.get(endpoint.handover) if endpoint.handover is not None else None
        if handover is None:
            return
        if handover.phase is Phase.COMMITTING:
            self._committed(handover, now)
        else:
            endpoint.handover = None
            self._abort(handover, "fenced by a newer owner", now)

    def _timed_out(self, key: Key, now: int) -> None:
        assert isinstance(key[1], int)
        handover = self.all.get(key[1])
        if handover is None or handover.phase in (Phase.HOLDING, Phase.COMMITTING, Phase.COMMITTED):
            return
        if handover.side == "target":
            # The source may hold a prepared handover back for long; if it has forgotten it, it says so.
            self._send(handover.peer.node, FrameType.PREPARED, handover.id)
            self._context.timers.set(key, now + self._context.config.handover_timeout)
            return
        waited = self._context.config.handover_timeout // 1_000_000
        text = f"not complete after {waited} ms, in phase {handover.phase.value}"
        self._abort(handover, text, now)

    def _at_source(self, ident: HandoverId, *phases: Phase) -> Handover:
        handover = self.all.get(ident)
        if handover is None or handover.side != "source" or (phases and handover.phase not in phases):
            state = handover.phase.value if handover is not None else "over or unknown"
            raise LocalProtocolError(f"handover {ident:016x} is {state}")
        return handover

    def _end(self, handover: Handover, committed: bool) -> None:
        self.all.pop(handover.id, None)
        self._over[handover.id] = committed
        if len(self._over) > _REMEMBERED:
            del self._over[next(iter(self._over))]
        self._moving.drop_transfer(handover.id)
        self._context.timers.clear(("handover", handover.id, ""))

    def _say(self, handover: Handover, step: str, cause: str = "") -> None:
        self._context.emit(
            HandoverChanged(
                handover.id,
                handover.endpoint,
                handover.epoch,
                handover.side,
                handover.peer.node,
                step,
                cause,
                handover.moved,
            )
        )

    def _send(
        self,
        node: NodeName,
        kind: FrameType,
        ident: HandoverId,
        body: Buffer = b"",
        epoch: int = 0,
        destination: int = 0,
        *,
        flags: Flag = Flag.NONE,
    ) -> None:
        self._context.control(node, kind, body, handover=ident, epoch=epoch, destination=destination, flags=flags)

    def _repeat(
        self,
        handover: Handover,
        kind: FrameType,
        body: bytes,
        now: int,
        *,
        offset: int = 0,
        most: int | None = None,
    ) -> None:
        after = handover.epoch + 1 if kind in (FrameType.COMMIT, FrameType.COMMITTED, FrameType.RELEASE) else 0
        node = handover.peer.node

        def send(_: int) -> None:
            self._context.control(
                node, kind, body, handover=handover.id, epoch=handover.epoch, destination=after, offset=offset
            )

        self._context.repeat(kind.name, handover.id, node, send, now, most=most)

    def _settle(self, handover: Handover, kind: FrameType) -> None:
        self._context.settle(kind.name, handover.id, handover.peer.node)


def _transfer_route(handover: Handover) -> Route:
    """A transfer stream runs between nodes: it has no endpoints."""
    return Route(handover.id, "", "", TrafficClass.KV, "handover")
