"""The netns backend for real: namespaces, processes, restarts, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from plans import RUN_ID, star

from testbed.backends import netns
from testbed.backends.netns import NetnsBackend
from testbed.deadline import SECOND
from testbed.errors import DeadlineExceeded, NodeFailed, TestbedError
from testbed.registry import processes, start_time

pytestmark = [pytest.mark.live, pytest.mark.needs("raw-sockets", "ping")]


@pytest.fixture(autouse=True)
def _greeter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[NetnsBackend]:
    backend = NetnsBackend(star(["w0", "w1", "w2"], delay=1_000_000), tmp_path, program="greeter")
    try:
        await backend.up()
        yield backend
    finally:
        await backend.down()


def host_interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


async def run_in(backend: NetnsBackend, node: str, *argv: str) -> tuple[int, str]:
    """Run a command in a node and wait for it; its exit status and output."""
    reader, writer = os.pipe()
    try:
        process = await backend.spawn(node, argv, [writer, writer, writer])
    finally:
        os.close(writer)
    status = await asyncio.wait_for(process.ended, 20)
    with os.fdopen(reader) as output:
        return os.waitstatus_to_exitcode(status), output.read()


async def test_nodes_start_answer_and_reach_each_other(backend: NetnsBackend, tmp_path: Path) -> None:
    pids = await asyncio.gather(*(backend.start_node(name, {"name": name}) for name in ("w0", "w1", "w2")))
    assert backend.running() == ["w0", "w1", "w2"]
    assert len(set(pids)) == 3
    for address in ("10.9.0.2", "fd09::2"):
        status, output = await run_in(backend, "w0", "ping", "-c", "2", "-i", "0.05", "-W", "2", address)
        assert status == 0, output
    assert f"greeter w0 {RUN_ID}" in (tmp_path / "nodes/w0/stdout.log").read_text()


async def test_an_ipv6_address_can_be_bound_at_once(backend: NetnsBackend) -> None:
    code = "import socket; s = socket.socket(socket.AF_INET6); s.bind(('fd09::3', 1))"
    assert await run_in(backend, "w2", "python3", "-c", code) == (0, "")


async def test_everything_bears_the_mark_and_the_host_sees_nothing(backend: NetnsBackend) -> None:
    status, output = await run_in(backend, "w1", "ip", "-j", "-d", "link", "show", "eth1")
    assert status == 0
    link = json.loads(output)[0]
    assert link["ifalias"] == f"testbed {RUN_ID} w1:eth1"
    assert link["address"] == "02:00:00:00:00:02"
    assert not any(name.startswith(f"x{RUN_ID[:6]}") for name in host_interfaces())


async def test_a_restart_keeps_links_addresses_and_impairments(backend: NetnsBackend) -> None:
    await backend.start_node("w1", {"name": "w1"})
    before = await run_in(backend, "w1", "ip", "-o", "addr")
    await backend.wire.impair("w1--s0", "a-to-b", {"delay": 30_000_000})
    await backend.signal("w1", signal.SIGKILL)
    assert os.waitstatus_to_exitcode(await backend.wait_exit("w1", 5 * SECOND)) == -signal.SIGKILL
    assert await asyncio.wait_for(backend.exits.get(), 5) == ("w1", pytest.approx(0, abs=1 << 40), signal.SIGKILL)
    await backend.start_node("w1", {"name": "w1"})
    assert await run_in(backend, "w1", "ip", "-o", "addr") == before
    status, output = await run_in(backend, "w0", "ping", "-c", "3", "-i", "0.05", "10.9.0.2")
    assert status == 0
    times = [float(line.split("time=")[1].split()[0]) for line in output.splitlines() if "time=" in line]
    assert min(times) > 30


async def test_a_node_that_ends_at_once_is_named_with_where_to_look(backend: NetnsBackend, tmp_path: Path) -> None:
    with pytest.raises(NodeFailed, match=r"w0 ended while it started; see .*stderr.log"):
        await backend.start_node("w0", {"name": "w0", "exit": 3})
    assert (tmp_path / "nodes/w0/stderr.log").read_text() == "as told\n"
    assert os.waitstatus_to_exitcode((await backend.exits.get())[2]) == 3


async def test_a_second_start_and_an_unknown_node_are_refused(backend: NetnsBackend) -> None:
    await backend.start_node("w0", {"name": "w0"})
    with pytest.raises(NodeFailed, match="running already"):
        await backend.start_node("w0", {"name": "w0"})
    with pytest.raises(TestbedError, match="no node 'w9' here; there are w0, w1, w2"):
        await backend.spawn("w9", ["true"], [0, 1, 2])


async def test_a_command_that_is_not_there_says_so(backend: NetnsBackend) -> None:
    assert await run_in(backend, "w0", "no-such-command") == (127, "no-such-command: No such file or directory\n")


async def test_down_ends_every_process_even_stopped_ones(backend: NetnsBackend) -> None:
    await backend.start_node("w0", {"name": "w0"})
    await backend.signal("w0", signal.SIGSTOP)
    await backend.spawn("w1", ["sleep", "60"], [os.open(os.devnull, os.O_RDWR)] * 3)
    await backend.down()
    await backend.down()
    assert await _none_left(RUN_ID) == []


async def test_what_a_command_leaves_behind_is_ended_too(backend: NetnsBackend) -> None:
    """Else it would keep the namespace, and with it the links, for ever."""
    status, output = await run_in(backend, "w1", "sh", "-c", "setsid sleep 60 </dev/null >/dev/null 2>&1 & echo $!")
    assert status == 0
    stray = int(output)
    assert start_time(stray) is not None
    await backend.down()
    assert start_time(stray) is None


async def test_a_signal_to_a_command_reaches_what_it_has_started(backend: NetnsBackend) -> None:
    reader, writer = os.pipe()
    process = await backend.spawn("w0", ["sh", "-c", "sleep 60 & echo $!; wait"], [writer] * 3)
    os.close(writer)
    with os.fdopen(reader) as output:
        child = int(output.readline())
        assert process.send(signal.SIGTERM, group=True)
        assert os.waitstatus_to_exitcode(await asyncio.wait_for(process.ended, 5)) == -signal.SIGTERM
        assert output.read() == "", "the end of the pipe: nobody has it open any more"
    assert start_time(child) is None
    assert not process.send(signal.SIGTERM, group=True)


async def test_a_node_that_does_not_answer_is_named_when_its_time_is_up(
    backend: NetnsBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T18."""
    monkeypatch.setattr(netns, "READY_WITHIN", SECOND // 2)
    with pytest.raises(DeadlineExceeded, match=rf"after 0.5 s: w0 \(pid \d+\) does not answer on {tmp_path}"):
        await backend.start_node("w0", {"name": "w0", "silent": True})


async def test_the_end_of_the_warm_parent_is_noticed(backend: NetnsBackend) -> None:
    await backend.start_node("w0", {"name": "w0"})
    os.kill(_parent(backend.pid("w0")), signal.SIGKILL)
    with pytest.raises(TestbedError, match="all nodes with it"):
        await asyncio.wait_for(asyncio.shield(backend.nursery_failed), 5)
    assert (await asyncio.wait_for(backend.exits.get(), 5))[0] == "w0"
    assert backend.running() == []
    with pytest.raises(TestbedError, match="is gone"):
        await backend.start_node("w1", {"name": "w1"})


def _parent(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def _none_left(run_id: str) -> list[int]:
    """What is left of the run's processes after at most five seconds."""
    for _ in range(500):
        if not (left := list(processes(run_id))):
            break
        await asyncio.sleep(0.01)
    return left


OTHER_RUN = f"f{os.getpid():07x}"
HOLDER = """
import asyncio, sys
from pathlib import Path
from plans import RUN_ID, star
from testbed.backends.netns import NetnsBackend

async def main():
    backend = NetnsBackend(star(["w0", "w1"], run_id=sys.argv[2]), Path(sys.argv[1]), program="greeter")
    await backend.up()
    await backend.start_node("w0", {"name": "w0"})
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_kill_9_of_the_owner_leaves_nothing(tmp_path: Path) -> None:
    """At every step of a whole ``up``: test_life_cycle."""
    interfaces = host_interfaces()
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, str(tmp_path), OTHER_RUN), stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert await asyncio.wait_for(owner.stdout.readline(), 20) == b"up\n"
    assert list(processes(OTHER_RUN))
    owner.kill()
    await owner.wait()
    assert await _none_left(OTHER_RUN) == []
    assert host_interfaces() == interfaces
