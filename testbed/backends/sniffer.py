"""Captures at the nodes' own interfaces, independent of the wire: what the node's kernel says it sent and
received."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from testbed.backends.wire_child import Child, ChildFailed
from testbed.backends.wire_stats import CaptureStats
from testbed.deadline import SECOND
from testbed.network.spec import Port

STOP_DEADLINE = 60 * SECOND


class SnifferFailed(ChildFailed):
    """The process that captures has ended: the captures are incomplete."""


class Point(NamedTuple):
    """Where to capture, and into which file."""

    netns_fd: int
    interface: str
    path: Path


class Sniffer:
    """A running capture at any number of interfaces. Its end, unless ``stop`` asked for it, sets
    ``failed``."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._final: dict[Port, CaptureStats] | None = None

    @classmethod
    async def start(cls, points: Mapping[Port, Point], *, log: Path) -> Sniffer:
        """Start the process and return when every frame from now on is captured. Raises CannotRun where it
        cannot."""
        # A descriptor is handed on once, even if several interfaces are in one namespace.
        fds = sorted({point.netns_fd for point in points.values()})
        setup = {
            "points": [
                {
                    "port": port,
                    "netns_fd": point.netns_fd,
                    "interface": point.interface,
                    "path": str(point.path.absolute()),
                }
                for port, point in points.items()
            ]
        }
        child = await Child.start(
            "testbed.backends.sniffer_process",
            setup,
            fds,
            name="the capture process",
            failure=SnifferFailed,
            meaning="captures are incomplete",
            log=log,
        )
        return cls(child)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def failed(self) -> asyncio.Future[None]:
        """Done, with SnifferFailed, once the process has died."""
        return self._child.failed

    async def stats(self) -> dict[Port, CaptureStats]:
        """What has been captured, per port; after ``stop``, what it was at the end."""
        return self._final or _stats(await self._child.ask("stats"))

    async def stop(self) -> dict[Port, CaptureStats]:
        """Write down every frame seen so far, complete the files, end the process. May be called again."""
        if self._final is None:
            self._final = _stats(await self._child.stop(STOP_DEADLINE))
        return self._final

    async def kill(self) -> None:
        """End the process without any of ``stop``'s care. Captures end where they are. May be called at any
        time."""
        await self._child.kill()


def _stats(answer: dict[str, Any]) -> dict[Port, CaptureStats]:
    return {port: CaptureStats(**counters) for port, counters in answer["captures"].items()}
