"""Nodes of one process on loopback, and waiting for what they do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import connex

SECRET = b"of the tests"


async def until(condition: Callable[[], object], what: str, within_s: float = 5.0) -> None:
    """Wait until the condition holds; fails naming what did not happen."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.001)


def config(**changes: Any) -> connex.Config:
    """A configuration in which deaths are noticed soon."""
    fast = {"heartbeat": 20_000_000, "suspect_after": 100_000_000, "dead_after": 300_000_000, "lease": 100_000_000}
    return connex.Config(**(fast | {"resolve_for": 1_000_000_000} | changes))


class Lab:
    """Nodes w0, w1, … that know each other."""

    def __init__(self) -> None:
        self.nodes: dict[str, connex.Node] = {}
        self.unseen: list[dict[str, Any]] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Lab:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self.unseen.append(context))
        await self._stack.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def start(self, name: str, **options: Any) -> connex.Node:
        """A node that joins those there are."""
        options.setdefault("seeds", [node.locator for node in self.nodes.values()][:1])
        options.setdefault("secret", SECRET)
        options.setdefault("config", config())
        node = await self._stack.enter_async_context(connex.Node(name, **options))
        self.nodes[name] = node
        return node

    async def cluster(self, count: int, **options: Any) -> list[connex.Node]:
        """Nodes w0, w1, … each of which knows all others."""
        nodes = [await self.start(f"w{number}", **options) for number in range(count)]
        for node in nodes:
            await until(lambda node=node: len(node.core.members()) == count - 1, f"{node.name} knows all others")  # type: ignore[misc]
        return nodes


def journal_of(folder: Path, node: connex.Node) -> list[dict[str, Any]]:
    """The records of a node's journal."""
    path = folder / f"journal-{node.me.incarnation:016x}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]
