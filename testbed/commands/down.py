"""``testbed down``: take a topology down."""

from __future__ import annotations

import click

from testbed.console import say
from testbed.errors import UsageError


@click.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All topologies that are up.")
def down(name: str | None, everything: bool) -> None:
    """Take down NAME: a topology that is up, or a run. The only one that is up, if none is named.

    It needs no file: what there is to undo is known to whoever made it.
    """
    from testbed.keeper import KeeperClient
    from testbed.registry import collect, find, runs

    if name and everything:
        raise UsageError("down: either a name or --all")
    there = [record for record in runs() if record.kind == "up"]
    if everything:
        chosen = there
    elif name:
        stale = [record for record in runs() if name in (record.name, record.run_id) and record.state != "running"]
        chosen = stale or [find(name)]
    else:
        chosen = [find(None, kind="up")]
    for record in chosen:
        if record.state == "running":
            KeeperClient(record).ask("down", folder=record.folder)
            say(f"{record.name} is down")
        else:
            removed = collect(record)
            say(f"{record.name} was {record.state}: removed {', '.join(removed)}")
    if not chosen:
        say("nothing is up")
