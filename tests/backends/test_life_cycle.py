"""Coming up and going down, broken off at every step (T10, T11), two at a time (T14), among things of others (T12)."""

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

from tests.cli.testbed_process import Running, Testbed

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.needs("raw-sockets")]

COMING_UP = (
    ("testbed.registry:register", 1),
    ("testbed.keeper:Keeper.open", 1),
    ("testbed.backends.netns:NetnsBackend.up", 1),
    ("testbed.backends.processes:Processes.launch", 1),
    ("testbed.backends.namespace:new_namespace", 1),
    ("testbed.backends.namespace:new_namespace", 3),
    ("testbed.backends.namespace:set_offloads", 1),
    ("testbed.backends.namespace:set_offloads", 4),
    ("testbed.backends.wire:Wire.start", 1),
    ("testbed.backends.wire_child:Child.__init__", 1),
    ("testbed.backends.processes:Processes.start", 1),
    ("testbed.backends.processes:Process.__init__", 2),
    ("testbed.control:ControlClient.connect", 1),
    ("testbed.live:LiveWorld.wait_joined", 1),
)
GOING_DOWN = (
    ("testbed.live:LiveWorld.stop", 1),
    ("testbed.backends.wire:Wire.stop", 1),
    ("testbed.backends.netns:NetnsBackend.down", 1),
    ("testbed.backends.processes:Processes.close", 1),
    ("testbed.backends.namespace:Namespaces.close", 1),
    ("testbed.registry:RunRecord.forget", 1),
    ("testbed.keeper:Keeper.close", 1),
)
SIGNALS = ("INT", "KILL")
STEPPED = Path(__file__).with_name("stepped.py")


@pytest.fixture
def testbed(tmp_path: Path) -> Iterator[Testbed]:
    testbed = Testbed(tmp_path)
    host = what_the_host_has()
    yield testbed
    if testbed.records():
        testbed.do("gc", "--all")
    assert what_the_host_has() == host


def what_the_host_has() -> list[str]:
    """Interfaces, and namespaces that have a name or are mounted somewhere."""
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout)
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if line.startswith("nsfs")]
    return sorted([*(link["ifname"] for link in links), *mounts])


def left_of(testbed: Testbed) -> dict[int, str]:
    """Every process that was started with this test's state directory: keepers, wires, nodes, anything."""
    mark = f"TESTBED_STATE={testbed.state}".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def assert_nothing_left(testbed: Testbed, within: float = 10.0) -> None:
    until = time.monotonic() + within
    while left := left_of(testbed):
        assert time.monotonic() < until, f"still there after {within:g} s: {left}"
        time.sleep(0.01)


def up(testbed: Testbed, step: tuple[str, int], name: str, reached: Path) -> Running:
    environment = {**os.environ, "TESTBED_RUNS": str(testbed.runs), "TESTBED_STATE": str(testbed.state)}
    command = [sys.executable, str(STEPPED), step[0], str(step[1]), name, str(reached), "up", "pair"]
    return Running(command, environment, testbed.home)


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("step", COMING_UP, ids=lambda step: f"{step[0].partition(':')[2]}-{step[1]}")
def test_broken_off_while_it_comes_up(testbed: Testbed, tmp_path: Path, step: tuple[str, int], name: str) -> None:
    done = up(testbed, step, name, tmp_path / "reached").wait()
    assert (tmp_path / "reached").exists(), f"it never came to {step}: {done}"
    assert done.status not in (0, 70), done
    assert_nothing_left(testbed)
    if name == "KILL":
        states = {entry["state"] for entry in json.loads(testbed.do("status", "--format", "json").out)}
        assert states <= {"stale"}
        assert testbed.do("gc").status == 0
    assert testbed.records() == []


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("step", GOING_DOWN, ids=lambda step: step[0].partition(":")[2])
def test_broken_off_while_it_goes_down(testbed: Testbed, tmp_path: Path, step: tuple[str, int], name: str) -> None:
    """A signal has ended it already. A second one does not stop the undoing; what a KILL leaves is collected."""
    made = up(testbed, step, name, tmp_path / "reached").wait()
    assert made.status == 0, made
    (entry,) = json.loads(testbed.do("status", "--format", "json").out)
    os.kill(entry["pid"], signal.SIGTERM)
    assert_nothing_left(testbed)
    assert (tmp_path / "reached").exists(), f"it never came to {step}"
    if name == "KILL":
        assert testbed.do("gc").status == 0
    assert testbed.records() == []


def test_two_at_once_do_not_meet(testbed: Testbed) -> None:
    both = [testbed.start("up", "pair", "--name", name, "--format", "json") for name in ("left", "right")]
    made = []
    for command in both:
        done = command.wait()
        assert done.status == 0, done
        made.append(json.loads(done.out))
    for one in made:
        host, _, port = one["nodes"]["w1"]["locator"].partition(":")
        code = f"import socket; socket.create_connection(('{host}', {port}), timeout=2)"
        reached = testbed.do("exec", one["name"], "w0", "--", sys.executable, "-c", code)
        assert reached.status == 0, reached
    assert testbed.do("down", "left").status == 0
    (there,) = json.loads(testbed.do("status", "--format", "json").out)
    assert (there["name"], there["state"]) == ("right", "running")
    assert all(there["nodes"].values())
    assert testbed.do("down", "--all").status == 0
    assert_nothing_left(testbed)
