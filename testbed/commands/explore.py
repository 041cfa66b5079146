"""``testbed explore``: random schedules on the protocol alone, in virtual time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from testbed.console import format_option, print_json, say
from testbed.exit_status import ExitStatus

if TYPE_CHECKING:
    from testbed.simulation.exploration import Failure, Tally

_REPORT_EVERY_S = 5.0


@click.command()
@click.option("--schedules", type=click.IntRange(1), default=1000, show_default=True, help="How many.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="The first; each has one of its own."
)
@click.option("--nodes", type=click.IntRange(2, 8), default=5, show_default=True, help="Nodes of each schedule.")
@click.option("--messages", type=click.IntRange(1, 100_000), default=200, show_default=True, help="Messages of each.")
@click.option("--adversarial", is_flag=True, help="Channels lose, repeat, reorder and hold back single frames.")
@click.option("--transcript", is_flag=True, help="Tell what happens, frame by frame (with one schedule).")
@format_option
def explore(
    schedules: int, seed: int, nodes: int, messages: int, adversarial: bool, transcript: bool, output: str
) -> int:
    """Play random schedules of joins, leaves, moves, crashes, pauses and partitions on simulated nodes.

    Channels behave as TCP does, or worse. Each schedule follows from its seed alone. The first under which the contract
    is broken is shrunk and told as a transcript, with the command that plays it again.
    """
    from testbed.simulation.exploration import explore as play

    seeds = range(seed, seed + schedules)
    begun = time.monotonic()
    tally = _follow(play(seeds, nodes=nodes, messages=messages, adversarial=adversarial), schedules)
    options = f"--nodes {nodes} --messages {messages}" + (" --adversarial" if adversarial else "")
    if transcript:
        _tell(seed, nodes, messages, adversarial)
    if output == "json":
        print_json(_summary(tally, options))
    else:
        click.echo(
            f"{tally.schedules} schedules in {time.monotonic() - begun:.1f} s: {tally.delivered} of {tally.messages}"
            f" messages delivered, {tally.handovers} handovers, {tally.frames} frames, {tally.seconds:.0f} s of virtual"
            f" time; resets: {', '.join(f'{cause} {count}' for cause, count in tally.resets.most_common()) or 'none'}"
        )
        for failure in tally.failures:
            click.echo(f"seed {failure.schedule.seed}: {failure.what}")
        if tally.failures and not transcript:
            _explain(tally.failures[0], options)
        click.echo(f"verdict: {'fail' if tally.failures else 'pass'}")
    return ExitStatus.FAIL if tally.failures else ExitStatus.PASS


def _follow(tallies: Iterator[Tally], schedules: int) -> Tally:
    """Say now and then how far it is."""
    told = time.monotonic()
    for tally in tallies:
        if time.monotonic() - told > _REPORT_EVERY_S:
            told = time.monotonic()
            say(f"{tally.schedules} of {schedules} schedules, {len(tally.failures)} failed")
    return tally


def _explain(failure: Failure, options: str) -> None:
    from testbed.simulation.exploration import shrink, try_out
    from testbed.simulation.transcript import tell

    say("shrinking the first of them")
    small = shrink(failure)
    player, _ = try_out(small.schedule)
    click.echo(f"\nseed {failure.schedule.seed}, shrunk to {len(small.schedule.steps)} steps: {small.what}\n")
    for line in tell(player):
        click.echo(line)
    click.echo(f"\nplay it again: testbed explore --seed {failure.schedule.seed} --schedules 1 {options}")


def _tell(seed: int, nodes: int, messages: int, adversarial: bool) -> None:
    from testbed.simulation.exploration import try_out
    from testbed.simulation.schedule import draw
    from testbed.simulation.transcript import tell

    player, _ = try_out(draw(seed, nodes=nodes, messages=messages, adversarial=adversarial))
    for line in tell(player, everything=True):
        click.echo(line)


def _summary(tally: Tally, options: str) -> dict[str, Any]:
    return {
        "verdict": "fail" if tally.failures else "pass",
        "schedules": tally.schedules,
        "messages": tally.messages,
        "delivered": tally.delivered,
        "handovers": tally.handovers,
        "frames": tally.frames,
        "virtual_seconds": round(tally.seconds, 3),
        "resets": dict(tally.resets),
        "failures": [
            {
                "seed": failure.schedule.seed,
                "what": failure.what,
                "again": f"testbed explore --seed {failure.schedule.seed} --schedules 1 {options}",
            }
            for failure in tally.failures
        ],
    }
