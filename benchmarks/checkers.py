"""How fast a run is judged: capture bytes per second, from the files to the verdict.

python -m benchmarks.checkers [--repeats 3] [--megabytes 64]

Runs are made up (real TCP, real frames, journals that fit). The goal of the design is a 1 GB capture in 60 s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.checkers import check
from tests.checkers.story import IN, OUT, Story

GOAL_SECONDS = 60.0
GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class Kind:
    """What a capture is full of."""

    name: str
    stream: int
    message: int
    """Bytes of one message."""
    segment: int
    """Bytes of one TCP segment at most."""
    share: float
    """Of the bytes asked for: small frames take long to make up."""


KINDS = (
    Kind("128-byte tokens, a segment each", OUT, 128, 1400, 0.1),
    Kind("8 KiB activations, 1400-byte segments", IN, 8 * 1024, 1400, 1.0),
    Kind("256 KiB messages, 60 kB super-frames", IN, 256 * 1024, 60_000, 1.0),
)


def make(kind: Kind, size: int, folder: Path) -> int:
    """A run with about ``size`` bytes of captures; returns how many."""
    story = Story()
    story.begin()
    captured = 0
    while captured < size * kind.share:
        story.message(kind.stream, kind.message, segment=kind.segment)
        captured += 2 * (kind.message + 56 + 54 * (2 + kind.message // kind.segment))
    story.run.note("w0", "app.request", request=0)
    story.run.note("w0", "app.done", request=0, tokens=1, hash="0" * 16)
    story.run.finish()
    story.run.write(folder)
    return sum(path.stat().st_size for path in (folder / "captures").glob("*.pcapng"))


def measure(kind: Kind, size: int, repeats: int) -> float:
    """Seconds for one GB, median over the repeats."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "run"
        captured = make(kind, size, folder)
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            result = check(folder)
            seconds.append(time.perf_counter() - begin)
            if result.verdict != "pass":
                raise SystemExit(f"{kind.name}: verdict {result.verdict}: {result.to_json()}")
    return statistics.median(seconds) / captured * GIGABYTE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=64, help="of captures, for each kind")
    given = parser.parse_args()
    print(f"{'capture full of':<42} {'s per GB':>9} {'MB/s':>7}  goal")
    for kind in KINDS:
        seconds = measure(kind, given.megabytes * 1_000_000, given.repeats)
        verdict = "reached" if seconds <= GOAL_SECONDS else "missed"
        print(f"{kind.name:<42} {seconds:>9.1f} {1000 / seconds:>7.0f}  {GOAL_SECONDS:g} s: {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
