"""What runs on this machine: one file per run, written before anything is made and removed when all is undone.

A bare process id is never trusted: the start time of the process and the boot of the machine must fit as well.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError, UsageError
from testbed.run_folder import write_json

RUN_MARK = "TESTBED_RUN"
"""Environment variable that every process of a run carries, with the run's id."""
SUFFIX = ".run.json"
GONE_WITHIN = 10.0
"""Seconds that killed processes may take to be gone."""


def state_directory() -> Path:
    """Where the files of this user's runs lie; made if it is not there. Raises TestbedError if it belongs to somebody
    else.
    """
    base = os.environ.get("TESTBED_STATE")
    user = _user()
    path = Path(base) if base else Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"testbed-{user}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise TestbedError(f"{path} belongs to another user or is no folder: set TESTBED_STATE to a folder of your own")
    return path


def _user() -> int:
    """The user as the machine knows it, also inside a user namespace, where everybody is root."""
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= os.getuid() < inside + count:
            return outside + os.getuid() - inside
    return os.getuid()


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is none, or only its corpse."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(slots=True)
class RunRecord:
    """A run as its file says."""

    run_id: str
    name: str
    kind: str
    """``run`` or ``up``."""
    topology: str
    folder: str
    pid: int
    pid_start: int
    boot_id: str
    begun: float = field(default_factory=time.time)
    """UNIX time in s."""
    nodes: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """``running``; ``stale`` if its process is gone; ``rebooted`` if the machine is not the one it ran on any
        more.
        """
        if self.boot_id != boot_id():
            return "rebooted"
        return "running" if start_time(self.pid) == self.pid_start else "stale"

    @property
    def socket(self) -> Path:
        """Where its keeper listens."""
        return state_directory() / f"{self.run_id}.sock"

    @property
    def file(self) -> Path:
        return state_directory() / f"{self.run_id}{SUFFIX}"

    def forget(self) -> None:
        """Remove its files from the state directory. The run folder stays."""
        self.socket.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)


def register(run_id: str, name: str, kind: str, topology: str, folder: Path, nodes: tuple[str, ...]) -> RunRecord:
    """Write down that this process is about to make a run. Raises UsageError if the name is in use by a running
    ``up``.
    """
    pid = os.getpid()
    record = RunRecord(run_id, name, kind, topology, str(folder), pid, start_time(pid) or 0, boot_id(), nodes=nodes)
    with _one_at_a_time():
        for other in runs():
            if other.name == name and other.kind == kind == "up" and other.state == "running":
                raise UsageError(
                    f"{name} is up already (run {other.run_id}): end it with testbed down {name}, or choose another"
                    " --name"
                )
        write_json(record.file, asdict(record))
    return record


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Between looking for a name and taking it nobody else may take it. The lock ends with the process."""
    folder = os.open(state_directory(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def runs() -> list[RunRecord]:
    """Every run that is written down, oldest first. A file that is not a record is left alone."""
    found = []
    for path in state_directory().glob(f"*{SUFFIX}"):
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            found.append(RunRecord(**{**content, "nodes": tuple(content["nodes"])}))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return sorted(found, key=lambda record: record.begun)


def find(name: str | None, *, kind: str | None = None) -> RunRecord:
    """The run meant by a name or an id; without one, the only one there is. Raises UsageError, naming what there is."""
    there = [record for record in runs() if record.state == "running" and kind in (None, record.kind)]
    chosen = [record for record in there if name in (None, record.name, record.run_id)]
    if len(chosen) == 1:
        return chosen[0]
    known = ", ".join(f"{record.name} ({record.run_id})" for record in there) or "nothing"
    if not chosen:
        raise UsageError(f"{name or 'nothing'} is not up; up is {known}" if name else "nothing is up")
    raise UsageError(f"several runs are meant: say which by its name or id; up is {known}")


def processes(run_id: str) -> Iterator[int]:
    """Processes of this user that carry the run's mark in their environment; the asking one is left out."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _marked(int(entry.name), run_id):
            yield int(entry.name)


def _marked(pid: int, run_id: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # gone, or somebody else's
    return f"{RUN_MARK}={run_id}".encode() in environment.split(b"\0") and start_time(pid) is not None


def _kill(pid: int, is_it: Callable[[], bool]) -> bool:
    """Kill a process if it still is what it was found to be; says whether it was.

    What is asked and what is killed are the same process: the descriptor does not move on to another one that gets
    the id.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_it():
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def kill_processes(run_id: str) -> list[int]:
    """Kill all processes that carry the run's mark, also those that they start meanwhile; returns their ids.

    Blocks until they are gone. Raises TestbedError, naming them, if they are not after ``GONE_WITHIN``.
    """
    killed: dict[int, None] = {}
    until = time.monotonic() + GONE_WITHIN
    while there := list(processes(run_id)):
        killed |= {pid: None for pid in there if _kill(pid, partial(_marked, pid, run_id))}
        if time.monotonic() > until:
            raise TestbedError(
                f"processes {', '.join(map(str, there))} of run {run_id} do not end, {GONE_WITHIN:g} s after SIGKILL"
            )
        time.sleep(0.005)
    return list(killed)


def collect(record: RunRecord) -> list[str]:
    """Remove what a run left that nobody undid: its process if it still runs, processes with its mark, its files in
    the state directory. Returns what it removed.

    Network namespaces and interfaces go by themselves: the kernel removes them with the last process that holds them.
    """
    removed = []
    if record.state == "running" and _kill(record.pid, lambda: record.state == "running"):
        removed.append(f"process {record.pid}")
    if record.state != "rebooted":
        removed += [f"process {pid}" for pid in kill_processes(record.run_id)]
    removed += [str(path) for path in (record.socket, record.file) if path.exists()]
    record.forget()
    return removed


def collect_stale() -> dict[str, list[str]]:
    """Collect every run whose process is gone; run id -> what was removed."""
    return {record.run_id: collect(record) for record in runs() if record.state != "running"}
