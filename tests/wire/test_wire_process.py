"""The wire as a process: how it starts, ends and fails."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from testbed.backends.wire import Wire, WireFailed
from testbed.errors import CannotRun
from testbed.network.spec import FabricSpec, LinkSpec
from tests.wire import traffic
from tests.wire.lab import Lab, StartWire

pytestmark = [pytest.mark.live, pytest.mark.needs("root", "raw-sockets")]

PAIR = FabricSpec((LinkSpec("a--b", "a:eth1", "b:eth1"),))


def attachments(lab: Lab) -> dict[str, str]:
    return {port: lab.attachments[port] for port in ("a:eth1", "b:eth1")}


async def test_a_wire_that_is_killed_is_noticed_and_nothing_passes(lab: Lab, tmp_path: Path) -> None:
    wire = await Wire.start(PAIR, attachments(lab), lab.fabric, log=tmp_path / "log")
    traffic.udp_exchange(lab, "a", "b", socket.AF_INET, [10])
    os.kill(wire.pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        with pytest.raises(WireFailed, match="was killed by signal 9: the network carries nothing"):
            await wire.wait_failed()
    with pytest.raises(WireFailed):
        await wire.stats()
    with pytest.raises(WireFailed):
        await wire.stop()
    assert traffic.blast(lab, "a", "b", 20) == set()
    await wire.kill()


async def test_a_request_under_way_fails_with_the_wire(lab: Lab, tmp_path: Path) -> None:
    wire = await Wire.start(PAIR, attachments(lab), lab.fabric, log=tmp_path / "log")
    os.kill(wire.pid, signal.SIGSTOP)
    request = asyncio.create_task(wire.stats())
    await asyncio.wait([request], timeout=0.1)
    os.kill(wire.pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        with pytest.raises(WireFailed):
            await request
    await wire.kill()


async def test_stopping_is_not_failing_and_may_be_repeated(lab: Lab, tmp_path: Path) -> None:
    wire = await Wire.start(PAIR, attachments(lab), lab.fabric, log=tmp_path / "log")
    traffic.udp_exchange(lab, "a", "b", socket.AF_INET, [10])
    first = await wire.stop()
    assert first.delivered > 0
    assert await wire.stop() == first == await wire.stats()
    assert not wire.failed.done()
    with pytest.raises(ProcessLookupError):
        os.kill(wire.pid, 0)


async def test_the_wire_dies_with_its_parent(lab: Lab, tmp_path: Path) -> None:
    script = f"""
import asyncio, os, pathlib
from testbed.backends.wire import Wire
from testbed.network.spec import FabricSpec, LinkSpec
async def main():
    spec = FabricSpec((LinkSpec("a--b", "a:eth1", "b:eth1"),))
    wire = await Wire.start(spec, {attachments(lab)!r}, {lab.fabric}, log=pathlib.Path({str(tmp_path / "log")!r}))
    print(wire.pid, flush=True)
    await wire.wait_failed()
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, pass_fds=[lab.fabric]
    )
    assert parent.stdout is not None
    async with asyncio.timeout(traffic.PATIENCE):
        pid = int(await parent.stdout.readline())
        with os.fdopen(os.pidfd_open(pid), "rb", buffering=0) as wire:
            os.kill(pid, signal.SIGSTOP)  # even if it hangs
            parent.kill()
            gone = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().add_reader(wire, gone.set_result, None)
            await gone
            asyncio.get_running_loop().remove_reader(wire)
    await parent.wait()


async def test_real_time_is_used_where_allowed_and_recorded(lab: Lab, start_wire: StartWire) -> None:
    trial = "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))"
    allowed = (
        await (
            await asyncio.create_subprocess_exec(sys.executable, "-c", trial, stderr=asyncio.subprocess.DEVNULL)
        ).wait()
        == 0
    )
    async with start_wire(lab) as wire:
        assert (await wire.stats()).sched == ("fifo:50" if allowed else "other")
        policy = os.sched_getscheduler(wire.pid) & ~os.SCHED_RESET_ON_FORK
        assert policy == (os.SCHED_FIFO if allowed else os.SCHED_OTHER)
    async with start_wire(lab, fifo=False) as wire:
        assert (await wire.stats()).sched == "other"
        assert os.sched_getscheduler(wire.pid) == os.SCHED_OTHER


@pytest.mark.slow
@pytest.mark.needs("unshare", "ping")
async def test_an_ordinary_user_has_a_wire_too() -> None:
    """In a user namespace of its own, without rights outside it: no real-time scheduling, no larger buffers."""
    tests = str(Path(__file__).with_name("test_wire_traffic.py"))
    command = ["unshare", "-Urn", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert b"skipped" not in output


async def test_what_cannot_start_says_why(lab: Lab, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(CannotRun, match="port a:eth1: interface 'nosuch'"):
        await Wire.start(PAIR, {"a:eth1": "nosuch"}, lab.fabric, log=log)
    with pytest.raises(CannotRun, match="'z:eth9': not an edge"):
        await Wire.start(PAIR, {"z:eth9": "fab1"}, lab.fabric, log=log)
    missing = tmp_path / "nowhere" / "a.pcapng"
    with pytest.raises(CannotRun, match="nowhere"):
        await Wire.start(PAIR, attachments(lab), lab.fabric, captures={"a:eth1": missing}, log=log)


async def test_a_node_whose_interface_is_down_does_not_stop_the_others(lab: Lab, start_wire: StartWire) -> None:
    async with start_wire(lab) as wire:
        traffic.udp_exchange(lab, "a", "b", socket.AF_INET, [10])
        traffic.udp_exchange(lab, "a", "c", socket.AF_INET, [10])
        await asyncio.to_thread(lab.set_state, "b", "down")
        assert traffic.blast(lab, "a", "b", 20) == set()
        traffic.udp_exchange(lab, "a", "c", socket.AF_INET, [10])
        assert (await wire.stats()).undeliverable > 0


async def test_frames_that_the_wire_had_no_time_for_are_counted(lab: Lab, start_wire: StartWire) -> None:
    async with start_wire(lab) as wire:
        traffic.round_trip(lab, "a", "b")
        before = await wire.stats()
        os.kill(wire.pid, signal.SIGSTOP)
        traffic.blast(lab, "a", "b", 12_000, size=20, burst=12_000)
        os.kill(wire.pid, signal.SIGCONT)
        async with asyncio.timeout(traffic.PATIENCE):
            while (after := await wire.stats()).frames + after.overrun < before.frames + 12_000:
                pass
    assert after.overrun > 3000
    assert after.lag_max_ns > 100_000_000
