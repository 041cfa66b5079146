"""``testbed status``: what runs here."""

from __future__ import annotations

import time
from typing import Any

import click

from testbed.console import format_option, print_json, print_table
from testbed.errors import TestbedError


@click.command()
@click.argument("name", required=False)
@format_option
def status(name: str | None, output: str) -> None:
    """Show the topologies and runs on this machine, or the nodes of NAME.

    A run whose process is gone, or that belongs to an earlier boot, is shown as "stale" or "rebooted", with the
    processes it left: testbed gc removes them.
    """
    from testbed.registry import find, runs

    if name:
        record = find(name)
        entry = _describe(record)
        if output == "json":
            print_json(entry)
        else:
            rows = [
                [node, str(pid or "-"), "running" if pid else "not running"] for node, pid in entry["nodes"].items()
            ]
            print_table(["node", "pid", "state"], rows)
        return
    entries = [_describe(record) for record in runs()]
    if output == "json":
        print_json(entries)
        return
    columns = ["name", "run", "kind", "state", "topology", "nodes", "since", "folder"]
    rows = [
        [
            entry["name"],
            entry["run_id"],
            entry["kind"],
            entry["state"] + (f", {len(entry['orphans'])} processes left" if entry["orphans"] else ""),
            entry["topology"],
            f"{sum(pid is not None for pid in entry['nodes'].values())}/{len(entry['nodes'])}",
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["begun"])),
            entry["folder"],
        ]
        for entry in entries
    ]
    print_table(columns, rows, empty="nothing is up")


def _describe(record: Any) -> dict[str, Any]:
    from testbed.keeper import KeeperClient
    from testbed.registry import processes

    state, nodes, orphans = record.state, dict.fromkeys(record.nodes), []
    if state == "running":
        try:
            nodes = KeeperClient(record).ask("status")["nodes"]
        except TestbedError:
            state = "starting"  # it listens once its network is there; or it is going down
    elif state == "stale":
        orphans = list(processes(record.run_id))
    return {
        "name": record.name,
        "run_id": record.run_id,
        "kind": record.kind,
        "state": state,
        "topology": record.topology,
        "nodes": nodes,
        "orphans": orphans,
        "begun": record.begun,
        "pid": record.pid,
        "folder": record.folder,
    }
