"""What the nodes say while they run: who owns which endpoint, what happened how often, what is waited for."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]

_BULK = b'"message.'
_PREFIX = 160
"""Bytes of a line in which its event's name is looked for, before the line is parsed."""


class Observer:
    """Takes journal records as they come. The verdict needs nothing of this: it is read from the journals."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[int, str]] = {}
        self._waiting: list[_Wait] = []
        self._bulk_wanted = 0
        self.counts: Counter[str] = Counter()
        """Events seen, by name. The per-message ones are not counted: they are too many to look at live."""

    @property
    def owners(self) -> Mapping[str, str]:
        """Endpoint -> node that owns it, by the newest epoch seen."""
        return {endpoint: node for endpoint, (_, node) in sorted(self._owners.items())}

    def take_line(self, node: str, line: bytes) -> None:
        """One line ``{"journal": {...}}`` as it came from ``node``."""
        if not self._bulk_wanted and _BULK in line[:_PREFIX]:
            return
        record = json.loads(line)["journal"]
        self.take({"node": node, **record})

    def take(self, event: Event) -> None:
        name = event["event"]
        self.counts[name] += 1
        if name == "endpoint.hosted":
            self.owns(event["endpoint"], event["epoch"], event["node"])
        elif name == "endpoint.released" and event["cause"] in (
            "ended",
            "left",
        ):  # otherwise somebody else has it
            self._forget(event["endpoint"], event["epoch"], event["node"])
        for one in self._waiting:
            one.see(event)

    def owns(self, endpoint: str, epoch: int, node: str) -> None:
        """Learn that ``node`` owns the endpoint under this epoch."""
        if epoch >= self._owners.get(endpoint, (0, ""))[0]:
            self._owners[endpoint] = (epoch, node)

    def _forget(self, endpoint: str, epoch: int, node: str) -> None:
        if self._owners.get(endpoint) == (epoch, node):
            del self._owners[endpoint]

    async def wait(self, match: Event, count: int = 1) -> Event:
        """The next event in which all given fields have the given values, or the how manieth from now on. The caller
        sets the deadline.
        """
        one = _Wait(match, count)
        bulk = str(match.get("event", "message.")).startswith("message.")
        self._waiting.append(one)
        self._bulk_wanted += bulk
        try:
            return await one.found
        finally:
            self._waiting.remove(one)
            self._bulk_wanted -= bulk


class _Wait:
    """Somebody who waits for an event. Counts here, since several may come before the waiting task runs again."""

    def __init__(self, match: Event, count: int) -> None:
        self._match = match
        self._left = count
        self.found: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    def see(self, event: Event) -> None:
        if all(event.get(field) == value for field, value in self._match.items()):
            self._left -= 1
            if self._left == 0 and not self.found.done():
                self.found.set_result(event)
