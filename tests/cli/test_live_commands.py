"""The commands on real networks: up, status, exec, capture, down, and what a run leaves when it is broken off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.testbed_process import Testbed, marked_processes

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.needs("raw-sockets")]

QUICK = """\
topology: pair
duration: 1s
workload: {kind: pipeline, stages: 1, requests: 20/s}
expect:
  goodput: {min: 100%}
"""
PHASES = ("making the network", "starting w0", "traffic and faults", "waiting for the last", "judging")


@pytest.fixture
def testbed(tmp_path: Path) -> Iterator[Testbed]:
    (tmp_path / "quick.yaml").write_text(QUICK)
    testbed = Testbed(tmp_path)
    yield testbed
    if testbed.records():
        testbed.do("gc", "--all")


def test_up_status_exec_capture_down(testbed: Testbed) -> None:
    up = testbed.do("up", "pair", "--name", "mine", "--format", "json")
    assert up.status == 0, str(up)
    made = json.loads(up.out)
    assert sorted(made["nodes"]) == ["w0", "w1"]

    listed = json.loads(testbed.do("status", "--format", "json").out)
    assert [(entry["name"], entry["state"], sorted(entry["nodes"])) for entry in listed] == [
        ("mine", "running", ["w0", "w1"])
    ]
    assert testbed.do("up", "pair", "--name", "mine").status == 64, "one name is one topology"

    assert testbed.do("exec", "mine", "w0", "--", "sh", "-c", "cat /sys/class/net/eth1/address; exit 7").status == 7
    assert testbed.do("exec", "mine", "w0", "--", "sh", "-c", "kill -TERM $$").status == 128 + signal.SIGTERM
    assert testbed.do("exec", "mine", "w9", "--", "true").status == 64

    began = testbed.do("capture", "start", "mine", "w1")
    assert began.status == 0, str(began)
    assert testbed.do("capture", "start", "mine").status == 1, "one capture at a time"
    ping = testbed.do("exec", "mine", "w0", "--", sys.executable, "-c", _udp_to(made["nodes"]["w1"]["locator"]))
    assert ping.status == 0, str(ping)
    ended = json.loads(testbed.do("capture", "stop", "mine", "--format", "json").out)
    ((path, counted),) = ended.items()
    assert counted["frames"] >= 1
    assert counted["dropped"] == 0
    shown = testbed.do("capture", "show", path, "--raw")
    assert "UDP" in shown.out, str(shown)

    down = testbed.do("down")
    assert (down.status, testbed.records()) == (0, []), str(down)
    assert marked_processes([made["run_id"]]) == []
    assert testbed.do("down").status == 64


def _udp_to(locator: str) -> str:
    host = locator.partition(":")[0]
    return f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'hello', ('{host}', 9))"


def test_faults_of_links_do_not_reach_the_control_plane(testbed: Testbed) -> None:
    """T31: with every frame lost, everything can still be asked and ended."""
    made = json.loads(testbed.do("up", "pair", "--format", "json").out)
    assert testbed.do("exec", "pair", "w0", "--", sys.executable, "-c", _tcp_to(made)).status == 0
    lossy = _keeper(testbed, "impair", link="w0--w1", direction="a-to-b", changes={"loss": 1.0})
    assert lossy["impairment"]["loss"] == 1.0
    assert testbed.do("exec", "pair", "w0", "--", sys.executable, "-c", _tcp_to(made)).status == 1
    status = json.loads(testbed.do("status", "pair", "--format", "json").out)
    assert all(status["nodes"].values())
    assert testbed.do("down", "pair").status == 0


def _tcp_to(made: dict[str, object]) -> str:
    host, _, port = made["nodes"]["w1"]["locator"].partition(":")  # type: ignore[index]
    return f"import socket; socket.create_connection(('{host}', {port}), timeout=1)"


def _keeper(testbed: Testbed, do: str, **fields: object) -> dict[str, object]:
    code = (
        "import json, sys; from testbed.keeper import KeeperClient; from testbed.registry import find;"
        "print(json.dumps(KeeperClient(find(None)).ask(sys.argv[1], **json.loads(sys.argv[2]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, do, json.dumps(fields)],
        env={**os.environ, "TESTBED_STATE": str(testbed.state)},
        capture_output=True,
        check=True,
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("phase", PHASES)
def test_a_run_that_is_interrupted_leaves_nothing(testbed: Testbed, phase: str, number: signal.Signals) -> None:
    """T10, at every step. The second signal, sent at once, must not stop the clean-up."""
    command = testbed.start("run", "quick.yaml")
    command.until(phase)
    command.signal(number)
    time.sleep(0.02)
    command.signal(number)
    done = command.wait()
    assert done.status == 128 + number, str(done)
    assert testbed.records() == []
    assert marked_processes(done.run_ids) == []
    result = json.loads((testbed.runs / "quick" / "latest" / "result.json").read_text())
    assert result["verdict"] == "unknown", "what was broken off proves nothing"


@pytest.mark.parametrize("phase", PHASES[:4])
def test_a_run_that_is_killed_is_found_and_collected(testbed: Testbed, phase: str) -> None:
    """T10 and T11: nothing can be undone by whoever is killed, so the next command does it."""
    command = testbed.start("run", "quick.yaml")
    command.until(phase)
    command.process.kill()
    done = command.wait()
    states = {entry["state"] for entry in json.loads(testbed.do("status", "--format", "json").out)}
    assert states == {"stale"}
    assert testbed.do("gc").status == 0
    assert testbed.records() == []
    assert marked_processes(done.run_ids) == []
    result = json.loads((testbed.runs / "quick" / "latest" / "result.json").read_text())
    assert result["verdict"] == "unknown"
    assert testbed.do("check", "quick").status == 2


def test_an_interrupted_up_leaves_nothing(testbed: Testbed) -> None:
    for wait in (0.3, 0.5, 0.7):
        command = testbed.start("up", "five")
        time.sleep(wait)  # there is no sign of how far it is: that is the point
        command.signal(signal.SIGINT)
        done = command.wait()
        assert done.status in (0, 130), str(done)
        if done.status == 0:
            testbed.do("down")
        assert testbed.records() == [], f"interrupted after {wait} s"


def test_the_same_file_twice_at_once(testbed: Testbed) -> None:
    """T14."""
    both = [testbed.start("run", "quick.yaml") for _ in range(2)]
    for command in both:
        done = command.wait()
        assert done.status in (0, 2), str(done)  # 2: two runs on two cores may lose time, but never meet
        assert "fail" not in done.out
    assert len(list((testbed.runs / "quick").glob("2*"))) == 2


def test_what_is_kept_stays_until_it_is_taken_down(testbed: Testbed) -> None:
    command = testbed.start("run", "quick.yaml", "--keep", "--name", "kept")
    command.until("kept up")
    assert testbed.do("exec", "kept", "w0", "--", "true").status == 0
    assert testbed.do("down", "kept").status == 0
    done = command.wait()
    assert done.status in (0, 2), str(done)
    assert "broken off" not in done.out


def test_a_run_that_is_taken_down_from_outside_is_unknown(testbed: Testbed) -> None:
    command = testbed.start("run", "steady")
    command.until("traffic and faults")
    assert testbed.do("down", "steady").status == 0
    done = command.wait()
    assert done.status == 2, str(done)
    assert "taken down" in done.err


@pytest.mark.parametrize(
    ("part", "said"),
    [("wire_process", "the network carries nothing"), ("nursery", "the parent of node processes")],
)
def test_a_part_of_the_testbed_that_dies_ends_the_run(testbed: Testbed, part: str, said: str) -> None:
    """Never is there a network that looks perfect because nothing emulates it any more, and what the testbed does to
    nodes is no failure of theirs."""
    command = testbed.start("run", "steady")
    command.until("traffic and faults")
    (pid,) = [pid for pid in _children(command.process.pid) if part in _command_line(pid)]
    os.kill(pid, signal.SIGKILL)
    done = command.wait()
    assert done.status == 2, str(done)
    assert said in done.err
    assert testbed.records() == []
    assert marked_processes(done.run_ids) == []


def test_a_node_that_ends_by_itself_is_a_fail_with_its_last_words(testbed: Testbed) -> None:
    command = testbed.start("run", "steady")
    command.until("traffic and faults")
    nodes = json.loads(testbed.do("status", "steady", "--format", "json").out)["nodes"]
    os.kill(nodes["w2"], signal.SIGABRT)
    done = command.wait()
    assert done.status == 1, str(done)
    assert "w2 ended by itself, by signal 6" in done.err
    assert testbed.records() == []


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_a_target_that_dies_while_a_fault_is_active_ends_the_fault_and_not_the_run(testbed: Testbed) -> None:
    """T17."""
    (testbed.home / "gone.yaml").write_text(
        "topology: five\nduration: 2s\nworkload: {kind: pipeline, stages: 2, requests: 20/s}\nevents:\n"
        "  - {at: 300ms, pause: {node: w4, for: 1s}}\n"
        "  - {at: 600ms, crash: {node: w4}}\n"
        "expect:\n  goodput: {min: 100%}\n"
    )
    done = testbed.do("run", "gone.yaml")
    assert done.status in (0, 2), str(done)
    assert "fail" not in done.out
    lines = (testbed.runs / "gone" / "latest" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["kind"] for event in events if event["event"] == "fault.target-gone"] == ["pause"]
    assert any(event["event"] == "traffic.stopped" and event["complete"] for event in events)


@pytest.mark.needs("unshare")
def test_an_ordinary_user_runs_the_same_commands(tmp_path: Path) -> None:
    """Somebody who is root nowhere: the same commands, no sudo."""
    (tmp_path / "quick.yaml").write_text(QUICK)
    testbed = Testbed(tmp_path, ["unshare", "--user", "--map-user=1000", "--map-group=1000"])
    assert testbed.do("up", "pair").status == 0
    assert testbed.do("exec", "pair", "w0", "--", "true").status == 0
    assert testbed.do("down", "pair").status == 0
    done = testbed.do("run", "quick.yaml")
    assert done.status in (0, 2), str(done)  # 2: without real-time scheduling the emulation may lose time
    assert "fail" not in done.out
    assert testbed.records() == []
