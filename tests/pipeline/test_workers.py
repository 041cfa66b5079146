"""Real node processes on loopback: the pipeline on bare TCP and on Connex, quiet, moving and crashing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from workers import SMALL, Cluster, Refused, until

pytestmark = pytest.mark.live

QUIET = [["source", "sink"], ["stage-1"], ["stage-2"]]


async def quiet_digest(folder: Path, pipeline: dict[str, Any]) -> str:
    """What bare TCP brings forth, where nothing can move."""
    async with Cluster(folder / "tcp", QUIET, "tcp", pipeline) as cluster:
        result = await cluster.traffic()
    assert (result["done"], result["failed"]) == (pipeline["requests"], 0)
    return str(result["digest"])


async def test_tcp_and_connex_bring_forth_the_same_bytes(tmp_path: Path) -> None:
    expected = await quiet_digest(tmp_path, SMALL)
    async with Cluster(tmp_path / "connex", QUIET, "connex", SMALL) as cluster:
        result = await cluster.traffic()
        assert result["digest"] == expected
        assert result["tokens"] == 160
        assert [await worker.stop() for worker in cluster.workers] == [0, 0, 0]
        journal = cluster[0].journal()
    events = [record["event"] for record in journal if record["event"].startswith("app.")]
    assert [events.count(f"app.{name}") for name in ("request", "token", "done", "summary")] == [40, 160, 40, 1]
    summary = next(record for record in journal if record["event"] == "app.summary")
    assert {key: summary[key] for key in ("requests", "tokens", "digest")} == {
        "requests": 40, "tokens": 160, "digest": expected,
    }  # fmt: skip
    tokens = [record for record in journal if record["event"] == "app.token"]
    assert {(record["size"], len(record["hash"])) for record in tokens} == {(64, 16)}


@pytest.mark.slow
async def test_moves_under_load_change_no_byte(tmp_path: Path) -> None:
    pipeline = SMALL | {"requests": 300, "requests_per_s": 150.0, "kv_bytes": 1 << 20}
    expected = await quiet_digest(tmp_path, pipeline)
    async with Cluster(tmp_path / "connex", [*QUIET, []], "connex", pipeline) as cluster:
        where = {"stage-1": 1, "stage-2": 2, "source": 0, "sink": 0}
        moves = [
            ("stage-1", 3),
            ("stage-2", 1),
            ("sink", 2),
            ("stage-1", 2),
            ("source", 3),
            ("stage-2", 3),
            ("source", 0),
        ]
        await cluster[0].ask("start")
        for name, to in moves:
            answer = await cluster[where[name]].ask("migrate", endpoint=name, to=f"w{to}")
            assert answer["epoch"] >= 2
            where[name] = to
        await cluster.issued(cluster[where["source"]], 300)
        result = await cluster[where["source"]].ask("finish")
        assert result["failed"] == 0
        assert result["unexpected"] == 0
        assert result["digest"] == expected
        assert [await worker.stop() for worker in cluster.workers] == [0, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["tcp", "connex"])
async def test_a_stage_that_is_killed_and_comes_back_costs_the_requests_it_had(tmp_path: Path, adapter: str) -> None:
    # Long enough steps that at any moment some request has state in the stage.
    pipeline = SMALL | {"requests": 160, "requests_per_s": 60.0, "compute_ns": 3_000_000}
    async with Cluster(tmp_path, QUIET, adapter, pipeline) as cluster:
        await cluster[0].ask("start")
        await cluster.issued(cluster[0], 30)
        await cluster[2].kill()
        await cluster[2].start()

        async def goes_on() -> bool:
            return bool((await cluster[0].ask("progress"))["done"] > 80)

        await until("requests go through the new stage", goes_on, cluster[0].log)
        await cluster.issued(cluster[0], 160)
        result = await cluster[0].ask("finish")
        assert result["done"] + result["failed"] == 160
        assert 0 < result["failed"] < 80
        causes = {record["cause"] for record in cluster[0].journal() if record["event"] == "app.failed"}
    assert all("lost" in cause or "KV state" in cause for cause in causes)


async def test_a_node_without_a_pipeline_waits_and_says_where_to_ask(tmp_path: Path) -> None:
    async with Cluster(tmp_path, [[]], "connex", {}) as cluster:
        assert (await cluster[0].ask("status"))["endpoints"] == {}
        with pytest.raises(Refused, match="does not serve the endpoint source"):
            await cluster[0].ask("progress")
        assert await cluster[0].stop() == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"adapter": "gloo"}, "adapter is 'gloo'; expected one of connex, tcp"),
        ({"pipeline": SMALL | {"tokens": 0}}, "pipeline.tokens is 0; expected a whole number of at least 1"),
        ({"endpoints": ["stage-9"]}, "endpoint 'stage-9'; expected source, sink, or stage-1 to stage-2"),
        ({"endpoints": ["source"], "pipeline": None}, "there are no pipeline parameters"),
        ({"connex": {"leese": 3}}, "unexpected keyword argument 'leese'; expected fields of connex.Config"),
        ({"secret": "xyz"}, "non-hexadecimal"),
    ],
)
def test_nonsense_is_refused_with_what_was_expected(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    good = {
        "name": "w0", "cluster": "test", "bind": "127.0.0.1:0", "locator": "127.0.0.1:0", "secret": "00", "seeds": [],
        "seed": 1, "endpoints": [], "pipeline": SMALL,
    }  # fmt: skip
    (tmp_path / "node.json").write_text(json.dumps(good | change))
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from pipeline.worker import main; sys.exit(main(['node.json']))"],
        cwd=tmp_path, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 64
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_importing_the_program_starts_nothing() -> None:
    code = """
import os, threading
import pipeline.worker
files = os.listdir("/proc/self/fd")
print(threading.active_count(), [fd for fd in files if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}")])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "1 []"
