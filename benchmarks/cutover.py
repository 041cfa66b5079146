"""Cutover of planned handovers with 1 MiB and with 256 MiB of state, on links of 100 us, under moderate load.

python -m benchmarks.cutover [--repeats 3]

Each repeat is a real run of the testbed with five node processes: a stage of the pipeline is moved back and forth.
Nothing is captured, which would compete for the processors; the journals tell. Cutover is the last delivery at the
source to the first at the target, as the checker measures it: not counting handovers over the bound in which no
message waited that long. The two sizes are measured in turn, so that the machine's moods meet both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = ("1MiB", "256MiB")
GOAL_MS, GOAL_RATIO = 20.0, 1.2
SCENARIO = """\
topology: five
seed: 1
duration: {duration}s
workload: {{kind: pipeline, stages: 2, requests: 60/s, tokens: 8, activation: 1KiB, kv: {size}}}
events:
  - {{every: {period}s, between: [1s, {last}s], migrate: {{endpoint: stage-1, to: spare}}}}
expect:
  cutover: {{p99: 20ms}}  # so that the gaps of thin traffic are not taken for the time of a handover
  goodput: {{min: 100%}}
"""


def measure(size: str, folder: Path) -> dict[str, float]:
    """The measurements of one run's cutover check, in ns. Raises RuntimeError if anything but the cutover fails."""
    period, moves = (1, 8) if size == "1MiB" else (3, 4)
    duration = period * moves + 3
    path = folder / f"cutover-{size.lower()}.yaml"
    path.write_text(SCENARIO.format(size=size, duration=duration, period=period, last=duration - 1), encoding="utf-8")
    command = [sys.executable, "-m", "testbed.cli", "run", str(path), "--runs", str(folder), "--format", "json"]
    command += ["--capture", "none"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    result = json.loads((next(folder.glob(f"{path.stem}/latest/result.json"))).read_text(encoding="utf-8"))
    failed = [check["name"] for check in result["checks"] if check["verdict"] == "fail" and check["name"] != "cutover"]
    if ran.returncode not in (0, 1, 2) or failed:
        raise RuntimeError(
            f"the run with {size} ended with status {ran.returncode}, failed: {failed}:\n"
            f"{ran.stderr[-2000:]}{ran.stdout[-2000:]}"
        )
    return next(dict(check["measurements"]) for check in result["checks"] if check["name"] == "cutover")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {size: [] for size in SIZES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.repeats):
            for size in SIZES:
                rows[size].append(measure(size, Path(folder)))
    print(f"{'state':>8} {'handovers':>10} {'p50':>10} {'p99':>10}   bound: p99 {GOAL_MS:g} ms, sizes within 20 %")
    medians = {}
    for size in SIZES:
        count = sum(int(row["measured"]) for row in rows[size])
        p50, p99 = (statistics.median(row[name] for row in rows[size]) / 1e6 for name in ("p50_ns", "p99_ns"))
        medians[size] = p50
        print(f"{size:>8} {count:>10} {p50:>7.2f} ms {p99:>7.2f} ms   {'reached' if p99 <= GOAL_MS else 'missed'}")
    ratio = statistics.median(
        big["p50_ns"] / small["p50_ns"] for small, big in zip(rows[SIZES[0]], rows[SIZES[1]], strict=True)
    )
    print(f"ratio of the medians, 256 MiB to 1 MiB: {ratio:.2f}   {'reached' if ratio <= GOAL_RATIO else 'missed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
