"""What the contract costs while nothing moves: the pipeline on Connex beside the same pipeline on bare TCP, measured
in the same run.

python -m benchmarks.pipeline [--repeats 5] [--seconds 2]

Three processes on loopback, three stages, no two neighbours of the ring in one process; without a journal, unless said
otherwise. Adapters take turns, and rows are medians over the repeats. "Load" asks for less than the stages can do:
what counts is the time from asking for a token to having it. "Full" always has 64 requests in flight: what
counts is how many tokens come out, which the stages' time for computation bounds. "No computation" leaves nothing but
messages, which no model does: it shows what a message costs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pipeline.workers import Cluster

PLACEMENT = [["source", "stage-3"], ["stage-1", "sink"], ["stage-2"]]
ADAPTERS = ("tcp", "connex")
GOAL = 0.02
"""Most that Connex may lose against bare TCP."""
PIPELINE: dict[str, Any] = {
    "stages": 3,
    "requests_per_s": 50.0,
    "requests": 1_000_000,
    "tokens": 8,
    "activation_bytes": 8192,
    "token_bytes": 64,
    "kv_bytes": 1 << 20,
    "kv_dirty_bytes": 4096,
    "compute_ns": 500_000,
    "concurrency": 64,
}
WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class Case:
    what: str
    changes: Mapping[str, Any]
    journal: bool = False
    bound: bool = True
    """Whether the goal is set for it."""


CASES = (
    Case("load, 50 requests/s", {}),
    Case("full", {"requests_per_s": 1e6}),
    Case("load, with journals", {}, journal=True, bound=False),
    Case("full, with journals", {"requests_per_s": 1e6}, journal=True, bound=False),
    Case("full, no computation", {"requests_per_s": 1e6, "compute_ns": 0}, bound=False),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. Goodput in tokens/s, latencies in us, processor time of all processes in us for each token."""

    goodput: float
    p50: float
    p99: float
    cpu: float


async def measure(case: Case, adapter: str, seconds: float) -> Figures:
    """One run of one case. Raises RuntimeError if a request fails."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), PLACEMENT, adapter, PIPELINE | dict(case.changes))
        for worker in cluster.workers:
            if not case.journal:
                worker.config["journal"] = None
        async with cluster:
            source = cluster[0]
            await source.ask("start")
            await asyncio.sleep(WARM_UP_S)
            before, begun, used = await source.ask("progress"), time.monotonic(), processor_time(cluster)
            await asyncio.sleep(seconds)
            after, ended, used_after = await source.ask("progress"), time.monotonic(), processor_time(cluster)
            result = await source.ask("finish")
        if result["failed"] or result["unexpected"]:
            raise RuntimeError(
                f"{case.what} on {adapter}: {result['failed']} requests failed; nothing was to fail here"
            )
        tokens = after["tokens"] - before["tokens"]
        return Figures(
            tokens / (ended - begun),
            result["token_p50_ns"] / 1e3,
            result["token_p99_ns"] / 1e3,
            (used_after - used) / tokens * 1e6,
        )


def processor_time(cluster: Cluster) -> float:
    """Seconds that all worker processes have used so far."""
    total = 0
    for worker in cluster.workers:
        assert worker.process is not None
        fields = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def report(case: Case, runs: Mapping[str, list[Figures]]) -> None:
    """Print the rows of one case."""
    median = {
        adapter: Figures(*(statistics.median(column) for column in zip(*map(_columns, figures), strict=True)))
        for adapter, figures in runs.items()
    }
    tcp, connex = median["tcp"], median["connex"]
    goodput = 1 - connex.goodput / tcp.goodput
    latency = connex.p50 / tcp.p50 - 1
    row(case, "goodput", tcp.goodput, connex.goodput, "tokens/s", goodput)
    row(case, "p50", tcp.p50, connex.p50, "us", latency)
    row(case, "p99", tcp.p99, connex.p99, "us", None)
    row(case, "processor time a token", tcp.cpu, connex.cpu, "us", None)


def row(case: Case, what: str, tcp: float, connex: float, unit: str, loss: float | None) -> None:
    bounded = case.bound and loss is not None
    goal = f"{connex / tcp - 1:+8.1%}" + (f"  within {GOAL:.0%}" if bounded else "")
    missed = "  missed" if bounded and loss is not None and loss > GOAL else ""
    print(f"{case.what + ': ' + what:44} {tcp:12.1f} {connex:12.1f}  {unit:9} {goal}{missed}", flush=True)


def _columns(figures: Figures) -> tuple[float, ...]:
    return figures.goodput, figures.p50, figures.p99, figures.cpu


async def run(repeats: int, seconds: float) -> None:
    print(f"{'the pipeline':44} {'tcp':>12} {'connex':>12}  {'unit':9} {'change':>8}")
    for case in CASES:
        runs: dict[str, list[Figures]] = {adapter: [] for adapter in ADAPTERS}
        for turn in range(repeats):
            for adapter in ADAPTERS if turn % 2 == 0 else reversed(ADAPTERS):
                runs[adapter].append(await measure(case, adapter, seconds))
        report(case, runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    asyncio.run(run(options.repeats, options.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
