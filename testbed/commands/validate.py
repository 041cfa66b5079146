"""``testbed validate``: check files without making anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from testbed.console import print_json, say
from testbed.errors import UsageError
from testbed.exit_status import ExitStatus

if TYPE_CHECKING:  # they take a third of a second to load, which other commands should not have to wait
    from faults.document import Document


@click.command()
@click.argument("files", nargs=-1)
@click.option(
    "--schema", type=click.Choice(["topology", "scenario"]), help="Print the JSON schema of such files, for editors."
)
def validate(files: tuple[str, ...], schema: str | None) -> int:
    """Check topology and scenario FILES (or names) and report every mistake as file:line:column.

    A file with the key "topology" on top whose value is a mapping is a topology; the others are scenarios.
    """
    from faults import scenario
    from testbed import topology

    if schema:
        print_json(topology.schema() if schema == "topology" else scenario.schema())
        return ExitStatus.PASS
    if not files:
        raise UsageError("validate: say which files, or --schema topology or --schema scenario")
    bad = [file for file in files if not _valid(file)]
    say(f"{len(files) - len(bad)} of {len(files)} files are valid")
    return ExitStatus.USAGE if bad else ExitStatus.PASS


def _valid(reference: str) -> bool:
    from faults.document import DocumentErrors, load

    try:
        document = load(_find(reference))
        for remark in _check(document):
            click.echo(f"{remark} (a warning)")
    except DocumentErrors as errors:
        click.echo(str(errors))
        return False
    except UsageError as error:
        click.echo(f"{reference}: {error}")
        return False
    return True


def _find(reference: str) -> Path:
    from faults.scenario import scenario_folders
    from testbed.topology import find_file, topology_folders

    try:
        return find_file(reference, scenario_folders(), "scenario")
    except UsageError:
        return find_file(reference, topology_folders(), "topology")


def _check(document: Document) -> list[str]:
    from faults.scenario import check_scenario, read_scenario
    from faults.scenario import warnings as scenario_warnings
    from testbed.prepare import surroundings, topology_of
    from testbed.topology import make_plan, read_topology, warnings

    if _is_topology(document.value):
        return warnings(document, read_topology(document))
    scenario = read_scenario(document)
    topology, remarks = topology_of(document, scenario)
    around = surroundings(make_plan(topology, "00000000", 0))
    check_scenario(document, scenario, around)
    return [*remarks, *scenario_warnings(document, scenario, around)]


def _is_topology(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("topology"), dict)
