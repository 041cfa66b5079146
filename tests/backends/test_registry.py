"""What runs on this machine is written down before it is made, and collected only if it bears the mark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import registry
from testbed.errors import TestbedError, UsageError
from testbed.registry import RunRecord, boot_id, collect, collect_stale, find, processes, register, runs, start_time

ONE, TWO, THREE = (f"{os.getpid() & 0xFFFFFF:06x}{number:02x}" for number in (1, 2, 3))
"""Ids of runs that no other test on this machine uses at the same time."""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def write(run_id: str = ONE, name: str = "lab", **changes: object) -> RunRecord:
    record = register(run_id, name, "up", "star", Path("/nowhere"), ("w0",))
    content = json.loads(record.file.read_text()) | changes
    record.file.write_text(json.dumps(content))
    return next(one for one in runs() if one.run_id == run_id)


def test_a_run_of_a_living_process_runs() -> None:
    assert write().state == "running"


def test_another_process_with_the_same_id_is_not_it() -> None:
    assert write(pid_start=1).state == "stale"


def test_after_a_reboot_nothing_runs() -> None:
    assert write(boot_id="another").state == "rebooted"


def test_a_name_that_is_up_is_not_given_twice() -> None:
    write()
    with pytest.raises(UsageError, match="lab is up already"):
        register(TWO, "lab", "up", "star", Path("/nowhere"), ())


TAKER = """
import sys
from pathlib import Path
from testbed.errors import TestbedError, UsageError
from testbed.registry import register
sys.stdin.read(1)
try:
    register(sys.argv[1], "lab", "up", "star", Path("/nowhere"), ())
    print("mine", flush=True)
except UsageError:
    print("taken", flush=True)
sys.stdin.read()
"""


def test_of_two_who_want_a_name_at_the_same_moment_one_gets_it() -> None:
    takers = [
        subprocess.Popen([sys.executable, "-c", TAKER, run_id], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for run_id in (ONE, TWO)
    ]
    for taker in takers:
        assert taker.stdin is not None
        taker.stdin.write(b"go")
        taker.stdin.flush()
    said = [taker.stdout.readline() for taker in takers if taker.stdout is not None]
    for taker in takers:
        taker.communicate()
    assert sorted(said) == [b"mine\n", b"taken\n"]


def test_a_state_directory_of_somebody_else_is_not_used(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = state.parent / "mine"
    mine.mkdir()
    state.symlink_to(mine)
    with pytest.raises(TestbedError, match="is no folder"):
        runs()
    monkeypatch.setenv("TESTBED_STATE", "/")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(TestbedError, match="belongs to another user"):
        runs()


def test_collecting_takes_what_is_stale_and_nothing_else(state: Path) -> None:
    living, dead = write(ONE), write(TWO, pid_start=1, name="dead")
    foreign = [state / "notes.txt", state / "other.run.json", state / "x.sock"]
    for path in foreign:
        path.write_text("mine")
    removed = collect_stale()
    assert removed == {TWO: [str(dead.file)]}
    assert living.file.exists()
    assert all(path.read_text() == "mine" for path in foreign)


def test_collecting_kills_processes_with_the_mark_and_no_others() -> None:
    dead = write(ONE, pid_start=1)
    ours = subprocess.Popen(["sleep", "60"], env={**os.environ, registry.RUN_MARK: ONE})
    decoys = [
        subprocess.Popen(["sleep", "60"], env={**os.environ, registry.RUN_MARK: TWO}),
        subprocess.Popen(["sleep", "60"], env={**os.environ, "NOTE": f"{registry.RUN_MARK}={ONE}"}),
    ]
    try:
        while list(processes(ONE)) != [ours.pid]:
            assert ours.poll() is None  # until the kernel shows the environment of the new program
        assert f"process {ours.pid}" in collect_stale()[dead.run_id]
        assert ours.wait(5) == -signal.SIGKILL
        assert [decoy.poll() for decoy in decoys] == [None, None]
    finally:
        for process in (ours, *decoys):
            process.kill()
            process.wait()


def test_collecting_by_force_ends_the_process_that_holds_the_run() -> None:
    holder = subprocess.Popen(["sleep", "60"])
    try:
        held = write(pid=holder.pid, pid_start=start_time(holder.pid))
        assert held.state == "running"
        assert collect(held) == [f"process {holder.pid}", str(held.file)]
        assert holder.wait(5) == -signal.SIGKILL
    finally:
        holder.kill()
        holder.wait()


def test_what_is_meant_by_a_name() -> None:
    with pytest.raises(UsageError, match="nothing is up"):
        find(None)
    write(ONE, name="one")
    assert find(None).name == find("one").name == find(ONE).name == "one"
    write(TWO, name="two")
    with pytest.raises(UsageError, match="several runs are meant"):
        find(None)
    with pytest.raises(UsageError, match=rf"three is not up; up is one \({ONE}\), two"):
        find("three")


def test_a_process_is_known_by_its_start(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    assert start_time(child.pid) is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(child.pid) is None, "a corpse does not run"
    child.wait()
    assert len(boot_id()) == 36
