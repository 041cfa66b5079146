"""A handover at its source: preparation, pre-copy, freeze, commit.

The source is the authority until it sends COMMIT. From then on it does not serve again unless it has proof that the
target never accepted: the target itself, in the same life, saying that it knows no such handover, or its peers
(``doubt.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from connex.core import frames
from connex.core.context import Context
from connex.core.endings import Endings
from connex.core.endpoint import Endpoint, Inbound, Outbound
from connex.core.errors import LocalProtocolError, ResetCause
from connex.core.events import EndpointThawed, FreezeRequested, RegionsWanted
from connex.core.flow import Flow
from connex.core.frames import Buffer, FrameType
from connex.core.handover import Handover, HandoverTable, Phase, transfer_route
from connex.core.identity import HandoverId, Life, NodeName, Peer, TrafficClass
from connex.core.moving import Moving
from connex.core.opening import Opening
from connex.core.routing import Routing
from connex.core.state import (
    encode_peers,
    encode_region,
    encode_state,
)
from connex.core.stream import SendStream

_THIRD_PARTIES = 2
"""Nodes besides source and target that STATE names at least, if there are as many."""


class Departures:
    """Handovers of endpoints that leave this node."""

    def __init__(
        self,
        context: Context,
        routing: Routing,
        flow: Flow,
        opening: Opening,
        moving: Moving,
        endings: Endings,
        table: HandoverTable,
        peers: Callable[[NodeName], Peer | None],
    ) -> None:
        self._context = context
        self._routing = routing
        self._flow = flow
        self._moving = moving
        self._endings = endings
        self._table = table
        self._peer = peers
        self.on_committed: Callable[[Handover, int], None] = _nobody
        flow.on_progress = self._transfer_progressed
        opening.on_transfer_refused = self._transfer_refused

    def begin(self, endpoint: Endpoint, target: Peer, expected: int, hold: bool, now: int) -> HandoverId:
        if endpoint.handover is not None or endpoint.restricted:
            raise LocalProtocolError(
                f"move {endpoint.name}: an earlier handover of it has not completed yet; wait for it and try again"
            )
        if target.node == self._context.me.node:
            raise LocalProtocolError(f"move {endpoint.name} to {target.node}: it is there already")
        if len(self._table.all) >= self._context.config.handovers:
            raise LocalProtocolError(
                f"move {endpoint.name}: this node takes part in {len(self._table.all)} handovers, its limit"
            )
        handover = Handover(self._context.draw(64) or 1, endpoint.name, endpoint.epoch, "source", target)
        handover.hold = hold
        self._table.all[handover.id] = handover
        endpoint.handover = handover.id
        self._table.say(handover, "begun")
        body = frames.text(endpoint.name) + frames.text(self._context.me.node) + frames.number(expected, 8)
        self._table.repeat(handover, FrameType.PREPARE, body, now)
        self._context.timers.set(("handover", handover.id, ""), now + self._context.config.handover_timeout)
        return handover.id

    def execute(self, ident: HandoverId, now: int) -> None:
        """Go on with a handover that was prepared to be held."""
        handover = self._table.at_source(ident)
        handover.hold = False
        if handover.phase is Phase.HOLDING:
            handover.phase = Phase.PRECOPY
            self._want_regions(handover)

    def cancel(self, ident: HandoverId, text: str, now: int) -> None:
        """Abort before the commit. Raises LocalProtocolError once COMMIT is out: then only the target knows."""
        handover = self._table.at_source(ident)
        if handover.phase in (Phase.COMMITTING, Phase.DOUBT):
            raise LocalProtocolError(
                f"cancel the handover of {handover.endpoint}: its commit is already on the way to {handover.peer.node}"
            )
        self.abort(handover, text, now)

    def send_region(self, ident: HandoverId, name: str, size: int, offset: int, data: Buffer, now: int) -> None:
        handover = self._table.at_source(ident, Phase.PRECOPY, Phase.FREEZING)
        handover.moved += len(data)
        self._flow.write(ident, encode_region(name, size, offset, data), now)

    def precopied(self, ident: HandoverId, dirty: int, now: int) -> None:
        """A round of regions has been handed over; ``dirty`` bytes have changed again meanwhile."""
        handover = self._table.at_source(ident, Phase.PRECOPY)
        handover.final = dirty
        self._advance(handover, now)

    def frozen(self, ident: HandoverId, now: int) -> None:
        """The application has stopped and its last regions are handed over: send the rest of the state."""
        handover = self._table.at_source(ident, Phase.FREEZING)
        endpoint = self._routing.owned[handover.endpoint]
        outbound, inbound = list(endpoint.outbound.values()), list(endpoint.inbound.values())
        promised = {name: promise.epoch for name, promise in self._routing.promised.items()}
        handover.ends = {stream.route.stream: {stream.other} for stream in endpoint.streams()}
        named = {stream.other for stream in endpoint.streams() if stream.node}
        witnesses = self._witnesses(handover, named - {self._context.me.life, handover.peer.life})
        handover.named = frozenset(named | {peer.life for peer in witnesses})
        record = encode_state(outbound, inbound, self._context.locators, promised, witnesses)
        handover.moved += len(record)
        self._flow.write(ident, record, now)
        handover.phase = Phase.TRANSFER
        self._table.say(handover, "state-sent")

    def _witnesses(self, handover: Handover, others: set[Life]) -> list[Peer]:
        """Who else can say what has become of the commit, where streams lead to few nodes besides source and target."""
        peers = [self._peer(node) for node in self._context.scheduler.open_lanes() if node != handover.peer.node]
        new = [peer for peer in peers if peer is not None and peer.life not in others]
        return new[: max(0, _THIRD_PARTIES - len(others))]

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
                self._table.say(handover, "precopied")
            else:
                self._table.say(handover, "precopied")
                self._freeze(handover)
        elif handover.phase is Phase.TRANSFER:
            handover.phase = Phase.COMMITTING
            self._table.say(handover, "commit-sent")
            body = frames.text(handover.endpoint)
            self._table.repeat(handover, FrameType.COMMIT, body, now, offset=stream.send.next_offset)

    def send_commit(self, handover: Handover) -> None:
        """Ask the target once more."""
        assert isinstance(handover.stream, Outbound)
        self._context.control(
            handover.peer.node,
            FrameType.COMMIT,
            frames.text(handover.endpoint),
            handover=handover.id,
            epoch=handover.epoch,
            destination=handover.epoch + 1,
            offset=handover.stream.send.next_offset,
        )

    def _want_regions(self, handover: Handover) -> None:
        handover.final = -1
        handover.rounds += 1
        self._context.emit(RegionsWanted(handover.id, handover.endpoint))

    def _freeze(self, handover: Handover) -> None:
        handover.phase = Phase.FREEZING
        self._moving.freeze(self._routing.owned[handover.endpoint])
        self._table.say(handover, "frozen")
        self._context.emit(FreezeRequested(handover.endpoint, handover.id))

    def _transfer_progressed(self, stream: Outbound, now: int) -> None:
        handover = self._table.all.get(stream.route.stream)
        if handover is not None:
            self._advance(handover, now)

    def _transfer_refused(self, stream: Outbound, now: int) -> None:
        handover = self._table.all.get(stream.route.stream)
        if handover is not None and handover.phase not in (Phase.COMMITTING, Phase.DOUBT):
            self.abort(handover, f"{handover.peer.node} has given the handover up", now)

    def prepared(self, handover: Handover, now: int) -> None:
        if handover.phase is not Phase.PREPARING:
            return
        self._table.settle(handover, FrameType.PREPARE)
        out = Outbound(transfer_route(handover), SendStream(), handover.epoch, self._context.config)
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
        self._table.say(handover, "prepared")
        endpoint = self._routing.owned[handover.endpoint]
        streams = list(endpoint.outbound.values()), list(endpoint.inbound.values())
        self._flow.write(handover.id, encode_peers(*streams, self._context.locators), now)
        self._want_regions(handover)

    def committed(self, handover: Handover, now: int) -> None:
        if handover.phase not in (Phase.COMMITTING, Phase.DOUBT):
            return
        self._table.settle(handover, FrameType.COMMIT)
        self._table.say(handover, "committed")
        endpoint = self._routing.owned[handover.endpoint]
        self._moving.release(endpoint)
        self._routing.disown(endpoint, "handover")
        self._routing.learn(endpoint.binding(handover.peer)._replace(epoch=handover.epoch + 1), "handover", now)
        self._table.end(handover, True)
        self._table.say(handover, "completed")
        self._table.repeat(handover, FrameType.RELEASE, b"", now)
        self.on_committed(handover, now)

    def abort(self, handover: Handover, text: str, now: int, tell: bool = True) -> None:
        """The source serves on. Only ever called with COMMIT not sent, or proof that it was not accepted."""
        for kind in (FrameType.PREPARE, FrameType.COMMIT):
            self._table.settle(handover, kind)
        if tell:
            self._table.repeat(handover, FrameType.ABORT, frames.text(text, 2), now, most=10)
        self._table.end(handover, False)
        self._table.say(handover, "aborted", text)
        endpoint = self._routing.owned.get(handover.endpoint)
        if endpoint is None or endpoint.handover != handover.id:
            return
        if endpoint.frozen:
            self._moving.thaw(endpoint, now)
            self._context.emit(EndpointThawed(endpoint.name, endpoint.epoch, handover.id))
        endpoint.handover = None

    def resume(self, handover: Handover, given_up: list[Outbound | Inbound], text: str, now: int) -> None:
        """The target has served nobody and never will: go on here, but without the streams for which nobody could
        say so.
        """
        endpoint = self._routing.owned[handover.endpoint]
        self._table.repeat(handover, FrameType.ABORT, frames.text("the source goes on", 2), now, most=10)
        self._table.end(handover, False)
        self._table.say(handover, "aborted", "its target never served")
        self._moving.renew(endpoint, handover.id, now)
        for stream in given_up:
            self._endings.give_up(stream, ResetCause.HANDOVER_IN_DOUBT, text, now)
        self._moving.thaw(endpoint, now)
        self._context.emit(EndpointThawed(endpoint.name, endpoint.epoch, handover.id))
        nodes = [handover.peer.node, *self._context.scheduler.open_lanes()]
        self._routing.announce(endpoint.binding(self._context.me), nodes, now)

    def fenced(self, endpoint: Endpoint, now: int) -> None:
        """A newer owner of an endpoint that was being moved from here: the handover is void."""
        handover = self._table.all.get(endpoint.handover) if endpoint.handover is not None else None
        if handover is None:
            return
        if handover.phase in (Phase.COMMITTING, Phase.DOUBT):
            self.committed(handover, now)
        else:
            endpoint.handover = None
            self.abort(handover, "fenced by a newer owner", now)


def _nobody(*_: object) -> None:
    """Until somebody listens."""
