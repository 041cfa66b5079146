"""``testbed logs``: what the node processes wrote."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from testbed.console import runs_option
from testbed.errors import UsageError
from testbed.run_folder import RunFolder, find_run, runs_directory

STREAMS = (("stdout.log", b"|"), ("stderr.log", b"!"))
POLL = 0.1
CHUNK = 1 << 16


@click.command()
@click.argument("run")
@click.argument("nodes", nargs=-1)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on, until Ctrl-C.")
@runs_option
def logs(run: str, nodes: tuple[str, ...], follow: bool, runs: str) -> None:
    """Show what the NODES of RUN wrote (all, if none is named).

    Lines of standard output begin with "w0 |", those of standard error with "w0 !". RUN is a name (its latest
    run), a run id or a folder.
    """
    folder = find_run(run, runs_directory(runs))
    tails = [_Tail(path, prefix) for path, prefix in _files(folder, nodes)]
    while True:
        for tail in tails:
            for line in tail.lines(last=not follow):
                sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        if not follow:
            return
        time.sleep(POLL)


def _files(folder: RunFolder, nodes: tuple[str, ...]) -> Iterator[tuple[Path, bytes]]:
    there = folder.nodes()
    if unknown := sorted(set(nodes) - set(there)):
        raise UsageError(f"no node {', '.join(unknown)} in {folder.path}; there are {', '.join(there)}")
    for node in nodes or there:
        for name, mark in STREAMS:
            yield folder.node(node) / name, node.encode() + b" " + mark + b" "


class _Tail:
    """Whole lines of a file that grows. They stay bytes: a character may be cut anywhere else."""

    def __init__(self, path: Path, prefix: bytes) -> None:
        self._path = path
        self._prefix = prefix
        self._at = 0
        self._rest = b""

    def lines(self, *, last: bool) -> Iterator[bytes]:
        """What has been written since; with ``last`` also a line that has no end yet."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            while chunk := file.read(CHUNK):
                *whole, self._rest = (self._rest + chunk).split(b"\n")
                for line in whole:
                    yield self._prefix + line + b"\n"
            self._at = file.tell()
        if last and self._rest:
            yield self._prefix + self._rest + b"\n"
