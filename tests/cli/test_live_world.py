"""A running topology as faults see it: effects are there when a call returns, and waits name what is missing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from faults.world import TargetGone
from testbed import live
from testbed.backends.netns import NetnsBackend
from testbed.deadline import SECOND
from testbed.errors import DeadlineExceeded, NodeFailed
from testbed.run_folder import EventLog, RunFolder, new_run_id, read_lines
from testbed.running import RunningTopology
from testbed.topology import load_topology, make_plan
from testbed.workload import Pipeline, Workload, workers

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.needs("root", "raw-sockets")]

Up = Callable[[str], AbstractAsyncContextManager[RunningTopology]]


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Up:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "state"))

    @asynccontextmanager
    async def make(topology: str) -> AsyncIterator[RunningTopology]:
        plan = make_plan(load_topology(topology), new_run_id(), 1)
        folder = RunFolder.create(tmp_path / "runs", "world", plan.run_id)
        log = EventLog(folder.events)
        workload = Workload(plan, "00" * 16, Pipeline(stages=1))
        backend = NetnsBackend(plan, folder.path, capture="none")
        async with RunningTopology("run", "world", plan, workload, backend, folder, log) as running:
            await running.make_network()
            yield running
        assert running.troubles == []

    return make


async def test_signals_have_their_effect_when_they_return(up: Up) -> None:
    async with up("pair") as running:
        world = running.world
        await running.start_nodes(["w0", "w1"])
        pid = _pid(running, "w1")
        await world.signal("w1", signal.SIGSTOP)
        assert _state(pid) == "T"
        await world.signal("w1", signal.SIGCONT)
        assert _state(pid) != "T"
        await world.signal("w1", signal.SIGKILL)
        assert world.running() == ["w0"]
        with pytest.raises(TargetGone, match="w1"):
            await world.signal("w1", signal.SIGCONT)
        with pytest.raises(TargetGone, match="w1"):
            await world.command("w1", {"do": "status"}, SECOND)
        assert not world.failed.done(), "its end was asked for"


async def test_a_killed_node_comes_back_and_hosts_what_nobody_took(up: Up) -> None:
    async with up("pair") as running:
        world = running.world
        await running.start_nodes(["w0", "w1"])
        async with asyncio.timeout(5):  # nodes are ready before the observer has read all of their journals
            while world.endpoints() != {"sink": "w0", "source": "w0", "stage-1": "w1"}:
                await asyncio.sleep(0.01)
        await world.signal("w1", signal.SIGKILL)
        await world.start("w1")
        assert world.endpoints()["stage-1"] == "w1"
        with pytest.raises(NodeFailed, match="w1 is running already"):
            await world.start("w1")


async def test_events_are_waited_for_and_owners_follow(up: Up) -> None:
    async with up("five") as running:
        world = running.world
        await running.start_nodes(workers(running.plan))
        waiting = asyncio.create_task(world.wait_event({"event": "handover.prepared", "endpoint": "stage-1"}))
        await asyncio.sleep(0)
        answer = await world.command("w1", {"do": "migrate", "endpoint": "stage-1", "to": "w4"}, 10 * SECOND)
        assert answer["ok"], answer
        async with asyncio.timeout(5):
            assert (await waiting)["peer"] in ("w1", "w4")
            while world.endpoints()["stage-1"] != "w4":
                await asyncio.sleep(0.01)


async def test_impairments_are_read_back_and_restored(up: Up) -> None:
    async with up("pair") as running:
        world, wire = running.world, running.wire
        declared = await wire.impairment("w0--w1", "a-to-b")
        await world.impair("w0--w1", "a-to-b", {"delay": 5_000_000})
        assert (await wire.impairment("w0--w1", "a-to-b")).delay == 5_000_000
        assert await wire.impairment("w0--w1", "b-to-a") == declared, "the other direction is untouched (T22)"
        await world.restore("w0--w1", "a-to-b", ["delay"])
        assert await wire.impairment("w0--w1", "a-to-b") == declared


async def test_nodes_that_do_not_find_each_other_are_named(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    """T18."""
    monkeypatch.setattr(live, "READY_WITHIN", SECOND)
    async with up("pair") as running:
        await running.world.block("apart", [("w0", "w1"), ("w1", "w0")])
        with pytest.raises(DeadlineExceeded, match=r"w0 lacks w1"):
            await running.start_nodes(["w0", "w1"])


async def test_a_node_that_is_ended_while_it_starts_is_a_target_that_is_gone(up: Up) -> None:
    """T17: whoever ends it and whoever starts it meet, and the run goes on."""
    async with up("pair") as running:
        world = running.world
        await running.start_nodes(["w0"])
        await world.block("apart", [("w0", "w1"), ("w1", "w0")])  # so that it is not ready too soon
        starting = asyncio.create_task(world.start("w1"))
        async with asyncio.timeout(10):
            while "w1" not in world.running():
                await asyncio.sleep(0.01)
        await world.signal("w1", signal.SIGSTOP)
        done, _ = await asyncio.wait({starting}, timeout=0.3)
        assert not done, "it stands still, and owes an answer"
        await world.signal("w1", signal.SIGKILL)
        with pytest.raises(TargetGone, match="w1"):
            await starting
        assert not world.failed.done(), "its end was asked for"


async def test_a_node_that_ends_by_itself_fails_the_world_with_its_last_words(up: Up, tmp_path: Path) -> None:
    async with up("pair") as running:
        await running.start_nodes(["w0", "w1"])
        os.kill(_pid(running, "w1"), signal.SIGSEGV)
        with pytest.raises(NodeFailed, match="w1 ended by itself, by signal 11"):
            async with asyncio.timeout(5):
                await asyncio.shield(running.world.failed)
    (events,) = (tmp_path / "runs" / "world").glob("2*/events.jsonl")
    exited = [event for event in read_lines(events) if event["event"] == "node.exited" and event["node"] == "w1"]
    assert [(event["status"], event["expected"]) for event in exited] == [(-11, False)]


def _pid(running: RunningTopology, node: str) -> int:
    pid = running.pid(node)
    assert pid is not None
    return pid


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
