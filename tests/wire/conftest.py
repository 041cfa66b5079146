"""A lab per test, and a wire in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from faults.impairment import Impairment
from testbed.backends.wire import Wire
from testbed.network.spec import Port
from tests.wire.lab import Lab, StartWire


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Four nodes."""
    with Lab(["a", "b", "c", "d"]) as made:
        yield made


@pytest.fixture(params=[1500, 9000], ids=lambda mtu: f"MTU {mtu}")
def pair(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Two nodes, with ordinary and with jumbo frames."""
    with Lab(["a", "b"], request.param) as made:
        yield made


@pytest.fixture
def start_wire(tmp_path: Path) -> StartWire:
    """``async with start_wire(lab, impairment) as wire``: a star of all nodes of the lab, stopped at the end."""

    @asynccontextmanager
    async def start(
        lab: Lab,
        impairment: Impairment | None = None,
        *,
        program: str | None = None,
        captures: Mapping[Port, Path] | None = None,
        fifo: bool = True,
    ) -> AsyncIterator[Wire]:
        spec = lab.star(impairment or Impairment(), program)
        log = tmp_path / "wire.log"
        wire = await Wire.start(spec, lab.attachments, lab.fabric, captures=captures, log=log, fifo=fifo)
        try:
            yield wire
            await wire.stop()
        finally:
            await wire.kill()
        assert log.read_text() == ""

    return start
