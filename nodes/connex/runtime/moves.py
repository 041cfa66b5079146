"""Handovers as applications see them: an awaitable at the source, an arriving application at the target."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from inspect import isawaitable
from typing import Any, NamedTuple

from connex.core import events
from connex.core.errors import HandoverFailed, LimitExceeded, LocalProtocolError
from connex.core.identity import EndpointName, HandoverId, NodeName
from connex.runtime.endpoint import Endpoint
from connex.runtime.engine import Engine
from connex.runtime.errors import NodeClosed
from connex.runtime.hosting import Hosting
from connex.runtime.region import Budget, StateRegion
from connex.runtime.transfer import RegionTransfer

_log = logging.getLogger("connex")

Factory = Callable[[Endpoint], Any]
"""Makes the application object of an endpoint that has arrived, from its regions; may be a coroutine function."""


class Handover(NamedTuple):
    """A planned handover that has completed."""

    id: HandoverId
    endpoint: EndpointName
    epoch: int
    """The epoch under which the target owns the endpoint."""
    target: NodeName


class _Departure:
    """A handover from here."""

    def __init__(
        self, endpoint: Endpoint, target: NodeName, transfer: RegionTransfer, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.endpoint = endpoint
        self.target = target
        self.transfer = transfer
        self.prepared: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self.freezing: asyncio.Task[None] | None = None

    def settle(self, error: Exception | None) -> None:
        for future in (self.prepared, self.done):
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                # Nobody needs to wait for both.
                future.exception()


class _Arrival:
    """A handover to here that is not committed yet: the regions so far."""

    def __init__(self, endpoint: EndpointName, budget: Budget) -> None:
        self.endpoint = endpoint
        self.budget = budget
        self.regions: dict[str, StateRegion] = {}


class Arrivals:
    """Which endpoints may come here, and what makes their applications."""

    def __init__(self) -> None:
        self._factories: list[tuple[str, Factory]] = []

    def add(self, pattern: str, factory: Factory) -> None:
        """Accept endpoints whose name fits the pattern; the first pattern that fits decides."""
        self._factories.append((pattern, factory))

    def refusal(self, node: NodeName, endpoint: EndpointName) -> str | None:
        """Why an endpoint may not come to the node; None if it may."""
        if self.factory(endpoint) is not None:
            return None
        patterns = ", ".join(pattern for pattern, _ in self._factories) or "none"
        return f"{node} takes no endpoint named {endpoint}; it takes: {patterns}"

    def factory(self, endpoint: EndpointName) -> Factory | None:
        """What makes the application of an endpoint of that name."""
        return next((factory for pattern, factory in self._factories if fnmatchcase(endpoint, pattern)), None)


class Moves:
    """All handovers that this node takes part in."""

    def __init__(self, engine: Engine, hosting: Hosting, accepted: Arrivals) -> None:
        self._engine = engine
        self._hosting = hosting
        self._accepted = accepted
        self._departures: dict[HandoverId, _Departure] = {}
        self._arrivals: dict[HandoverId, _Arrival] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Source

    def begin(self, name: EndpointName, target: NodeName, hold: bool) -> HandoverId:
        """Begin a handover; raises HandoverFailed at once if that cannot be."""
        engine = self._engine
        endpoint = self._hosting.endpoints.get(name)
        now = engine.now()
        size = sum(len(region) for region in endpoint.regions.values()) if endpoint is not None else 0
        try:
            handover = engine.core.begin_handover(name, target, size, hold, now)
        except LocalProtocolError as error:
            raise HandoverFailed(str(error)) from error
        assert endpoint is not None
        transfer = RegionTransfer(engine, handover, endpoint)
        self._departures[handover] = _Departure(endpoint, target, transfer, engine.loop)
        engine.touched(now)
        return handover

    async def prepared(self, handover: HandoverId) -> None:
        """Wait until a handover begun with ``hold`` has moved its regions and waits for ``execute``. Raises
        HandoverFailed.
        """
        await self._wait(handover, self._departure(handover).prepared, None)

    async def completed(self, handover: HandoverId, timeout_s: float | None) -> Handover:
        """Wait until the target serves. Raises HandoverFailed.

        After ``timeout_s``, or if the wait is cancelled, the handover is given up, unless its commit is out.
        """
        departure = self._departure(handover)
        epoch = departure.endpoint.epoch + 1
        await self._wait(handover, departure.done, timeout_s)
        return Handover(handover, departure.endpoint.name, epoch, departure.target)

    async def _wait(self, handover: HandoverId, future: asyncio.Future[None], timeout_s: float | None) -> None:
        try:
            await asyncio.wait([future], timeout=timeout_s)
            if not future.done():
                self.cancel_if_possible(handover, f"not complete after {timeout_s} s")
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.done():
                self.cancel_if_possible(handover, "cancelled by the application")
            raise

    def execute(self, handover: HandoverId) -> None:
        """Go on with a handover that was prepared. Raises HandoverFailed."""
        self._command(handover, lambda now: self._engine.core.execute(handover, now))

    def cancel(self, handover: HandoverId, text: str) -> None:
        """Give a handover up before its commit. Raises HandoverFailed if that is too late."""
        self._command(handover, lambda now: self._engine.core.cancel(handover, text, now))

    def _command(self, handover: HandoverId, command: Callable[[int], None]) -> None:
        self._departure(handover)
        now = self._engine.now()
        try:
            command(now)
        except LocalProtocolError as error:
            raise HandoverFailed(str(error)) from error
        self._engine.touched(now)

    def cancel_if_possible(self, handover: HandoverId, text: str) -> None:
        """Give a handover up unless it is over or its commit is out: then the two nodes settle how it ends."""
        if handover in self._departures:
            try:
                self.cancel(handover, text)
            except HandoverFailed as error:
                _log.info("%s", error)

    def _departure(self, handover: HandoverId) -> _Departure:
        departure = self._departures.get(handover)
        if departure is None:
            under_way = ", ".join(f"{one:016x}" for one in self._departures) or "none"
            raise HandoverFailed(f"handover {handover:016x} is not under way from here; under way: {under_way}")
        return departure

    # Events

    def changed(self, event: events.HandoverChanged) -> None:
        if event.side == "target":
            self._arrival_changed(event)
            return
        departure = self._departures.get(event.handover)
        if departure is None:
            return
        if event.step == "precopied" and not departure.prepared.done():
            departure.prepared.set_result(None)
        elif event.step == "completed":
            self._depart(event.handover, None)
        elif event.step == "aborted":
            text = f"handover of {event.endpoint} to {event.peer} aborted; the endpoint goes on here: {event.cause}"
            self._depart(event.handover, HandoverFailed(text))

    def _depart(self, handover: HandoverId, error: Exception | None) -> None:
        departure = self._departures.pop(handover)
        departure.transfer.close()
        if departure.freezing is not None:
            departure.freezing.cancel()
        departure.settle(error)

    def regions_wanted(self, event: events.RegionsWanted) -> None:
        departure = self._departures.get(event.handover)
        if departure is not None:
            departure.transfer.begin_round()

    def space(self, event: events.SendSpace) -> bool:
        """There is room on a transfer; False if the stream is none."""
        departure = self._departures.get(event.stream)
        if departure is None:
            return False
        departure.transfer.advance()
        return True

    def freeze(self, event: events.FreezeRequested) -> None:
        departure = self._departures[event.handover]
        endpoint = departure.endpoint
        endpoint.frozen = True
        hook = endpoint.freeze_hook
        try:
            waiting = hook() if hook is not None else None
        except Exception as error:  # noqa: BLE001 - the application's; it fails the handover and nothing else
            self._freeze_failed(event, error)
            return
        if waiting is None:
            departure.transfer.finish()
            return
        departure.freezing = self._start(self._freeze(event, departure, waiting))

    async def _freeze(self, event: events.FreezeRequested, departure: _Departure, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except Exception as error:  # noqa: BLE001 - the application's; it fails the handover and nothing else
            departure.freezing = None
            self._freeze_failed(event, error)
            return
        departure.freezing = None
        if event.handover in self._departures:
            departure.transfer.finish()

    def _freeze_failed(self, event: events.FreezeRequested, error: Exception) -> None:
        self._engine.report(f"on_freeze of endpoint {event.endpoint}", error)
        self.cancel_if_possible(event.handover, f"on_freeze of {event.endpoint} raised {type(error).__name__}: {error}")

    def thaw(self, event: events.EndpointThawed) -> None:
        endpoint = self._hosting.endpoints.get(event.endpoint)
        if endpoint is None:
            return
        endpoint.thaw()
        if endpoint.thaw_hook is not None:
            result = endpoint.thaw_hook()
            if isawaitable(result):
                self._start(self._guarded(f"on_thaw of endpoint {endpoint.name}", result))

    def region_received(self, event: events.RegionReceived) -> None:
        arrival = self._arrivals.get(event.handover)
        if arrival is None:
            return
        region = arrival.regions.get(event.region)
        try:
            if region is None:
                region = StateRegion(event.region, event.size, self._engine.config.block, arrival.budget)
                arrival.regions[event.region] = region
            region.restore(event.size, event.offset, event.data)
        except LimitExceeded as error:
            self._engine.core.decline(event.handover, str(error))

    def hosted(self, endpoint: Endpoint) -> None:
        """The endpoint has arrived, and its streams follow."""
        arrival = next((one for one in self._arrivals.values() if one.endpoint == endpoint.name), None)
        assert arrival is not None
        endpoint.begin_arrival(arrival.regions, arrival.budget)

    def _arrival_changed(self, event: events.HandoverChanged) -> None:
        if event.step == "prepared":
            self._arrivals[event.handover] = _Arrival(event.endpoint, Budget(self._engine.config.region))
        elif event.step == "aborted":
            self._arrivals.pop(event.handover, None)
        elif event.step == "committed":
            self._arrivals.pop(event.handover, None)
            endpoint = self._hosting.endpoints.get(event.endpoint)
            if endpoint is not None:
                self._revive(endpoint)

    def _revive(self, endpoint: Endpoint) -> None:
        """Make the application of an endpoint that has arrived, then let it have its messages."""
        factory = self._accepted.factory(endpoint.name)
        assert factory is not None
        try:
            application = factory(endpoint)
        except Exception as error:  # noqa: BLE001 - the application's; the endpoint cannot live without it
            self._stillborn(endpoint, error)
            return
        if isawaitable(application):
            self._start(self._revive_later(endpoint, application))
            return
        endpoint.application = application
        endpoint.finish_arrival()

    async def _revive_later(self, endpoint: Endpoint, application: Awaitable[Any]) -> None:
        try:
            endpoint.application = await application
        except Exception as error:  # noqa: BLE001 - the application's; the endpoint cannot live without it
            self._stillborn(endpoint, error)
            return
        endpoint.finish_arrival()

    def _stillborn(self, endpoint: Endpoint, error: Exception) -> None:
        """The commit cannot be taken back: end the endpoint, so that its streams are reset and nobody waits for it."""
        self._engine.report(f"the arrival factory of endpoint {endpoint.name}", error)
        if endpoint.released is None:
            now = self._engine.now()
            self._engine.core.end(endpoint.name, now)
            self._engine.touched(now)

    # Tasks

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._engine.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, where: str, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except Exception as error:  # noqa: BLE001 - the application's, reported and not ours to judge
            self._engine.report(where, error)

    async def close(self) -> None:
        """The node is being closed."""
        for handover in list(self._departures):
            self._depart(handover, NodeClosed(f"node {self._engine.core.me.node} was closed"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
