"""What runs on this machine is written down, answers, and can be ended without its file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from plans import star

from testbed import registry
from testbed.backends.netns import NetnsBackend
from testbed.errors import TestbedError, UsageError
from testbed.keeper import KeeperClient, daemonise, hold
from testbed.registry import RunRecord, boot_id, collect_stale, find, processes, register, runs, start_time


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return tmp_path / "state"


def write(run_id: str = "aaaa0001", name: str = "lab", **changes: object) -> RunRecord:
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
        register("aaaa0002", "lab", "up", "star", Path("/nowhere"), ())


def test_collecting_takes_what_is_stale_and_nothing_else(state: Path) -> None:
    living, dead = write("aaaa0001"), write("aaaa0002", pid_start=1, name="dead")
    foreign = [state / "notes.txt", state / "other.run.json", state / "x.sock"]
    for path in foreign:
        path.write_text("mine")
    removed = collect_stale()
    assert removed == {"aaaa0002": [str(dead.file)]}
    assert living.file.exists()
    assert all(path.read_text() == "mine" for path in foreign)


def test_collecting_kills_processes_with_the_mark_and_no_others() -> None:
    dead = write("aaaa0003", pid_start=1)
    ours = subprocess.Popen(["sleep", "60"], env={**os.environ, registry.RUN_MARK: "aaaa0003"})
    decoys = [
        subprocess.Popen(["sleep", "60"], env={**os.environ, registry.RUN_MARK: "aaaa0004"}),
        subprocess.Popen(["sleep", "60"], env={**os.environ, "NOTE": f"{registry.RUN_MARK}=aaaa0003"}),
    ]
    try:
        while list(processes("aaaa0003")) != [ours.pid]:
            assert ours.poll() is None  # until the kernel shows the environment of the new program
        assert f"process {ours.pid}" in collect_stale()[dead.run_id]
        assert ours.wait(5) == -signal.SIGKILL
        assert [decoy.poll() for decoy in decoys] == [None, None]
    finally:
        for process in (ours, *decoys):
            process.kill()
            process.wait()


def test_what_is_meant_by_a_name() -> None:
    with pytest.raises(UsageError, match="nothing is up"):
        find(None)
    write("aaaa0001", name="one")
    assert find(None).name == find("one").name == find("aaaa0001").name == "one"
    write("aaaa0002", name="two")
    with pytest.raises(UsageError, match="several runs are meant"):
        find(None)
    with pytest.raises(UsageError, match=r"three is not up; up is one \(aaaa0001\), two"):
        find("three")


def test_a_process_is_known_by_its_start(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    assert start_time(child.pid) is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(child.pid) is None, "a corpse does not run"
    child.wait()
    assert len(boot_id()) == 36


def keep(tmp_path: Path, configs: dict[str, dict[str, object]]) -> RunRecord:
    """A daemon that holds two nodes."""

    def serve(tell) -> None:  # type: ignore[no-untyped-def]
        async def main() -> None:
            record = register("aaaa0009", "lab", "up", "star", tmp_path, ("w0", "w1"))
            backend = NetnsBackend(star(["w0", "w1"], run_id="aaaa0009"), tmp_path, program="greeter")
            try:
                await hold(record, backend, configs, lambda: tell({"up": True}))
            except* TestbedError as errors:
                tell({"error": str(errors.exceptions[0])})

        asyncio.run(main())

    assert daemonise(serve, tmp_path / "keeper.log") == {"up": True}
    return find("lab")


@pytest.mark.live
@pytest.mark.needs("raw-sockets", "ping")
def test_a_network_that_is_kept_answers_until_it_is_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = keep(tmp_path, {"w0": {"name": "w0"}, "w1": {"name": "w1"}})
    client = KeeperClient(record)
    try:
        pids = client.ask("status")["nodes"]
        assert set(pids) == {"w0", "w1"}
        assert record.pid != os.getpid()
        assert client.ask("impair", link="w0--s0", direction="a-to-b", changes={"delay": 5})["impairment"]["delay"] == 5
        assert client.ask("stats")["stats"]["frames"] >= 0
        with pytest.raises(TestbedError, match="unknown request 'dance'"):
            client.ask("dance")
        with pytest.raises(TestbedError, match="missing 'node'"):
            client.ask("signal")
        assert client.execute("w0", ["ping", "-c", "1", "-W", "2", "10.9.0.2"]) == 0
        assert "1 received" in capfd.readouterr().out
        assert client.execute("w1", ["sh", "-c", "exit 7"]) == 7
        assert client.execute("w1", ["sh", "-c", "kill -9 $$"]) == -9
        client.ask("signal", node="w1", signal=9)
        while client.ask("status")["nodes"]["w1"] is not None:
            pass
        assert client.ask("start", node="w1")["pid"] not in pids.values()
    finally:
        client.ask("down")
    assert runs() == []
    assert list(processes(record.run_id)) == []
    with pytest.raises(TestbedError, match="does not answer"):
        client.ask("status")


@pytest.mark.live
@pytest.mark.needs("raw-sockets")
def test_a_network_that_cannot_come_up_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="w0 ended while it started"):
        keep(tmp_path, {"w0": {"name": "w0", "exit": 1}})
    assert runs() == []
    assert list(processes("aaaa0009")) == []


@pytest.mark.live
@pytest.mark.needs("raw-sockets")
@pytest.mark.parametrize("sort", [signal.SIGKILL])
def test_a_keeper_that_is_killed_is_shown_as_stale_and_collected(tmp_path: Path, sort: signal.Signals) -> None:
    record = keep(tmp_path, {"w0": {"name": "w0"}})
    os.kill(record.pid, sort)
    while record.state == "running":
        pass
    assert [one.state for one in runs()] == ["stale"]
    collect_stale()
    assert runs() == []
    assert not record.socket.exists()


UNPRIVILEGED = """
import asyncio, json, os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from testbed.backends.privilege import ensure_namespaces, privileged
before = (os.getuid(), privileged())
ensure_namespaces()
from plans import star
from testbed.backends.netns import NetnsBackend

async def main():
    backend = NetnsBackend(star(["w0", "w1"]), Path(sys.argv[1]), program="greeter")
    try:
        await backend.up()
        await backend.start_node("w0", {"name": "w0"})
        process = await backend.spawn("w0", ["ping", "-c", "1", "-W", "2", "fd09::2"], [0, 1, 2])
        status = await process.ended
        print(json.dumps({"before": before, "status": status, "sched": (await backend.wire.stats()).sched}))
    finally:
        await backend.down()

asyncio.run(main())
"""


@pytest.mark.live
@pytest.mark.needs("raw-sockets", "ping", "setpriv", "shared-python")
def test_an_ordinary_user_needs_no_sudo(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
    paths = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths), "HOME": str(tmp_path)}
    ran = subprocess.run(
        [*user, sys.executable, "-c", UNPRIVILEGED, str(tmp_path), *paths],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["before"] == [65534 if user else os.getuid(), False]
    assert told["status"] == 0
    assert told["sched"] == "other"
