"""A run folder written by hand, small enough to know every number in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.run_folder import RunFolder, write_json

MS = 1_000_000


def lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def interface(name: str, number: int) -> dict[str, Any]:
    return {
        "name": "eth1",
        "port": f"{name}:eth1",
        "mac": f"02:00:00:00:00:0{number}",
        "ipv4": f"10.0.0.{number}/24",
        "ipv6": f"fd00::{number}/64",
    }


@pytest.fixture
def hand_made(tmp_path: Path) -> RunFolder:
    """Two nodes; stage-1 moves from w0 to w1 while its link is slow; then w0 is killed by a fault."""
    folder = RunFolder.create(tmp_path / "runs", "by-hand", "0123abcd")
    write_json(
        folder.resolved,
        {
            "run_id": "0123abcd",
            "name": "by-hand",
            "seed": 42,
            "backend": "netns",
            "started": "2026-01-02T03:04:05Z",
            "replay": {"scenario": "faults/scenarios/by-hand.yaml", "topology": "pair", "capture": None},
            "topology": {"name": "pair"},
            "plan": {"nodes": {n: {"interfaces": [interface(n, i)]} for i, n in enumerate(("w0", "w1"), 1)}},
            "machine": {"kernel": "6.18", "cpus": 2},
        },
    )
    hosted = {"event": "endpoint.hosted", "endpoint": "stage-1"}
    handover = {"handover": "00000000000000aa", "endpoint": "stage-1", "side": "source", "peer": "w1"}
    delivered = {"event": "message.delivered", "stream": "0b", "message": 0, "offset": 0, "size": 5}
    lines(
        folder.events,
        [
            {"t": 0, "event": "run.started", "seed": 42},
            {"t": 10 * MS, "event": "node.started", "node": "w0", "pid": 100},
            {"t": 11 * MS, "event": "node.started", "node": "w1", "pid": 101},
            {"t": 100 * MS, "event": "traffic.started"},
            {"t": 200 * MS, "event": "fault.begun", "id": 1, "kind": "impair", "link": "w0--w1"},
            {"t": 700 * MS, "event": "fault.healed", "id": 1},
            {"t": 800 * MS, "event": "fault.begun", "id": 2, "kind": "crash", "node": "w0"},
            {"t": 805 * MS, "event": "node.exited", "node": "w0", "pid": 100, "status": -9, "expected": True},
            {"t": 900 * MS, "event": "fault.target-gone", "id": 2},
            {"t": 1100 * MS, "event": "traffic.stopped", "complete": True},
            {"t": 1200 * MS, "event": "node.exited", "node": "w1", "pid": 101, "status": 0, "expected": True},
            {
                "t": 1210 * MS,
                "event": "wire.stopped",
                "frames": 1234,
                "overflowed": 0,
                "capture_dropped": 0,
                "lag_p50_ns": 20_000,
                "lag_p99_ns": 300_000,
                "lag_max_ns": 900_000,
                "sched": "fifo:50",
            },
            {"t": 1220 * MS, "event": "run.finished"},
        ],
    )
    lines(
        folder.node("w0") / "journal-00000000000000a0.jsonl",
        [
            {"t": 20 * MS, "node": "w0", **hosted, "epoch": 1, "cause": "host"},
            {"t": 150 * MS, "node": "w0", "event": "stream.opened", "stream": "0b", "class": "TOKEN"},
            {"t": 300 * MS, "node": "w0", **delivered},
            {"t": 390 * MS, "node": "w0", "event": "handover.begun", "epoch": 1, **handover},
            {"t": 400 * MS, "node": "w0", "event": "handover.frozen", "epoch": 1, **handover},
            {"t": 412 * MS, "node": "w0", "event": "handover.completed", "epoch": 1, **handover},
            {
                "t": 412 * MS,
                "node": "w0",
                "event": "endpoint.released",
                "endpoint": "stage-1",
                "epoch": 1,
                "cause": "handover",
            },
        ],
    )
    lines(
        folder.node("w1") / "journal-00000000000000a1.jsonl",
        [
            {"t": 410 * MS, "node": "w1", **hosted, "epoch": 2, "cause": "handover"},
            {"t": 420 * MS, "node": "w1", **delivered, "message": 1, "offset": 5},
        ],
    )
    write_json(
        folder.captures / "counters.json",
        {"w0.eth1.pcapng": {"frames": 7, "bytes": 900, "dropped": 0, "point": "wire", "closed": True}},
    )
    return folder
