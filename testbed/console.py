"""How commands speak: tables for people, JSON for programs, plain text where there is no terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Command = TypeVar("Command", bound=Callable[..., Any])

VERDICT_STYLES = {"pass": "green", "fail": "bold red", "unknown": "yellow", "skipped": "dim"}


def format_option(command: Command) -> Command:
    """``--format table|json`` for a command that lists something."""
    return click.option(
        "--format",
        "output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="A table for people or JSON for programs.",
    )(command)


def runs_option(command: Command) -> Command:
    """``--runs DIR``: where run folders lie."""
    return click.option(
        "--runs",
        type=click.Path(file_okay=False),
        envvar="TESTBED_RUNS",
        default="runs",
        show_default=True,
        help="Folder of the run folders.",
    )(command)


def is_terminal(stream: TextIO) -> bool:
    """Whether somebody looks at it. A CI job is nobody, even where it has a pseudo-terminal."""
    return stream.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


def say(text: str) -> None:
    """A remark, on standard error: standard output belongs to what was asked for."""
    click.echo(text, err=True)


def print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = "") -> None:
    """Aligned columns; with colours on a terminal. ``empty`` is said where there are no rows."""
    if not rows:
        if empty:
            say(empty)
        return
    if is_terminal(sys.stdout):
        table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(cell, style=VERDICT_STYLES.get(cell, "")) for cell in row))
        Console().print(table)
        return
    widths = [
        max(len(row[i].splitlines()[0]) if row[i] else 0 for row in [columns, *rows]) for i in range(len(columns))
    ]
    for row in [columns, *rows]:
        first = ["".join(cell.splitlines()[:1]) for cell in row]
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(first, widths, strict=True)).rstrip())


def print_result(result: Mapping[str, Any], *, violations: int = 10) -> None:
    """The checks of a verdict with their first violations, then the verdict."""
    rows = [[check["name"], check["verdict"], check.get("summary", "")] for check in result["checks"]]
    print_table(["check", "verdict", "what was found"], rows)
    for check in result["checks"]:
        if check["verdict"] in ("fail", "unknown"):
            for violation in check.get("violations", [])[:violations]:
                click.echo(f"{check['name']}: {violation['what']} ({_brief(violation['where'])})")
    for warning in result.get("warnings", []):
        click.echo(f"warning: {warning}")
    colour = {"pass": "green", "fail": "red", "unknown": "yellow"}[result["verdict"]]
    click.echo("verdict: " + click.style(result["verdict"], fg=colour, bold=True))


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
