"""``testbed gc``: remove what killed runs have left."""

from __future__ import annotations

import click

from testbed.console import say


@click.command()
@click.option("--all", "everything", is_flag=True, help="Take down what is running as well, foreground runs included.")
def gc(everything: bool) -> None:
    """Remove what runs that were killed have left on this machine: processes and files that bear their mark.

    Nothing that somebody else made is touched. Run folders stay.
    """
    from testbed.errors import TestbedError
    from testbed.keeper import KeeperClient
    from testbed.registry import collect, collect_stale, runs

    removed = collect_stale()
    if everything:
        for record in runs():
            try:
                KeeperClient(record).ask("down")
                removed[record.run_id] = [f"{record.name}, which was running"]
            except TestbedError as error:
                say(f"{error}; removing it by force")
                removed[record.run_id] = collect(record)
    for run_id, things in removed.items():
        say(f"run {run_id}: removed {', '.join(things) or 'nothing'}")
    if not removed:
        say("nothing to remove")
