"""A handover at its target: agree, receive the state, and take over at the one commit point."""

from __future__ import annotations

from collections.abc import Callable

from connex.core import frames
from connex.core.binding import Binding
from connex.core.context import Context
from connex.core.credit import ReceiveCredit
from connex.core.endings import Endings
from connex.core.endpoint import Endpoint, Inbound
from connex.core.errors import RemoteProtocolError, ResetCause
from connex.core.events import RegionReceived
from connex.core.flow import Flow
from connex.core.frames import BodyReader, Frame, FrameType
from connex.core.handover import Handover, HandoverTable, Phase, transfer_route
from connex.core.identity import EndpointName, HandoverId, NodeName, Peer, TrafficClass
from connex.core.moving import Moving
from connex.core.routing import Promise, Routing
from connex.core.state import (
    PEERS,
    REGION,
    STATE,
    MovedStream,
    decode_peers,
    decode_region,
    decode_state,
)
from connex.core.stream import ReceiveStream
from connex.core.witness import Witnesses


class Arrivals:
    """Handovers of endpoints that come to this node."""

    def __init__(
        self,
        context: Context,
        routing: Routing,
        flow: Flow,
        moving: Moving,
        endings: Endings,
        table: HandoverTable,
        witnesses: Witnesses,
        peers: Callable[[NodeName], Peer | None],
        accepts: Callable[[EndpointName], str | None],
    ) -> None:
        self._context = context
        self._routing = routing
        self._flow = flow
        self._moving = moving
        self._endings = endings
        self._table = table
        self._peer = peers
        self._accepts = accepts
        self._witnesses = witnesses
        witnesses.on_settled = self._settled
        witnesses.on_waiting = self._remind
        flow.on_transfer = self._record_received

    def prepare(self, node: NodeName, frame: Frame, now: int) -> None:
        body = BodyReader(frame.payload)
        name, source, _expected = body.text(), body.text(), body.number(8)
        body.finish()
        peer = self._peer(node)
        if source != node or peer is None or not name:
            raise RemoteProtocolError(f"PREPARE of {name!r} in the name of {source!r} from {node!r}")
        for older in list(self._table.all.values()):
            if older.endpoint == name and older.peer.life == peer.life and older.phase is Phase.RECEIVING:
                # A source has one handover of an endpoint at a time.
                self.drop(older, f"{node} has begun another")
        known = self._routing.table.get(name)
        reason = self._accepts(name)
        if name in self._routing.owned:
            reason = f"{name} is served here already, under epoch {self._routing.owned[name].epoch}"
        elif known is not None and known.epoch > frame.sender_epoch:
            reason = f"{name} has epoch {known.epoch} at {known.node or 'its end'}: {frame.sender_epoch} is over"
        elif len(self._table.all) >= self._context.config.handovers:
            reason = f"{len(self._table.all)} handovers at once, the limit of this node"
        elif any(other.endpoint == name and other.side == "target" for other in self._table.all.values()):
            reason = f"another handover of {name} to this node is under way"
        if reason is not None:
            self._table.send(node, FrameType.DECLINED, frame.stream, frames.text(reason, 2))
            return
        handover = Handover(frame.stream, name, frame.sender_epoch, "target", peer)
        config = self._context.config
        into = Inbound(
            transfer_route(handover),
            ReceiveStream(config.message),
            ReceiveCredit(config.classes[TrafficClass.KV].window),
            handover.epoch,
        )
        into.node, into.incarnation, into.peer_epoch = peer.node, peer.incarnation, handover.epoch
        handover.stream = into
        self._table.all[handover.id] = handover
        self._moving.add_transfer(into)
        self._table.say(handover, "prepared")
        self._context.timers.set(("handover", handover.id, ""), now + config.handover_timeout)
        self._table.send(node, FrameType.PREPARED, handover.id)

    def _record_received(self, into: Inbound, now: int) -> None:
        handover = self._table.all[into.route.stream]
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
                    handover.state = decode_state(message.payload, handover.endpoint)
            except RemoteProtocolError as error:
                self.drop(handover, str(error))
                self._table.send(handover.peer.node, FrameType.DECLINED, handover.id, frames.text(str(error), 2))
                return

    def _get_ready(self, peers: list[tuple[Binding, TrafficClass]]) -> None:
        """Open the channels that the endpoint's streams will need, so that its cutover does not wait for them."""
        for binding, traffic_class in peers:
            if binding.node and binding.locator and binding.node != self._context.me.node:
                self._context.locators.setdefault(binding.node, binding.locator)
                for kind in (TrafficClass.CONTROL, traffic_class):
                    self._context.scheduler.want(binding.node, kind)

    def commit(self, handover: Handover, frame: Frame, now: int) -> None:
        """The one commit point."""
        if handover.phase is Phase.COMMITTED:
            self._say_committed(handover)
            return
        into = handover.stream
        assert isinstance(into, Inbound)
        known = self._routing.table.get(handover.endpoint)
        if (
            handover.state is None
            or into.receive.offset != frame.offset
            or (known is not None and known.epoch > handover.epoch)
            or handover.endpoint in self._routing.promised
        ):
            self.drop(handover, "commit without the state it commits")
            self._table.send(handover.peer.node, FrameType.UNKNOWN, handover.id)
            return
        handover.phase = Phase.COMMITTED
        self._context.timers.clear(("handover", handover.id, ""))
        self._moving.drop_transfer(handover.id)
        endpoint = self._routing.own(handover.endpoint, handover.epoch + 1, "handover", now)
        for moved in handover.state.streams:
            keeps = self._inherit(moved)
            stream = self._moving.adopt(endpoint, moved, now)
            if not keeps:
                text = f"{moved.peer.endpoint} has moved on already, which it was promised not to follow"
                self._endings.give_up(stream, ResetCause.HANDOVER_IN_DOUBT, text, now)
        handover.named = handover.state.named
        self._witnesses.restrict(endpoint, handover.peer.life, handover.named, now)
        nodes = {peer.node for peer in handover.state.witnesses}
        for peer in handover.state.witnesses:
            self._context.locators.setdefault(peer.node, peer.locator)
        handover.state = None
        self._table.say(handover, "committed")
        nodes |= {stream.node for stream in endpoint.streams()} | {
            handover.peer.node,
            *self._context.scheduler.open_lanes(),
        }
        self._routing.announce(endpoint.binding(self._context.me), nodes, now)
        self._table.repeat(handover, FrameType.COMMITTED, frames.text(handover.endpoint), now)

    def _inherit(self, moved: MovedStream) -> bool:
        """Keep what the node before promised for this stream; says whether that is still possible."""
        promise = Promise(moved.promised, moved.peer.life)
        if not moved.promised or promise.to == self._context.me.life:
            return True
        known = self._routing.table.get(moved.peer.endpoint)
        if known is not None and known.epoch >= promise.epoch:
            return False
        return self._routing.promise(moved.peer.endpoint, promise)

    def released(self, handover: Handover, now: int) -> None:
        """The source knows: nothing is in doubt any more."""
        self._table.settle(handover, FrameType.COMMITTED)
        self._table.end(handover, True)
        self._table.say(handover, "completed")
        endpoint = self._routing.owned.get(handover.endpoint)
        if endpoint is not None and endpoint.epoch == handover.epoch + 1:
            self._witnesses.lift(endpoint, now)

    def _remind(self, endpoint: Endpoint) -> None:
        """Tell the source once more: whatever was repeated to it ended if it was taken for dead meanwhile."""
        for handover in self._table.all.values():
            if handover.endpoint == endpoint.name and handover.phase is Phase.COMMITTED:
                self._say_committed(handover)

    def _say_committed(self, handover: Handover) -> None:
        self._table.send(
            handover.peer.node,
            FrameType.COMMITTED,
            handover.id,
            frames.text(handover.endpoint),
            handover.epoch,
            handover.epoch + 1,
        )

    def _settled(self, endpoint: Endpoint, now: int) -> None:
        """The source is gone, or can never take the endpoint back: it need not be waited for."""
        for handover in list(self._table.all.values()):
            if handover.endpoint == endpoint.name and handover.phase is Phase.COMMITTED:
                self.released(handover, now)

    def fenced(self, endpoint: Endpoint, now: int) -> None:
        """The source has gone on itself, under a later epoch, or somebody else has: this arrival counts no more."""
        for handover in list(self._table.all.values()):
            if handover.endpoint == endpoint.name and handover.phase is Phase.COMMITTED:
                self._table.settle(handover, FrameType.COMMITTED)
                self._table.end(handover, False)
                self._table.say(handover, "aborted", "fenced by a newer owner")
        self._moving.release(endpoint)

    def drop(self, handover: Handover, text: str) -> None:
        """The target frees all it had received."""
        self._table.end(handover, False)
        self._table.say(handover, "aborted", text)

    def decline(self, ident: HandoverId, text: str) -> None:
        """The target cannot hold what arrives. Nothing happens if that is too late or over already."""
        handover = self._table.all.get(ident)
        if handover is not None and handover.phase is Phase.RECEIVING:
            self.drop(handover, text)
            self._table.send(handover.peer.node, FrameType.DECLINED, ident, frames.text(text, 2))
