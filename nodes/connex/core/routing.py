"""Where every endpoint is: learning bindings, telling them, asking for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from connex.core import frames
from connex.core.binding import Binding, BindingTable, newer
from connex.core.context import Context
from connex.core.endpoint import Endpoint
from connex.core.errors import LimitExceeded
from connex.core.events import BindingLearned, EndpointHosted, EndpointReleased, EndpointResumed, FenceChanged
from connex.core.frames import BodyReader, Flag, Frame, FrameType
from connex.core.identity import EndpointName, HandoverId, Life, NodeName


class Promise(NamedTuple):
    """Not to follow an endpoint to ``epoch``, until ``to`` says how its doubt has ended (``fence.py``)."""

    epoch: int
    to: Life


class Routing:
    """The endpoints owned here and the newest binding known of all others."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._me = context.me
        self.table = BindingTable()
        self.owned: dict[EndpointName, Endpoint] = {}
        self.promised: dict[EndpointName, Promise] = {}
        self.broken: dict[EndpointName, int] = {}
        """Epochs that this node follows although it had promised not to: its source was taken for dead meanwhile."""
        self.on_learned: Callable[[Binding, int], None] = _nobody
        self.on_fenced: Callable[[Endpoint, int], None] = _nobody
        self.on_seen: Callable[[Binding, NodeName, int], None] = _nobody
        """A node has said that it knows this binding."""
        self.on_broken: Callable[[Binding, NodeName, int], None] = _nobody
        """It has said so, but had promised a source in doubt that it would not."""

    def own(self, name: EndpointName, epoch: int, cause: str, now: int) -> Endpoint:
        """Own the endpoint under ``epoch``; streams of this node that lead to it turn inwards. Raises LimitExceeded."""
        if len(self.owned) >= self._context.config.endpoints:
            raise LimitExceeded(
                f"host {name}: this node already hosts {len(self.owned)} endpoints, the limit of the configuration"
            )
        endpoint = self.owned[name] = Endpoint(name, epoch)
        self.table.learn(endpoint.binding(self._me))
        self._context.emit(EndpointHosted(name, epoch, cause))
        self.on_learned(endpoint.binding(self._me), now)
        return endpoint

    def disown(self, endpoint: Endpoint, cause: str) -> None:
        del self.owned[endpoint.name]
        self._context.emit(EndpointReleased(endpoint.name, endpoint.epoch, cause))

    def renew(self, endpoint: Endpoint, epoch: int, handover: HandoverId, now: int) -> None:
        """Own on under a later epoch, which nobody else can have been given."""
        endpoint.epoch = epoch
        binding = endpoint.binding(self._me)
        self.table.learn(binding)
        self._context.emit(EndpointResumed(endpoint.name, epoch, handover))
        self.on_learned(binding, now)

    def promise(self, endpoint: EndpointName, promise: Promise) -> bool:
        """Keep the promise, unless a later epoch is promised already or there are too many; says whether it holds."""
        kept = self.promised.get(endpoint)
        if kept is not None and kept.epoch > promise.epoch:
            return False
        if kept is None and len(self.promised) >= self._context.config.bindings:
            return False
        if kept != promise:
            self.promised[endpoint] = promise
            self._context.emit(FenceChanged(endpoint, promise.epoch, promise.to.node, "promised"))
        return True

    def told(self, node: NodeName, binding: Binding) -> None:
        """``node`` speaks of an endpoint: if something was promised to it, it says by that how its doubt has ended."""
        promise = self.promised.get(binding.endpoint)
        if promise is not None and promise.to.node == node and binding.epoch >= promise.epoch:
            self._lift(binding.endpoint, promise)

    def _lift(self, endpoint: EndpointName, promise: Promise) -> None:
        del self.promised[endpoint]
        self._context.emit(FenceChanged(endpoint, promise.epoch, promise.to.node, "lifted"))

    def _held_to_promise(self, binding: Binding) -> bool:
        """Whether a promise forbids to follow this binding; then its source is asked how the doubt has ended."""
        promise = self.promised.get(binding.endpoint)
        if promise is None or binding.epoch < promise.epoch:
            return False
        if binding.epoch > promise.epoch:
            self._lift(binding.endpoint, promise)
            return False
        self._context.control(promise.to.node, FrameType.RESOLVE, frames.text(binding.endpoint))
        return True

    def learn(self, binding: Binding, via: str, now: int) -> bool:
        """Take what somebody says of an endpoint; says whether it was new. A newer owner of what is owned here fences
        this node.
        """
        if not binding.epoch:
            return False
        if not newer(binding, self.table.get(binding.endpoint)) or self._held_to_promise(binding):
            return False
        endpoint = self.owned.get(binding.endpoint)
        if endpoint is not None:
            self.on_fenced(endpoint, now)
            if endpoint.name in self.owned:
                self.disown(endpoint, "fenced")
        if len(self.table) >= self._context.config.bindings and self.table.get(binding.endpoint) is None:
            return False
        if not self.table.learn(binding):
            return False
        if binding.node != self._me.node and binding.node and binding.locator:
            self._context.locators[binding.node] = binding.locator
        self._context.emit(BindingLearned(binding.endpoint, binding.epoch, binding.node, binding.incarnation, via))
        self._context.settle("resolve", binding.endpoint, "")
        self.on_learned(binding, now)
        return True

    def announce(self, binding: Binding, nodes: Iterable[NodeName], now: int) -> None:
        """Tell the binding to these nodes until each knows it."""
        body = frames.binding(binding)
        for node in sorted(set(nodes) - {self._me.node, ""}):
            self._context.repeat("announce", binding.endpoint, node, self._announcer(node, binding, body), now)

    def _announcer(self, node: NodeName, binding: Binding, body: bytes) -> Callable[[int], None]:
        def send(now: int) -> None:
            if self.table.get(binding.endpoint) != binding:
                self._context.settle("announce", binding.endpoint, node)
                return
            self._context.control(node, FrameType.ANNOUNCE, body, epoch=binding.epoch)

        return send

    def receive_announce(self, node: NodeName, frame: Frame, now: int) -> None:
        body = BodyReader(frame.payload)
        binding = body.binding()
        body.finish()
        self.told(node, binding)
        self.learn(binding, "announce", now)
        known = self.table.get(binding.endpoint) or Binding(binding.endpoint, 0, "", 0, "")
        if frame.flags & Flag.REPLY:
            knows = known[:4] == binding[:4]
            if knows or not binding.epoch:
                self._context.settle("announce", binding.endpoint, node)
            if knows and binding.epoch:
                (self.on_broken if frame.message else self.on_seen)(binding, node, now)
            return
        broken = int(bool(known.epoch) and self.broken.get(binding.endpoint) == known.epoch)
        self._context.control(
            node, FrameType.ANNOUNCE, frames.binding(known), flags=Flag.REPLY, epoch=known.epoch, message=broken
        )

    def resolve(self, endpoint: EndpointName, now: int) -> None:
        """Ask all nodes that can be reached where the endpoint is, until somebody knows."""
        body = frames.text(endpoint)

        def ask(now: int) -> None:
            for node in self._context.scheduler.open_lanes():
                self._context.control(node, FrameType.RESOLVE, body)

        self._context.repeat("resolve", endpoint, "", ask, now, most=12)

    def receive_resolve(self, node: NodeName, frame: Frame, now: int) -> None:
        body = BodyReader(frame.payload)
        known = self.table.get(body.text())
        body.finish()
        if known is not None:
            self._context.control(node, FrameType.ANNOUNCE, frames.binding(known), flags=Flag.REPLY, epoch=known.epoch)


def _nobody(*_: object) -> None:
    """Until somebody listens."""
