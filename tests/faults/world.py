"""A world in memory and in virtual time, for faults that are tested without a network.

It does what a world promises: impairments are there when ``impair`` returns, processes are gone when ``wait_exit``
does. It notices whoever asks for what no world could do.
"""

from __future__ import annotations

import asyncio
import selectors
import signal as signals
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from faults.fitting import Surroundings
from faults.impairment import Impairment
from faults.world import Event, Overdue, TargetGone

START = 100.0
"""Seconds on the clock when a world's time begins."""
NAMES = [f"w{number}" for number in range(6)]
LINKS = {f"{name}--s0": (name, "s0") for name in NAMES}
AROUND = Surroundings(
    workers=NAMES, autostart=NAMES[:5], links=LINKS, groups={"left": ["w0", "w1"], "right": ["w2", "w3", "w4"]}
)


class _Jump(selectors.SelectSelector):
    """Never waits: moves the clock on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits for something that nobody will do")
        self.now += max(0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everybody waits, and then at once."""

    def __init__(self) -> None:
        self.jump = _Jump()
        super().__init__(self.jump)

    def time(self) -> float:
        return self.jump.now


def in_virtual_time(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


class MemoryWorld:
    """Nodes w0 to w4 running and w5 not, each on a link ``wN--s0``; stages on w1 to w3."""

    def __init__(self) -> None:
        self.alive = {name: name != "w5" for name in NAMES}
        self.stopped: set[str] = set()
        self.owners = {"source": "w0", "sink": "w0", "stage-1": "w1", "stage-2": "w2", "stage-3": "w3"}
        self.declared = Impairment(delay=100_000)
        self.lines: dict[tuple[str, str], Impairment] = {}
        self.blocked: dict[str, list[tuple[str, str]]] = {}
        self.events: list[tuple[float, str, dict[str, Any]]] = []
        self.done: list[str] = []
        """What was done to the world, in order."""
        self.refuse: str | None = None
        self.never_answers = False
        self.move_takes = 0.01
        self.effect_takes = 0.0
        """Seconds until an impairment, a block or a signal has its effect."""
        self.moving = 0
        self.most_moving = 0
        self._waiting: list[_Wait] = []

    @property
    def healed(self) -> bool:
        """Whether nothing of any fault that can be undone is left."""
        return set(self.lines.values()) <= {self.declared} and not self.blocked and not self.stopped

    def happen(self, **event: Any) -> None:
        for one in self._waiting:
            if all(event.get(name) == value for name, value in one.match.items()):
                one.left -= 1
                if one.left == 0:
                    one.found.set_result(event)

    def line(self, link: str, direction: str) -> Impairment:
        return self.lines.get((link, direction), self.declared)

    def named(self, event: str) -> list[dict[str, Any]]:
        return [fields for _, name, fields in self.events if name == event]

    def at(self, event: str) -> list[float]:
        """Seconds from the beginning at which such an event was recorded."""
        return [time for time, name, _ in self.events if name == event]

    # What a world has

    def now(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    def running(self) -> Sequence[str]:
        return sorted(name for name, alive in self.alive.items() if alive)

    def endpoints(self) -> Mapping[str, str]:
        return self.owners

    async def impair(self, link: str, direction: str, changes: Mapping[str, int | float | bool]) -> None:
        if self.line(link, direction).merge(changes).loss + changes.get("duplicate", 0) > 1:
            raise ValueError("duplicate: no line can lose and double all frames")
        self._do(f"impair {link} {direction}")
        self.lines[link, direction] = self.line(link, direction).merge(changes)
        await asyncio.sleep(self.effect_takes)

    async def restore(self, link: str, direction: str, fields: Sequence[str]) -> None:
        self._do(f"restore {link} {direction}")
        await asyncio.sleep(self.effect_takes)
        changes = {name: getattr(self.declared, name) for name in fields}
        self.lines[link, direction] = self.line(link, direction).merge(changes)

    async def block(self, name: str, pairs: Sequence[tuple[str, str]]) -> None:
        assert name not in self.blocked
        self._do("block")
        self.blocked[name] = list(pairs)
        await asyncio.sleep(self.effect_takes)

    async def unblock(self, name: str) -> None:
        self._do("unblock")
        await asyncio.sleep(self.effect_takes)
        del self.blocked[name]

    async def signal(self, node: str, signal: int) -> None:
        if not self.alive[node]:
            raise TargetGone(f"{node} is not running")
        self._do(f"{signals.Signals(signal).name} {node}")
        if signal == signals.SIGSTOP:
            self.stopped.add(node)
        elif signal == signals.SIGCONT:
            self.stopped.discard(node)
        else:
            self.alive[node] = False
            self.stopped.discard(node)
            self.owners = {endpoint: owner for endpoint, owner in self.owners.items() if owner != node}
        await asyncio.sleep(self.effect_takes)

    async def start(self, node: str) -> None:
        assert not self.alive[node], f"{node} runs already"
        self._do(f"start {node}")
        await asyncio.sleep(0.05)
        assert not self.alive[node], f"{node} was started twice at once"
        self.alive[node] = True

    async def wait_exit(self, node: str, timeout: int) -> None:
        assert not self.alive[node]

    async def command(self, node: str, request: Mapping[str, Any], timeout: int) -> Mapping[str, Any]:
        if not self.alive[node]:
            raise TargetGone(f"{node} is not running")
        self._do(f"{request['do']} {node}")
        if self.never_answers:
            await asyncio.sleep(timeout / 1e9)
            raise Overdue(f"{node} does not answer")
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
            return {"ok": True, "handover": "0123456789abcdef", "epoch": 2}
        self.alive[node] = False
        return {"ok": True}

    async def wait_event(self, match: Mapping[str, Any], count: int = 1) -> Event:
        one = _Wait(match, count)
        self._waiting.append(one)
        try:
            return await one.found
        finally:
            self._waiting.remove(one)

    def record(self, event: str, **fields: Any) -> None:
        self.events.append((round(asyncio.get_running_loop().time() - START, 6), event, fields))

    def _do(self, what: str) -> None:
        self.done.append(what)


class _Wait:
    def __init__(self, match: Mapping[str, Any], count: int) -> None:
        self.match = match
        self.left = count
        self.found: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
