"""Moving the regions of an endpoint to the target of its handover: in rounds while it serves, and the rest when it is
frozen.
"""

from __future__ import annotations

import logging

from connex.core.config import MIB
from connex.core.errors import LocalProtocolError
from connex.core.identity import HandoverId
from connex.runtime.endpoint import Endpoint
from connex.runtime.engine import Engine

_log = logging.getLogger("connex")

_RECORD = 1 * MIB
"""Bytes of a region in one record of the transfer."""
_STEP = 4 * MIB
"""Bytes copied before the event loop has its turn."""
_IN_FLIGHT = 8 * MIB
"""Bytes of a round on their way at once: enough to fill the link, little enough to be overtaken."""
_ALL = 1 << 62


class RegionTransfer:
    """What one handover still has to send of the regions of its endpoint."""

    def __init__(self, engine: Engine, handover: HandoverId, endpoint: Endpoint) -> None:
        self._engine = engine
        self._handover = handover
        self._endpoint = endpoint
        self._room = max(_RECORD, engine.config.send_buffer - _IN_FLIGHT)
        self._names: list[str] = []
        """Regions that the present round has not sent yet."""
        self._position = 0
        """Where the round goes on in the first of them."""
        self._running = False
        self._over = False

    def begin_round(self) -> None:
        """Send all that has changed once, then say so to the core. Blocks that change behind the round are left for
        the next one.
        """
        self._names = list(self._endpoint.regions)
        self._position = 0
        self._running = True
        self.advance()

    def advance(self) -> None:
        """Go on with the round as far as there is room: called again when there is some."""
        if not self._running or self._over:
            return
        core = self._engine.core
        now = self._engine.now()
        try:
            sent = 0
            while self._names and sent < _STEP:
                if not core.can_send(self._handover, self._room):
                    break
                sent += self._send_next(now)
            if self._names:
                if sent >= _STEP:
                    self._engine.loop.call_soon(self.advance)
            elif core.can_send(self._handover, _ALL):
                # Everything has arrived: what is dirty now has changed since.
                self._running = False
                core.precopied(self._handover, self.dirty_bytes, now)
        except LocalProtocolError as error:
            self._given_up(error)
        self._engine.touched(now)

    def finish(self) -> None:
        """Send what is still dirty; the endpoint is frozen, so that nothing changes any more."""
        now = self._engine.now()
        self._running = False
        self._names, self._position = list(self._endpoint.regions), 0
        try:
            while self._names:
                self._send_next(now)
            self._engine.core.frozen(self._handover, now)
        except LocalProtocolError as error:
            self._given_up(error)
        self._engine.touched(now)

    @property
    def dirty_bytes(self) -> int:
        """Bytes that the target does not have as they are now."""
        return sum(region.dirty_bytes for region in self._endpoint.regions.values())

    def close(self) -> None:
        """The handover is over: stop tracking changes."""
        self._over = True
        for region in self._endpoint.regions.values():
            region.end()

    def _given_up(self, error: LocalProtocolError) -> None:
        """The core has just given the handover up; the event that says so is on its way and ends this transfer."""
        self._over = True
        _log.info("%s", error)

    def _send_next(self, now: int) -> int:
        """Send one record of the round; returns its bytes."""
        region = self._endpoint.regions[self._names[0]]
        if not region.tracked:
            region.begin()
        run = region.take_dirty(self._position, _RECORD)
        if run is None:
            del self._names[0]
            self._position = 0
            return 0
        offset, data = run
        self._engine.core.send_region(self._handover, region.name, len(region), offset, data, now)
        self._position = offset + len(data)
        return len(data)
