"""How long ``testbed up`` takes until all nodes answer and have found each other, for 5 and for 100 nodes.

python -m benchmarks.up [--repeats 5]

Beside it, in the same run, the cost of what no backend can do without: as many plain processes, started and waited for.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOALS = {5: 2.0, 100: 6.0}
"""Nodes -> bound in s."""


def topology(nodes: int) -> str:
    """So many nodes on one switch."""
    names = [f"w{number}" for number in range(nodes)]
    lines = [f"name: up-{nodes}", "topology:", "  nodes:", *(f"    {name}: {{}}" for name in names)]
    lines += ["    s0: {kind: switch}", "  links:"]
    lines += [
        f"    - {{endpoints: [{name}:eth1, s0:p{at}], impair: {{delay: 100us}}}}" for at, name in enumerate(names)
    ]
    return "\n".join(lines) + "\n"


def timed(command: list[str], folder: Path) -> float:
    """Wall-clock time of a command in s. Raises CalledProcessError if it fails."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    return time.perf_counter() - begun


def plain_processes(count: int) -> float:
    """Starting as many interpreters that do nothing, all at once."""
    begun = time.perf_counter()
    processes = [subprocess.Popen([sys.executable, "-S", "-c", "pass"]) for _ in range(count)]
    for process in processes:
        process.wait()
    return time.perf_counter() - begun


def measure(nodes: int, folder: Path) -> tuple[float, float]:
    """Seconds of ``up``, and of as many plain processes."""
    path = folder / f"up-{nodes}.yaml"
    path.write_text(topology(nodes), encoding="utf-8")
    testbed = [sys.executable, "-m", "testbed.cli"]
    try:
        took = timed([*testbed, "up", str(path)], folder)
    finally:
        subprocess.run([*testbed, "down", f"up-{nodes}"], check=False, stdout=subprocess.DEVNULL, cwd=folder)
    return took, plain_processes(nodes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{'nodes':>6} {'testbed up':>12} {'plain processes':>17} {'bound':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for nodes, goal in GOALS.items():
            rows = [measure(nodes, Path(folder)) for _ in range(arguments.repeats)]
            up, plain = (statistics.median(column) for column in zip(*rows, strict=True))
            reached = "reached" if up <= goal else "missed"
            print(f"{nodes:>6} {up:>10.2f} s {plain:>15.2f} s {goal:>6.0f} s {reached}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
