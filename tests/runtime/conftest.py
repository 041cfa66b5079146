"""The tests of the runtime run on uvloop, as applications do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio
import uvloop

from tests.runtime.lab import Lab


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def lab() -> AsyncIterator[Lab]:
    """Nodes on loopback, all closed at the end; an exception that only the event loop saw fails the test."""
    async with Lab() as nodes:
        yield nodes
    assert not nodes.unseen, f"exceptions that nobody caught: {nodes.unseen}"
