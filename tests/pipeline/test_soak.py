"""Thousands of handovers on live processes: nothing is lost, and memory, descriptors and threads stay flat.

``CONNEX_SOAK=10000`` (``make soak``) says how many; a few hundred are part of every full run.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

import pytest
from workers import SMALL, Cluster, Worker

HANDOVERS = int(os.environ.get("CONNEX_SOAK", "300"))
MIB = 1 << 20
GROWTH = 12 * MIB
"""What memory may grow by after the first half: tables of what is over fill up to their bounds, and allocators keep
what they once had.
"""


class Usage(NamedTuple):
    memory: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, worker: Worker) -> Usage:
        assert worker.process is not None
        place = Path(f"/proc/{worker.process.pid}")
        fields = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        return cls(int(fields["VmRSS"].split()[0]) * 1024, len(os.listdir(place / "fd")), int(fields["Threads"]))


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(120 + HANDOVERS)
async def test_many_handovers_cost_nothing_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Regions come and go by the megabyte: from the kernel each time, so that no holes in the heap are taken for a leak.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(128 * 1024))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", str(128 * 1024))
    pipeline = SMALL | {"requests": 1_000_000, "requests_per_s": 50.0, "kv_bytes": 1 << 20}
    async with Cluster(tmp_path, [["source", "sink"], ["stage-1"], ["stage-2"], []], "connex", pipeline) as cluster:
        await cluster[0].ask("start")
        where = {"stage-1": 1, "stage-2": 2}
        epochs = dict.fromkeys(where, 1)
        halfway: list[Usage] = []
        for number in range(HANDOVERS):
            if number == HANDOVERS // 2:
                halfway = await settled(cluster)
            name = ("stage-1", "stage-2")[number % 2]
            target = next(place for place in range(1, 4) if place not in where.values())
            answer = await cluster[where[name]].ask("migrate", endpoint=name, to=f"w{target}")
            epochs[name] += 1
            assert answer["epoch"] == epochs[name]
            where[name] = target
        done = await cluster[0].ask("progress")
        for before, after in zip(halfway, await settled(cluster), strict=True):
            assert after.memory - before.memory < GROWTH, f"memory grew from {before.memory} to {after.memory} bytes"
            assert abs(after.descriptors - before.descriptors) <= 4, (before, after)
            assert after.threads == before.threads, (before, after)
        assert done["failed"] == 0
        assert done["done"] > HANDOVERS // 20
        for worker in cluster.workers:
            assert not {"WARNING", "ERROR"} & set(worker.log().split()), worker.log()


async def settled(cluster: Cluster) -> list[Usage]:
    await asyncio.sleep(1.2)  # streams that have ended linger for a second
    return [Usage.of(worker) for worker in cluster.workers]
