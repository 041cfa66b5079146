"""How fast random schedules of the protocol are explored: five nodes, 200 messages, faults, on one core."""

from __future__ import annotations

import argparse
import sys
from statistics import median
from time import process_time

from testbed.simulation.exploration import explore

_BOUND_S = 60.0
_SCHEDULES = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="portions of each kind, whose median is taken")
    parser.add_argument("--schedules", type=int, default=100, help="schedules in a portion")
    arguments = parser.parse_args()
    failed = False
    print(f"{'channels':<14}{'CPU seconds for 1,000 schedules':>34}{'messages/s':>14}{'bound':>8}")
    for name, adversarial in (("as TCP", False), ("adversarial", True)):
        seconds, rates = [], []
        for portion in range(arguments.repeats):
            begin = process_time()
            seeds = range(portion * arguments.schedules, (portion + 1) * arguments.schedules)
            *_, tally = explore(seeds, nodes=5, messages=200, adversarial=adversarial)
            spent = process_time() - begin
            seconds.append(spent * _SCHEDULES / arguments.schedules)
            rates.append(tally.messages / spent)
            failed |= bool(tally.failures)
        reached = "reached" if median(seconds) <= _BOUND_S else "missed"
        print(f"{name:<14}{median(seconds):>34.1f}{median(rates):>14.0f}{_BOUND_S:>6.0f} s  {reached}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
