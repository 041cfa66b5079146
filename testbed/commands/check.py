"""``testbed check``: judge a run again."""

from __future__ import annotations

import click

from testbed.console import format_option, print_json, print_result, runs_option
from testbed.exit_status import of_verdict
from testbed.run_folder import find_run, runs_directory


@click.command()
@click.argument("run")
@click.option("--strict", is_flag=True, help="Exit with 3 on a pass with warnings.")
@runs_option
@format_option
def check(run: str, strict: bool, runs: str, output: str) -> int:
    """Judge RUN again: a run folder, the name of a run (its latest), or a run id.

    The verdict is a function of the folder alone. result.json, junit.xml and report.html are written anew.
    """
    from testbed.judge import judge

    folder = find_run(run, runs_directory(runs))
    result = judge(folder)
    if output == "json":
        print_json(result)
    else:
        print_result(result)
        click.echo(f"report: {folder.report}")
    return of_verdict(result["verdict"], warnings=bool(result["warnings"]), strict=strict)
