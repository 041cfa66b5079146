"""An endpoint that has arrived, until its source knows: which of its streams may be served already.

Until the source has acknowledged the commit it may be in doubt, ask the peers to fence, and go on itself once all have
promised. So the target serves a stream only after the stream's other end has seen the new epoch (that peer will say so
and cannot promise any more), and opens no others (trap (a) of the design).
"""

from __future__ import annotations

from collections.abc import Callable

from connex.core.binding import Binding
from connex.core.context import Context
from connex.core.endings import Endings
from connex.core.endpoint import Endpoint, Restriction
from connex.core.errors import ResetCause
from connex.core.identity import EndpointName, Life, NodeName
from connex.core.membership import Membership, Standing
from connex.core.moving import Moving
from connex.core.routing import Routing
from connex.core.timers import Key


class Witnesses:
    """Collects who has seen the new epoch of endpoints that have arrived, and ends their restriction."""

    def __init__(
        self, context: Context, routing: Routing, moving: Moving, endings: Endings, membership: Membership
    ) -> None:
        self._context = context
        self._routing = routing
        self._moving = moving
        self._endings = endings
        self._membership = membership
        self._period = context.config.dead_after // 8
        self.on_settled: Callable[[Endpoint, int], None] = _nobody
        """The endpoint is beyond doubt although its source has not said so."""
        self.on_waiting: Callable[[Endpoint], None] = _nobody
        """The source has still not said that it knows of the commit."""
        context.on_alarm("witness", self._look)

    def restrict(self, endpoint: Endpoint, source: Life, named: frozenset[Life], now: int) -> None:
        """The endpoint has just arrived from ``source``, which would ask those that are ``named``; no stream is served
        yet.
        """
        endpoint.restriction = Restriction(source, named, self._context.me.life)
        self._moving.serve(endpoint, now)
        self._context.timers.set(("witness", endpoint.name, ""), now + self._period)

    def seen(self, binding: Binding, node: NodeName, now: int) -> None:
        """``node`` knows this binding."""
        endpoint = self._routing.owned.get(binding.endpoint)
        if endpoint is not None and endpoint.epoch == binding.epoch:
            self.spoke(endpoint, node, now)

    def broken(self, binding: Binding, node: NodeName, now: int) -> None:
        """``node`` follows the present epoch, but had promised the source that it would not: what it has seen proves
        nothing, and its streams are over.
        """
        endpoint, peer = self._routing.owned.get(binding.endpoint), self._membership.peer(node)
        if endpoint is None or endpoint.epoch != binding.epoch or endpoint.restriction is None or peer is None:
            return
        for stream in [one for one in endpoint.streams() if one.other == peer.life]:
            text = f"{node} had promised the source of the handover not to follow it"
            self._endings.give_up(stream, ResetCause.HANDOVER_IN_DOUBT, text, now)

    def addressed(self, name: EndpointName, node: NodeName, now: int) -> bool:
        """``node`` has sent a frame to the endpoint under its present epoch; says whether its streams are served."""
        endpoint = self._routing.owned.get(name)
        if endpoint is None or endpoint.frozen:
            return False
        self.spoke(endpoint, node, now)
        return True

    def spoke(self, endpoint: Endpoint, node: NodeName, now: int) -> None:
        """``node`` has addressed the endpoint under its present epoch, or said that it knows it."""
        peer = self._membership.peer(node)
        if endpoint.restriction is not None and peer is not None and peer.life not in endpoint.restriction.seen:
            endpoint.restriction.seen.add(peer.life)
            self._moving.serve(endpoint, now)

    def moved(self, other_end: EndpointName, now: int) -> None:
        """An endpoint at the other end of streams has a new owner: perhaps one that has seen already."""
        for endpoint in self._routing.owned.values():
            if endpoint.restriction is not None and any(
                other_end in (stream.route.sender, stream.route.receiver) for stream in endpoint.streams()
            ):
                self._moving.serve(endpoint, now)

    def lift(self, endpoint: Endpoint, now: int) -> None:
        """Nothing is in doubt any more: serve all streams, and open new ones."""
        if endpoint.restriction is not None:
            endpoint.restriction = None
            self._context.timers.clear(("witness", endpoint.name, ""))
            self._moving.serve(endpoint, now)

    def _look(self, key: Key, now: int) -> None:
        endpoint = self._routing.owned.get(str(key[1]))
        if endpoint is None or endpoint.restriction is None:
            return
        if self._beyond_doubt(endpoint.restriction):
            self.on_settled(endpoint, now)
            return
        self._context.timers.set(key, now + self._period)
        self.on_waiting(endpoint)
        waiting = {stream.other for stream in endpoint.streams()} | endpoint.restriction.named
        waiting -= endpoint.restriction.seen
        # Silent ones, too: somebody who is back may have no reason of its own to open a channel.
        nodes = [life.node for life in waiting if self._membership.standing(life) is not Standing.OVER]
        self._routing.announce(endpoint.binding(self._context.me), nodes, now)

    def _beyond_doubt(self, restriction: Restriction) -> bool:
        """Whether the source can never come to the conclusion that the endpoint is still its own."""
        standing = self._membership.standing
        source = standing(restriction.source)
        if source is not Standing.SILENT:
            return source is Standing.OVER
        asked = restriction.named - {restriction.source}
        return bool(asked & restriction.seen) and all(
            life in restriction.seen or standing(life) is Standing.OVER for life in asked
        )


def _nobody(*_: object) -> None:
    """Until somebody listens."""
