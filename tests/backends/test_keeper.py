"""Whoever holds a network answers for it: real ``up``s, asked over their sockets and by the commands."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.keeper import KeeperClient
from testbed.registry import RunRecord, collect, find, processes, runs, start_time
from tests.cli.testbed_process import Testbed

pytestmark = [pytest.mark.live, pytest.mark.needs("raw-sockets")]
ALIVE = "import time; print('there', flush=True); time.sleep(60)"


def soon(condition: Callable[[], object], what: str, within: float = 10.0) -> None:
    """Wait until something is so; fails by saying what is not."""
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, f"not within {within:g} s: {what}"
        time.sleep(0.005)


@pytest.fixture
def testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Testbed]:
    testbed = Testbed(tmp_path)
    monkeypatch.setenv("TESTBED_STATE", str(testbed.state))
    yield testbed
    if testbed.records():
        testbed.do("gc", "--all")


@pytest.fixture
def record(testbed: Testbed) -> RunRecord:
    up = testbed.do("up", "pair", "--name", "lab")
    assert up.status == 0, up
    return find("lab")


def test_links_are_changed_read_back_and_restored(record: RunRecord) -> None:
    client = KeeperClient(record)
    link = {"link": "w0--w1", "direction": "a-to-b"}
    declared = client.ask("restore", **link, fields=["delay"])["impairment"]
    changed = client.ask("impair", **link, changes={"delay": 5_000_000})["impairment"]
    assert changed == declared | {"delay": 5_000_000}
    assert client.ask("restore", **link, fields=["delay"])["impairment"] == declared
    there = ["python3", "-c", "import socket; socket.create_connection(('10.0.0.2', 7400), 0.3)"]
    there[2] = there[2].replace("10.0.0.2", _address(record, "w1"))
    assert client.execute("w0", there) == 0
    client.ask("block", name="cut", pairs=[["w0:eth1", "w1:eth1"]])
    assert client.execute("w0", there) != 0
    client.ask("unblock", name="cut")
    assert client.execute("w0", there) == 0
    assert client.ask("stats")["stats"]["frames"] > 0


def _address(record: RunRecord, node: str) -> str:
    config = json.loads((Path(record.folder) / "nodes" / node / "node.json").read_text())
    return str(config["locator"]).partition(":")[0]


def test_what_is_asked_wrongly_is_answered_with_what_is_wrong(record: RunRecord) -> None:
    client = KeeperClient(record)
    for request, said in (
        ({"do": "dance"}, "unknown request 'dance'"),
        ({"do": "signal"}, "missing 'node'"),
        ({"do": "signal", "node": "w7", "signal": 9}, "w7 is not running"),
        ({"do": "start", "node": "w0"}, "running already"),
        ({"do": "impair", "link": "no", "direction": "a-to-b", "changes": {}}, "no"),
        (
            {"do": "impair", "link": "w0--w1", "direction": "a-to-b", "changes": {"weight": 1}},
            "unknown parameter weight",
        ),
    ):
        with pytest.raises(TestbedError, match=said):
            client.ask(**request)  # type: ignore[arg-type]


def test_a_node_that_was_killed_is_shown_and_started_again(record: RunRecord) -> None:
    client = KeeperClient(record)
    before = client.ask("status")["nodes"]
    client.ask("signal", node="w1", signal=signal.SIGKILL)
    soon(lambda: client.ask("status")["nodes"]["w1"] is None, "w1 is shown as gone")
    started = client.ask("start", node="w1")["pid"]
    assert client.ask("status")["nodes"] == before | {"w1": started}
    assert started != before["w1"]


def test_exit_statuses_come_through(record: RunRecord, capfd: pytest.CaptureFixture[str]) -> None:
    client = KeeperClient(record)
    assert client.execute("w1", ["sh", "-c", "echo out; echo err >&2; exit 7"]) == 7
    assert capfd.readouterr() == ("out\n", "err\n")
    assert client.execute("w1", ["sh", "-c", "kill -9 $$"]) == -signal.SIGKILL
    assert client.execute("w1", ["no-such-command"]) == 127


def test_exec_works_on_the_terminal_of_its_caller(record: RunRecord, testbed: Testbed) -> None:
    """The command has the terminal itself, and Ctrl-C there reaches it, not only whoever asked for it."""
    script = (
        "trap 'echo caught; exit 3' INT; test -t 0 && read line && echo \"got $line\"; while :; do sleep 0.01; done"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(testbed.home)
        arguments = ["-m", "testbed.cli", "exec", "lab", "w0", "--", "sh", "-c", script]
        os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, "TESTBED_STATE": str(testbed.state)})
    os.write(terminal, b"hello\n")
    seen = b""
    while b"got hello" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while b"caught" not in seen:
        seen += os.read(terminal, 1000)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    os.close(terminal)


def test_a_command_ends_when_its_caller_is_killed(record: RunRecord, testbed: Testbed) -> None:
    command = testbed.start("exec", "lab", "w0", "--", sys.executable, "-c", ALIVE)
    soon(lambda: _running(record.run_id, "-c"), "the command runs")
    command.process.kill()
    command.process.wait()
    soon(lambda: not _running(record.run_id, "-c"), "the command has ended")


def _running(run_id: str, argument: str) -> list[int]:
    """Processes of the run that have this argument."""
    found = []
    for pid in processes(run_id):
        with suppress(OSError):  # it has ended meanwhile
            if argument.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def leave_something_behind(record: RunRecord) -> int:
    """Run a command that leaves a process of its own in a node; returns its id."""
    assert KeeperClient(record).execute("w0", ["sh", "-c", "setsid sleep 60 </dev/null >/dev/null 2>&1 &"]) == 0
    soon(lambda: _running(record.run_id, "sleep"), "it sleeps")
    (stray,) = _running(record.run_id, "sleep")
    return stray


def test_down_needs_no_file_and_leaves_nothing(record: RunRecord, testbed: Testbed) -> None:
    """T13; also what a command has left running behind it, which would keep a namespace alive."""
    stray = leave_something_behind(record)
    assert testbed.do("down", "lab").status == 0
    assert start_time(stray) is None
    assert (runs(), list(processes(record.run_id)), testbed.records()) == ([], [], [])
    with pytest.raises(TestbedError, match="does not answer"):
        KeeperClient(record).ask("status")


def test_what_a_killed_keeper_leaves_is_shown_and_collected(record: RunRecord, testbed: Testbed) -> None:
    """T11. Node processes die with it; what outlives it on purpose is an orphan, which ``gc`` ends."""
    stray = leave_something_behind(record)
    os.kill(record.pid, signal.SIGKILL)
    soon(lambda: list(processes(record.run_id)) == [stray], "all but the stray have died with the keeper")
    (shown,) = json.loads(testbed.do("status", "--format", "json").out)
    assert (shown["state"], shown["orphans"]) == ("stale", [stray])
    collected = testbed.do("gc")
    assert f"process {stray}" in collected.err
    assert start_time(stray) is None
    assert testbed.records() == []


def test_a_keeper_that_hangs_is_removed_by_force(record: RunRecord, testbed: Testbed) -> None:
    os.kill(record.pid, signal.SIGSTOP)
    with pytest.raises(TestbedError, match=r"no answer to status for 0.2 s"):
        KeeperClient(record).ask("status", timeout=200_000_000)
    assert f"process {record.pid}" in collect(record)
    assert record.state == "stale"
    assert (testbed.records(), list(processes(record.run_id))) == ([], [])


def test_what_comes_up_can_be_taken_down_already(testbed: Testbed) -> None:
    command = testbed.start("up", "five", "--name", "early")
    soon(lambda: any(name.endswith(".sock") for name in testbed.records()), "it listens")
    down = testbed.do("down", "early")
    assert (down.status, testbed.records()) == (0, []), down
    assert command.wait().status in (0, 1), "up already, or told that it was taken down"


def test_a_network_whose_nodes_cannot_run_says_why_and_leaves_nothing(testbed: Testbed, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "pipeline"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("")
    (broken / "worker.py").write_text("def main(argv):\n    raise SystemExit('no such accelerator')\n")
    environment = {**os.environ, "TESTBED_STATE": str(testbed.state), "PYTHONPATH": str(broken.parent)}
    up = subprocess.run(
        [sys.executable, "-m", "testbed.cli", "up", "pair", "--runs", str(testbed.runs)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert up.returncode == 1
    assert "ended while it started; see" in up.stderr
    assert testbed.records() == []
