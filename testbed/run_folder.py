"""The folder of one run: where everything lies that its verdict depends on."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from testbed.errors import UsageError

LATEST = "latest"
DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def runs_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """Where run folders lie: what was given, else ``TESTBED_RUNS``, else ``./runs``. Absolute."""
    return Path(given or os.environ.get("TESTBED_RUNS") or "runs").absolute()


def new_run_id() -> str:
    """Eight hex digits. Every object that a run makes carries them, so that two runs never meet."""
    return secrets.token_hex(4)


class RunFolder:
    """Paths of one run, and the writing of its files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, runs: Path, name: str, run_id: str) -> RunFolder:
        """Make ``runs/name/<UTC time>-<run id>/`` and point ``latest`` at it. Raises UsageError."""
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        path = runs / name / f"{stamp}-{run_id}"
        try:
            for part in ("nodes", "captures"):
                (path / part).mkdir(parents=True)
            _point(path.parent / LATEST, path.name)
        except OSError as error:
            raise UsageError(
                f"cannot make the run folder {path}: {error.strerror}; choose another with --runs"
            ) from error
        return cls(path)

    @property
    def resolved(self) -> Path:
        return self.path / "resolved.json"

    @property
    def schedule(self) -> Path:
        return self.path / "schedule.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def junit(self) -> Path:
        return self.path / "junit.xml"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def captures(self) -> Path:
        return self.path / "captures"

    def node(self, name: str) -> Path:
        """The working directory of a node's process."""
        return self.path / "nodes" / name

    def nodes(self) -> list[str]:
        """The nodes that have a folder, sorted."""
        return sorted(path.name for path in (self.path / "nodes").iterdir() if path.is_dir())


def _point(link: Path, target: str) -> None:
    """Replace a symbolic link in one step, so that it never dangles and two runs never fail on each other."""
    temporary = link.with_name(f".{link.name}-{target}")
    temporary.symlink_to(target)
    os.replace(temporary, link)


def find_run(reference: str, runs: Path) -> RunFolder:
    """The folder meant by a path, by ``NAME`` (its latest run), by ``NAME/<time>-<id>``, or by a run id.

    Raises UsageError, listing what there is.
    """
    for path in (Path(reference), runs / reference, runs / reference / LATEST):
        if (path / "resolved.json").is_file():
            return RunFolder(path.resolve())
        if (path / LATEST / "resolved.json").is_file():
            return RunFolder((path / LATEST).resolve())
    if re.fullmatch(r"[0-9a-f]{8}", reference):
        for path in runs.glob(f"*/*-{reference}"):
            return RunFolder(path.resolve())
    known = ", ".join(sorted(path.name for path in runs.iterdir() if path.is_dir())) if runs.is_dir() else ""
    there = f"there are {known}" if known else "there is none yet"
    raise UsageError(f"no run {reference!r}: expected a folder or a name in {runs}, where {there}")


def write_json(path: Path, content: Any) -> None:
    """Write a whole file or none of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=2, default=_plain) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


class EventLog:
    """The testbed's own events. Each is written at once, so that a killed run leaves what it had."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.listener: Callable[[Mapping[str, Any]], None] | None = None
        """Told of each event after it has been written."""

    def record(self, event: str, **fields: Any) -> dict[str, Any]:
        """Write one event, stamped with CLOCK_MONOTONIC in ns, and return it."""
        line = {"t": time.monotonic_ns(), "event": event, **fields}
        os.write(self._file, json.dumps(line, separators=(",", ":"), default=_plain).encode() + b"\n")
        if self.listener is not None:
            self.listener(line)
        return line

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of a file of lines. A last line that was cut off by a crash is left out."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield json.loads(line)
