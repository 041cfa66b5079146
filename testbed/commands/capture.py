"""``testbed capture``: take captures of what is up, and look into them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from testbed.console import format_option, print_json, print_table, runs_option, say
from testbed.errors import UsageError
from testbed.run_folder import find_run, runs_directory


@click.group()
def capture() -> None:
    """Capture what is up, and look into captures."""


@capture.command()
@click.argument("name")
@click.argument("nodes", nargs=-1)
def start(name: str, nodes: tuple[str, ...]) -> None:
    """Begin to capture at the interfaces of the NODES of NAME (all, if none is named)."""
    from testbed.keeper import KeeperClient
    from testbed.registry import find

    answer = KeeperClient(find(name)).ask("capture-start", nodes=list(nodes))
    for path in answer["files"]:
        click.echo(path)


@capture.command()
@click.argument("name")
@format_option
def stop(name: str, output: str) -> None:
    """Complete the captures that were begun with start, and say what they hold."""
    from testbed.keeper import KeeperClient
    from testbed.registry import find

    files = KeeperClient(find(name)).ask("capture-stop")["files"]
    if output == "json":
        print_json(files)
        return
    rows = [[path, str(one["frames"]), str(one["bytes"]), str(one["dropped"])] for path, one in files.items()]
    print_table(["file", "frames", "bytes", "dropped"], rows)


@capture.command()
@click.argument("what")
@click.option("--limit", type=click.IntRange(min=1), help="Show this many lines of each file at most.")
@click.option("--raw", is_flag=True, help="Every captured packet as scapy sees it, not only the Connex conversation.")
@runs_option
def show(what: str, limit: int | None, raw: bool, runs: str) -> None:
    """Show WHAT: a capture file, or all captures of a run (its name, id or folder).

    One line a Connex frame: when, between whom (">" sent by the captured node, "<" received), and what it says.
    """
    from testbed.capture import CaptureError
    from testbed.conversation import describe

    for path in _files(what, runs):
        click.echo(f"{path}:")
        try:
            for number, line in enumerate(_packets(path) if raw else describe(path)):
                if number == limit:
                    click.echo("...")
                    break
                click.echo(line)
        except CaptureError as error:
            raise UsageError(str(error)) from error


def _files(what: str, runs: str) -> list[Path]:
    if Path(what).is_file():
        return [Path(what)]
    folder = find_run(what, runs_directory(runs))
    files = sorted(folder.captures.glob("*.pcapng"))
    if not files:
        say(f"{folder.path} has no captures")
    return files


def _packets(path: Path) -> Iterator[str]:
    from scapy.layers.l2 import Ether

    from testbed.capture import CaptureReader

    with CaptureReader(path) as reader:
        for stamp, direction, data in reader:
            seconds, rest = divmod(stamp, 1_000_000_000)
            way = {1: "<", 2: ">"}.get(direction, " ")
            yield f"{seconds}.{rest:09d} {way} {Ether(bytes(data)).summary()}"
