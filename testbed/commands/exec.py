"""``testbed exec``: run a command inside a node."""

from __future__ import annotations

import click

from testbed.errors import UsageError


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("node")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, node: str, command: tuple[str, ...]) -> int:
    """Run COMMAND in the network of NODE of NAME (a topology that is up, or a run), on this terminal.

    The exit status is the command's own; 128 and the signal's number, if a signal ended it. Put "--" before the
    command: testbed exec five w0 -- ping -c 1 10.0.0.2
    """
    from testbed.keeper import KeeperClient
    from testbed.registry import find

    record = find(name)
    if node not in record.nodes:
        raise UsageError(f"{name} has no node {node!r}; it has {', '.join(record.nodes)}")
    status = KeeperClient(record).execute(node, command)
    return status if status >= 0 else 128 - status
