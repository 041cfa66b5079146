"""The ``testbed`` command as its users run it: a process of its own, in folders of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = b"TESTBED_RUN="
WITHIN = 60.0
"""Seconds that anything may take here before a test gives up on it."""


def marked_processes(run_ids: Sequence[str]) -> list[int]:
    """Processes that bear the mark of one of these runs."""
    marks = {MARK + run_id.encode() for run_id in run_ids}
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marks & set(entry.read_bytes().split(b"\0")):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


class Testbed:
    """Starts commands with run folders and state under ``home``."""

    __test__ = False

    def __init__(self, home: Path, prefix: Sequence[str] = ()) -> None:
        self.home = home
        self.runs = home / "runs"
        self.state = home / "state"
        self._prefix = prefix
        self._environment = {
            **os.environ,
            "TESTBED_RUNS": str(self.runs),
            "TESTBED_STATE": str(self.state),
            "TERM": "dumb",
        }

    def start(self, *arguments: str) -> Running:
        command = [*self._prefix, sys.executable, "-m", "testbed.cli", *arguments]
        return Running(command, self._environment, self.home)

    def do(self, *arguments: str) -> Done:
        """A command from its beginning to its end."""
        return self.start(*arguments).wait()

    def records(self) -> list[str]:
        """What the state directory holds."""
        return sorted(path.name for path in self.state.iterdir()) if self.state.is_dir() else []


class Done:
    """A command that has ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def run_ids(self) -> list[str]:
        return re.findall(r"^run ([0-9a-f]{8}):", self.err, re.MULTILINE)

    def __str__(self) -> str:
        return f"status {self.status}\n{self.out}\n{self.err}"


class Running:
    """A command that may still be running. Its output goes to files, so that it never waits for a reader."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        name = f"command-{time.monotonic_ns()}"
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, env=dict(environment), cwd=folder, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self._err.read_text(errors="replace")

    def until(self, text: str) -> None:
        """Wait until it has said this on standard error, or has ended."""
        deadline = time.monotonic() + WITHIN
        while text not in self.said and self.process.poll() is None:
            assert time.monotonic() < deadline, f"it never said {text!r}:\n{self.said}"
            time.sleep(0.005)

    def signal(self, number: int) -> None:
        """To the whole foreground process group, as a terminal does."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            assert self.process.poll() is not None

    def wait(self) -> Done:
        try:
            status = self.process.wait(WITHIN * 2)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGTERM)
            self.process.wait(WITHIN)
            raise AssertionError(f"it did not end by itself:\n{self.said}") from None
        return Done(status, self._out.read_text(errors="replace"), self.said)
