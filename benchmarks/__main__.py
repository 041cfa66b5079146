"""Every figure of the speed table, one after the other: ``make bench``.

python -m benchmarks [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys

ROWS = (
    ("TOKEN round trip between two namespaces", "round_trip", "2"),
    ("KV throughput between two namespaces", "kv", "2"),
    ("planned cutover, 1 MiB and 256 MiB of state", "cutover", "1"),
    ("what the contract costs while nothing moves", "pipeline", "1"),
    ("testbed up", "up", "1"),
    ("the wire", "wire", "2"),
    ("the checkers", "checkers", "1"),
    ("the simulator", "simulator", "1"),
)
"""What, the module that measures it, and the repeats of a quick look."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a first look with few repeats")
    arguments = parser.parse_args()
    failed = []
    for title, module, few in ROWS:
        print(f"\n== {title}", flush=True)
        repeats = ["--repeats", few] if arguments.quick else []
        if subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *repeats], check=False).returncode:
            failed.append(module)
    if failed:
        print(f"\nnot measured: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
