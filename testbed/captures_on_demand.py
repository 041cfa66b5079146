"""Captures of a topology that is up, begun and ended by ``testbed capture``."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.backends.netns import NetnsBackend
from testbed.backends.sniffer import Sniffer
from testbed.errors import TestbedError
from testbed.plan import Plan
from testbed.run_folder import RunFolder


class CapturesOnDemand:
    """One capture at a time, at the interfaces of some nodes, in a folder of its own under ``captures``."""

    def __init__(self, plan: Plan, backend: NetnsBackend, folder: RunFolder) -> None:
        self._plan = plan
        self._backend = backend
        self._folder = folder
        self._sniffer: Sniffer | None = None
        self._files: dict[str, Path] = {}

    async def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """``nodes``: their names, or nothing for all. Answers with the files."""
        if self._sniffer is not None:
            raise TestbedError("capture: one is being taken already; end it with testbed capture stop")
        nodes = request["nodes"] or sorted(self._plan.nodes)
        folder = self._folder.captures / time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        folder.mkdir(parents=True)
        self._sniffer = await self._backend.sniff(nodes, folder)
        self._files = {
            port: folder / f"{interface.node}.{interface.name}.pcapng"
            for port, interface in self._plan.interfaces.items()
            if interface.node in nodes
        }
        return {"files": [str(path) for path in self._files.values()]}

    async def stop(self, _: dict[str, Any]) -> dict[str, Any]:
        """Complete the files. Answers with what they hold."""
        if self._sniffer is None:
            raise TestbedError("capture: none is being taken; begin one with testbed capture start")
        sniffer, self._sniffer = self._sniffer, None
        counted = await sniffer.stop()
        return {"files": {str(self._files[port]): asdict(stats) for port, stats in counted.items()}}

    async def close(self) -> None:
        """Complete what was not stopped."""
        if self._sniffer is not None:
            await self.stop({})
