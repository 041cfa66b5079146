"""A handover in doubt, at its source: COMMIT is out, and its target does not answer.

The source asks the target again, and every peer that the target would serve (``fence.py``). One that has seen the new
epoch proves that the target has committed. A promise of every living one proves that the target has served nobody and
never will: the endpoint goes on at the source, under an epoch after the one in doubt. Peers that cannot be reached are
given up by resetting their streams (trap (c) of the design). Until one of the two the endpoint stays frozen.
"""

from __future__ import annotations

from connex.core import frames
from connex.core.context import Context
from connex.core.departure import Departures
from connex.core.endpoint import Inbound, Outbound
from connex.core.fence import SEEN, Fences, read_answer
from connex.core.frames import Frame, FrameType
from connex.core.handover import Handover, HandoverTable, Phase
from connex.core.identity import EndpointName, HandoverId, Life, NodeName
from connex.core.membership import Membership, Standing
from connex.core.routing import Routing
from connex.core.timers import Key

_ENDS_PER_FRAME = 16
"""So that the answer, with up to two bindings for each end, fits into a control frame."""


class Doubts:
    """Asks, counts promises, and concludes."""

    def __init__(
        self,
        context: Context,
        routing: Routing,
        table: HandoverTable,
        source: Departures,
        fences: Fences,
        membership: Membership,
    ) -> None:
        self._context = context
        self._routing = routing
        self._table = table
        self._source = source
        self._fences = fences
        self._membership = membership
        self._promises: dict[HandoverId, dict[Life, set[int]]] = {}
        """By life, the questions that it has answered with a promise."""
        context.on_alarm("doubt", self._ask_again)

    def enter(self, handover: Handover, text: str, now: int) -> None:
        handover.phase = Phase.DOUBT
        self._routing.owned[handover.endpoint].in_doubt = True
        self._table.settle(handover, FrameType.COMMIT)
        self._table.say(handover, "doubt", text)
        self._promises[handover.id] = {}
        self._ask(handover, now)

    def _ask_again(self, key: Key, now: int) -> None:
        assert isinstance(key[1], int)
        handover = self._table.all.get(key[1])
        if handover is None or handover.phase is not Phase.DOUBT:
            self._promises.pop(key[1], None)
            return
        self._ask(handover, now)

    def _ask(self, handover: Handover, now: int) -> None:
        self._context.timers.set(("doubt", handover.id, ""), now + self._context.config.dead_after // 8)
        self._source.send_commit(handover)
        self._find_ends(handover)
        for life, ends in sorted(self._ends_by_life(handover).items()):
            answered = self._promises[handover.id].get(life, set())
            for number, names in enumerate(ends):
                # Silent ones, too: somebody who is back may have no reason of its own to open a channel.
                if number not in answered and self._membership.standing(life) is not Standing.OVER:
                    body = frames.text(handover.endpoint) + frames.number(len(names), 2)
                    body += b"".join(frames.text(name) for name in names)
                    self._context.control(
                        life.node,
                        FrameType.FENCE,
                        body,
                        handover=handover.id,
                        epoch=handover.epoch,
                        destination=handover.epoch + 1,
                        message=number,
                    )
        self._conclude(handover, now)

    def _find_ends(self, handover: Handover) -> None:
        """Streams whose other end has moved since STATE was written have one more life that must say."""
        endpoint = self._routing.owned[handover.endpoint]
        for stream in endpoint.streams():
            lives = handover.ends.setdefault(stream.route.stream, set())
            lives.add(stream.other)
            end = _other_end(stream, endpoint.name)
            lives |= {binding.life for binding in self._fences.whereabouts(end) if binding.node}

    def _ends_by_life(self, handover: Handover) -> dict[Life, list[list[EndpointName]]]:
        """Whom to ask, and about which ends of streams: in portions that are questions of their own."""
        endpoint = self._routing.owned[handover.endpoint]
        names: dict[Life, dict[EndpointName, None]] = {}
        for stream, lives in handover.ends.items():
            one = endpoint.outbound.get(stream) or endpoint.inbound.get(stream)
            for life in lives:
                if life.node and life != self._context.me.life:
                    ends = names.setdefault(life, {})
                    if one is not None:
                        ends[_other_end(one, endpoint.name)] = None
        for life in handover.named - {self._context.me.life}:
            names.setdefault(life, {})
        return {
            life: [list(ends)[start : start + _ENDS_PER_FRAME] for start in range(0, len(ends) or 1, _ENDS_PER_FRAME)]
            for life, ends in names.items()
        }

    def answered(self, node: NodeName, frame: Frame, now: int) -> None:
        """A peer has seen the new epoch, or promises."""
        answer = read_answer(frame)
        handover = self._table.all.get(frame.stream)
        peer = self._membership.peer(node)
        if (
            handover is None
            or handover.phase is not Phase.DOUBT
            or peer is None
            or answer.endpoint != handover.endpoint
        ):
            return
        if answer.answer == SEEN:
            # Learning it fences this node, and by that concludes.
            self._routing.learn(answer.known, "fence", now)
            return
        endpoint = self._routing.owned[handover.endpoint]
        for binding in answer.elsewhere:
            for stream in endpoint.streams():
                if binding.endpoint in (stream.route.sender, stream.route.receiver) and binding.node:
                    handover.ends.setdefault(stream.route.stream, set()).add(binding.life)
        self._promises[handover.id].setdefault(peer.life, set()).add(frame.message)
        self._conclude(handover, now)

    def _conclude(self, handover: Handover, now: int) -> None:
        """Go on here if that is proven to be right; else wait."""
        self._find_ends(handover)
        asked = self._ends_by_life(handover)
        promises = self._promises[handover.id]
        standing = {life: self._membership.standing(life) for life in asked}
        there = {life for life in asked if standing[life] is Standing.THERE}
        if any(not set(range(len(asked[life]))) <= promises.get(life, set()) for life in there):
            return
        over = all(self._membership.standing(life) is Standing.OVER for life in {handover.peer.life, *asked})
        if asked and not there & handover.named and not over:
            # Nobody is left who could tell whether it is the target that is cut off, or this node.
            return
        silent = asked.keys() - there
        endpoint = self._routing.owned[handover.endpoint]
        given_up = [
            stream for stream in endpoint.streams() if silent & handover.ends.get(stream.route.stream, frozenset())
        ]
        self._promises.pop(handover.id)
        names = ", ".join(sorted(life.node for life in silent))
        text = f"{endpoint.name} could not ask {names} whether its handover was committed"
        self._source.resume(handover, given_up, text, now)
        self._routing.announce(endpoint.binding(self._context.me), [life.node for life in asked], now)

    def over(self, handover: Handover, now: int) -> None:
        """The target has committed: tell everybody who was asked, so that they may follow."""
        known = self._routing.table.get(handover.endpoint)
        lives = handover.named.union(*handover.ends.values())
        if self._promises.pop(handover.id, None) is not None and known is not None:
            self._routing.announce(known, [life.node for life in lives], now)


def _other_end(stream: Outbound | Inbound, endpoint: EndpointName) -> EndpointName:
    return stream.route.receiver if stream.route.sender == endpoint else stream.route.sender
