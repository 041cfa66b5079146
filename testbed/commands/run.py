"""``testbed run``: a topology, a workload, faults, and a verdict."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

import click

from testbed.console import format_option, print_json, print_result, runs_option, say
from testbed.exit_status import ExitStatus, of_verdict
from testbed.progress import Progress, progress_on
from testbed.run_folder import EventLog, RunFolder, runs_directory, write_json

if TYPE_CHECKING:  # pyroute2 and pydantic take a third of a second, which other commands should not have to wait
    from testbed.prepare import Prepared

DEFAULT_SCENARIO = "migrate-under-load"


@click.command()
@click.argument("scenario", default=DEFAULT_SCENARIO)
@click.option("--topology", help="Another topology than the scenario's: a file or a name.")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), help="Another seed than the scenario's.")
@click.option("--backend", default="netns", show_default=True, help="What the topology is realised on.")
@click.option("--shaper", type=click.Choice(["wire", "netem"]), default="wire", show_default=True,
              help="What delays, loses and limits frames.")  # fmt: skip
@click.option("--capture", type=click.Choice(["wire", "node", "none"]), help="Where all frames are captured.")
@click.option("--name", help="Name of the run and its folder. Default: the scenario's.")
@click.option("--strict", is_flag=True, help="Exit with 3 on a pass with warnings.")
@click.option("--keep", is_flag=True, help="Leave it up after the traffic, until Ctrl-C; the verdict comes then.")
@runs_option
@format_option
def run(
    scenario: str,
    topology: str | None,
    seed: int | None,
    backend: str,
    shaper: str,
    capture: str | None,
    name: str | None,
    strict: bool,
    keep: bool,
    runs: str,
    output: str,
) -> int:
    """Run SCENARIO (a file or a name; "migrate-under-load" if not given) and say whether everything was delivered in
    order, exactly once, in time.

    All files are checked before anything is made. The verdict, with everything that it rests on, lies in the run
    folder: testbed check judges it again. The same seed gives the same faults at the same times.
    """
    from testbed.backends.privilege import ensure_namespaces
    from testbed.doctor import without_netem
    from testbed.errors import CannotRun
    from testbed.judge import judge, not_judged
    from testbed.prepare import Request, prepare

    prepared = prepare(Request(scenario, topology, seed, backend, capture, name, keep))
    ensure_namespaces()
    if shaper == "netem":
        raise CannotRun(without_netem())
    folder = RunFolder.create(runs_directory(runs), prepared.name, prepared.plan.run_id)
    say(f"run {prepared.plan.run_id}: {prepared.path}, seed {prepared.seed}; folder {folder.path}")
    write_json(folder.resolved, prepared.resolved(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())))
    not_judged(folder)
    with progress_on(sys.stderr) as progress:
        interrupted, status = asyncio.run(_conduct(prepared, folder, progress))
        progress.phase("judging")
        result = judge(folder)
    if output == "json":
        print_json(result)
    else:
        print_result(result)
        click.echo(f"report: {folder.report}")
        click.echo(f"run again: {result['replay']}")
    if interrupted is not None:
        return 128 + interrupted
    if status in (ExitStatus.CANNOT_RUN, ExitStatus.INTERNAL):
        return status
    return of_verdict(result["verdict"], warnings=bool(result["warnings"]), strict=strict)


async def _conduct(prepared: Prepared, folder: RunFolder, progress: Progress) -> tuple[int | None, ExitStatus]:
    from testbed.backends.netns import NetnsBackend
    from testbed.run import Run
    from testbed.running import RunningTopology

    log = EventLog(folder.events)
    conducting = Run(prepared, folder, log, progress)
    log.record("run.started", run_id=prepared.plan.run_id, name=prepared.name, seed=prepared.seed)
    for text in prepared.warnings:
        log.record("run.warning", text=text)
    backend = NetnsBackend(prepared.plan, folder.path, capture=prepared.capture, offloads=not prepared.per_frame)
    running = RunningTopology("run", prepared.name, prepared.plan, prepared.workload, backend, folder, log)
    try:
        return await conducting.conduct(running), running.status
    finally:
        log.close()
