"""How long ``testbed up`` takes until every Connex node answers and knows all others, and ``testbed down`` after it.

Measured as people meet it: the whole command, from the start of the interpreter to its last line.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOALS = {5: 2.0, 100: 6.0}
"""Nodes -> seconds."""
DEADLINE_S = 120


def star(nodes: int) -> str:
    """A topology file: so many Connex nodes on one switch."""
    names = [f"w{number}" for number in range(nodes)]
    lines = ["name: star", "topology:", "  nodes:", *(f"    {name}: {{}}" for name in names), "    s0: {kind: switch}"]
    lines += ["  links:", *(f"    - {{endpoints: [{name}:eth1, s0:p{at}]}}" for at, name in enumerate(names))]
    return "\n".join(lines) + "\n"


def seconds(folder: Path, *arguments: str) -> float:
    """Run a command of the testbed; raises CalledProcessError with what it said if it fails."""
    environment = {**os.environ, "TESTBED_STATE": str(folder / "state"), "TESTBED_RUNS": str(folder / "runs")}
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "testbed.cli", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"testbed {' '.join(arguments)} ended with status {done.returncode}:\n{done.stderr}")
    return time.monotonic() - begun


def measure(nodes: int, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds that ``up`` and ``down`` took, each time."""
    ups, downs = [], []
    with tempfile.TemporaryDirectory(prefix="testbed-bench-") as name:
        folder = Path(name)
        (folder / "star.yaml").write_text(star(nodes))
        try:
            for _ in range(repeats):
                ups.append(seconds(folder, "up", str(folder / "star.yaml")))
                downs.append(seconds(folder, "down"))
        finally:
            seconds(folder, "gc", "--all")
    return ups, downs


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; returns 0 if the goals were reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--nodes", type=int, nargs="*", default=list(GOALS))
    options = parser.parse_args(arguments)
    print(f"testbed up, Connex nodes on one switch that all know each other, median of {options.repeats}")
    print(f"{'nodes':>6}{'up s':>8}{'best':>8}{'worst':>8}{'goal':>8}{'down s':>8}")
    reached = True
    for nodes in options.nodes:
        ups, downs = measure(nodes, options.repeats)
        goal = GOALS.get(nodes)
        middle = statistics.median(ups)
        reached = reached and (goal is None or middle <= goal)
        shown = f"{goal:.0f}" if goal is not None else "-"
        print(f"{nodes:6}{middle:8.2f}{min(ups):8.2f}{max(ups):8.2f}{shown:>8}{statistics.median(downs):8.2f}")
    print("goals: " + ("reached" if reached else "NOT reached"))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
