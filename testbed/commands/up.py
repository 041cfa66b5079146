"""``testbed up``: make a topology and leave it running."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from testbed.console import format_option, print_json, print_table, runs_option, say
from testbed.errors import UsageError
from testbed.exit_status import ExitStatus
from testbed.plan import Plan
from testbed.run_folder import DNS_LABEL, EventLog, RunFolder, new_run_id, runs_directory, write_json

DEFAULT_TOPOLOGY = "five"


@click.command()
@click.argument("topology", default=DEFAULT_TOPOLOGY)
@click.option("--name", help="Name by which status, exec and down find it. Default: the topology's.")
@click.option("--capture", type=click.Choice(["wire", "node", "none"]), default="none", show_default=True,
              help="Capture all frames from the beginning, and where.")  # fmt: skip
@runs_option
@format_option
def up(topology: str, name: str | None, capture: str, runs: str, output: str) -> int:
    """Make the network of TOPOLOGY (a file or a name; "five" if not given), start a Connex node on each worker, and
    leave all of it running."""
    from testbed.backends.privilege import ensure_namespaces
    from testbed.keeper import daemonise
    from testbed.registry import runs as registered
    from testbed.topology import check_gpus, load_topology, make_plan

    loaded = load_topology(topology)
    chosen = name or loaded.name
    if not DNS_LABEL.fullmatch(chosen):
        raise UsageError(f"--name {chosen!r}: expected small letters, digits and hyphens, at most 63")
    for record in registered():
        if record.name == chosen and record.kind == "up" and record.state == "running":
            raise UsageError(f"{chosen} is up already: end it with testbed down {chosen}, or choose another --name")
    plan = make_plan(loaded, new_run_id(), 0)
    for remark in check_gpus(plan):
        say(f"{remark} (a warning)")
    ensure_namespaces()
    folder = RunFolder.create(runs_directory(runs), chosen, plan.run_id)
    begun = time.monotonic()

    def serve(tell: Callable[[dict[str, Any]], None]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        asyncio.run(_hold(chosen, plan, capture, folder, tell))

    told = daemonise(serve, folder.path / "keeper.log")
    if "failed" in told:
        say(f"testbed: {told['failed']}")
        return int(told["status"])
    _print(chosen, plan, folder, told["pids"], output)
    say(f"{chosen} is up after {time.monotonic() - begun:.2f} s; end it with: testbed down {chosen}")
    return ExitStatus.PASS


async def _hold(name: str, plan: Plan, capture: str, folder: RunFolder, tell: Callable[[dict[str, Any]], None]) -> None:
    """Make everything, tell that it is there, and keep it until somebody asks for its end."""
    from testbed.backends.netns import NetnsBackend
    from testbed.running import RunningTopology
    from testbed.signals import interruption
    from testbed.workload import Workload, workers

    log = EventLog(folder.events)
    workload = Workload(plan, secrets.token_hex(16))
    write_json(
        folder.resolved, {"run_id": plan.run_id, "name": name, "kind": "up", "topology": {"name": plan.topology}}
    )
    log.record("run.started", run_id=plan.run_id, name=name)
    backend = NetnsBackend(plan, folder.path, capture=capture)
    running = RunningTopology("up", name, plan, workload, backend, folder, log)
    names = workers(plan)

    async def work() -> None:
        await running.make_network()
        await running.start_nodes(names)
        tell({"pids": {node: backend.pid(node) for node in names}})
        running.kept = True
        await asyncio.Event().wait()

    with interruption(print) as interrupted:
        async with running:
            await running.carry(work(), interrupted)
        log.record("run.finished")
    if not running.kept:
        why = "; ".join(running.troubles) or "interrupted"
        with suppress(BrokenPipeError):
            tell({"failed": f"{name} did not come up: {why}", "status": running.status or ExitStatus.TERMINATED})


def _print(name: str, plan: Plan, folder: RunFolder, pids: dict[str, int], output: str) -> None:
    nodes = {
        node.name: {
            "pid": pids.get(node.name),
            "locator": node.locator,
            "interfaces": {i.name: {"ipv4": i.ipv4, "ipv6": i.ipv6, "mac": i.mac} for i in node.interfaces},
        }
        for node in plan.nodes.values()
    }
    if output == "json":
        print_json({"name": name, "run_id": plan.run_id, "folder": str(folder.path), "nodes": nodes})
        return
    rows = [
        [
            node.name,
            str(pids.get(node.name) or "-"),
            node.locator,
            " ".join(f"{interface.name} {interface.ipv4} {interface.ipv6}" for interface in node.interfaces),
        ]
        for node in plan.nodes.values()
    ]
    print_table(["node", "pid", "locator", "interfaces"], rows)
