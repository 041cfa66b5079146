"""A world in memory and in virtual time, for faults that are tested without a network.

It does what a world promises: impairments are there when ``impair`` returns, processes are gone when ``wait_exit``
does.
"""

from __future__ import annotations

import asyncio
import selectors
import signal as signals
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from faults.impairment import Impairment
from faults.world import Event, TargetGone


class _Jump(selectors.SelectSelector):
    """Never waits: moves the clock on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits for something that nobody will do")
        self.now += max(0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everybody waits, and then at once."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def in_virtual_time(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


class MemoryWorld:
    """Nodes w0 to w4 running and w5 not, each on a link ``wN--s0``; stages on w1 to w3."""

    def __init__(self) -> None:
        self.alive = {f"w{number}": True for number in range(5)} | {"w5": False}
        self.stopped: set[str] = set()
        self.owners = {"source": "w0", "sink": "w0", "stage-1": "w1", "stage-2": "w2", "stage-3": "w3"}
        self.declared = Impairment(delay=100_000)
        self.lines: dict[tuple[str, str], Impairment] = {}
        self.blocked: dict[str, list[tuple[str, str]]] = {}
        self.events: list[tuple[float, str, dict[str, Any]]] = []
        self.refuse: str | None = None
        self.move_takes = 0.01
        self.moving = 0
        self.most_moving = 0
        self._waiting: list[tuple[Mapping[str, Any], asyncio.Future[Event]]] = []

    def happen(self, **event: Any) -> None:
        for match, future in self._waiting:
            if not future.done() and all(event.get(name) == value for name, value in match.items()):
                future.set_result(event)

    def line(self, link: str, direction: str) -> Impairment:
        return self.lines.get((link, direction), self.declared)

    def named(self, event: str) -> list[dict[str, Any]]:
        return [fields for _, name, fields in self.events if name == event]

    def now(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    def nodes(self) -> Sequence[str]:
        return sorted(self.alive)

    def running(self) -> Sequence[str]:
        return sorted(name for name, alive in self.alive.items() if alive)

    def group(self, name: str) -> Sequence[str]:
        return self.nodes()

    def endpoints(self) -> Mapping[str, str]:
        return self.owners

    async def impair(self, link: str, direction: str, changes: Mapping[str, int | float | bool]) -> None:
        self.lines[link, direction] = self.line(link, direction).merge(dict(changes))

    async def restore(self, link: str, direction: str, fields: Sequence[str]) -> None:
        await self.impair(link, direction, {name: getattr(self.declared, name) for name in fields})

    async def block(self, name: str, pairs: Sequence[tuple[str, str]]) -> None:
        self.blocked[name] = list(pairs)

    async def unblock(self, name: str) -> None:
        del self.blocked[name]

    async def signal(self, node: str, signal: int) -> None:
        if not self.alive[node]:
            raise TargetGone(f"{node} is not running")
        if signal == signals.SIGSTOP:
            self.stopped.add(node)
        elif signal == signals.SIGCONT:
            self.stopped.discard(node)
        else:
            self.alive[node] = False
            self.stopped.discard(node)
            self.owners = {endpoint: owner for endpoint, owner in self.owners.items() if owner != node}

    async def start(self, node: str) -> None:
        assert not self.alive[node]
        await asyncio.sleep(0.05)
        self.alive[node] = True

    async def wait_exit(self, node: str, timeout: int) -> None:
        assert not self.alive[node]

    async def command(self, node: str, request: Mapping[str, Any], timeout: int) -> Mapping[str, Any]:
        if not self.alive[node]:
            raise TargetGone(f"{node} is not running")
        self.moving += 1
        self.most_moving = max(self.most_moving, self.moving)
        await asyncio.sleep(self.move_takes)
        self.moving -= 1
        if not self.alive[node]:
            raise TargetGone(f"{node} ended")
        if self.refuse:
            return {"ok": False, "error": self.refuse}
        if request["do"] == "migrate":
            self.owners[request["endpoint"]] = request["to"]
        elif request["do"] == "leave":
            self.alive[node] = False
        return {"ok": True}

    async def wait_event(self, match: Mapping[str, Any]) -> Event:
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        entry = (match, future)
        self._waiting.append(entry)
        try:
            return await future
        finally:
            self._waiting.remove(entry)

    def record(self, event: str, **fields: Any) -> None:
        self.events.append((round(asyncio.get_running_loop().time() - 100, 6), event, fields))
