"""The journal: what it says, when it is written, and that it costs nothing when it is off."""

from __future__ import annotations

import asyncio
import json
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

import connex
from connex import Config, JournalError, LocalProtocolError
from connex.core.identity import Peer
from connex.runtime.assembly import Assembly
from connex.runtime.handshake import Credentials
from connex.runtime.journal import Journal
from connex.runtime.moves import Arrivals
from tests.runtime.lab import Lab, journal_of, until

FIELDS = {
    "node.started": {"incarnation", "locator", "pid", "cluster", "time"},
    "node.stopping": {"cause"},
    "endpoint.hosted": {"endpoint", "epoch", "cause"},
    "endpoint.frozen": {"endpoint", "epoch", "handover"},
    "endpoint.released": {"endpoint", "epoch", "cause"},
    "binding.learned": {"endpoint", "epoch", "owner", "owner_incarnation", "via"},
    "stream.opened": {"stream", "side", "from", "to", "class", "label", "epoch"},
    "stream.moved": {"stream", "side", "from", "to", "class", "label", "epoch", "message", "offset"},
    "message.sent": {"stream", "message", "offset", "size", "hash", "epoch"},
    "message.delivered": {"stream", "message", "offset", "size", "hash", "epoch"},
    "stream.closed": {"stream", "side", "messages", "offset"},
    "stream.reset": {"stream", "side", "cause", "text"},
    "frame.refused": {"stream", "reason", "epoch", "owned", "peer"},
    "peer.alive": {"peer", "peer_incarnation"},
    "peer.left": {"peer", "peer_incarnation"},
}
"""As ``docs/history.md`` has them; handover events are looked at on their own."""
HANDOVER = {"handover", "endpoint", "epoch", "side", "peer"}


def named(records: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [record for record in records if record["event"] == event]


async def test_a_run_with_a_handover_is_told_completely(lab: Lab, tmp_path: Path) -> None:
    nodes = await lab.cluster(3, journal=tmp_path)
    stage = await nodes[1].host("stage")
    stage.on_message(lambda message: None)
    nodes[2].on_arrival("stage", lambda endpoint: endpoint.on_message(lambda message: None))
    source = await nodes[0].host("source")
    stream = await source.open_stream("stage", connex.TrafficClass.TOKEN, label="tokens")
    await stream.send(b"before")
    await nodes[1].migrate("stage", to="w2")
    await stream.send(b"after")
    await stream.close()
    cancelled = await source.open_stream("stage", connex.TrafficClass.KV)
    cancelled.reset("enough")
    await until(lambda: not nodes[2].endpoints["stage"].inbound, "the reset has arrived")
    nodes[0].record("app.token", {"request": 3})
    for node in nodes:
        await node.close("end of the test")

    told = [journal_of(tmp_path, node) for node in nodes]
    for records in told:
        times = [record["t"] for record in records]
        assert times == sorted(times)
        assert "incarnation" in records[0]
        assert records[0]["event"] == "node.started"
        assert records[-1]["event"] == "node.stopping"
        for record in records:
            event = record["event"]
            fields = set(record) - {"t", "event", "node"}
            if event.startswith("handover."):
                assert HANDOVER <= fields <= HANDOVER | {"bytes", "cause"}
            elif not event.startswith("app."):
                assert fields == FIELDS[event], event
    first, second, third = told
    assert [record["node"] for record in (first[0], second[0])] == ["w0", "w1"]
    sent = named(first, "message.sent")
    assert [(one["message"], one["offset"], one["size"], one["epoch"]) for one in sent] == [(0, 0, 6, 1), (1, 6, 5, 1)]
    assert sent[0]["hash"] == blake2b(b"before", digest_size=8).hexdigest()
    delivered = named(second, "message.delivered") + named(third, "message.delivered")
    assert [(one["message"], one["offset"], one["hash"], one["epoch"]) for one in delivered] == [
        (0, 0, sent[0]["hash"], 1),
        (1, 6, sent[1]["hash"], 2),
    ]
    assert {one["stream"] for one in sent + delivered} == {f"{stream.id:016x}"}
    steps = [(one["event"], one["side"]) for one in second if one["event"].startswith("handover.")]
    assert [step for step, _ in steps] == [
        f"handover.{step}"
        for step in ("begun", "prepared", "precopied", "frozen", "state-sent", "commit-sent", "committed", "completed")
    ]
    assert named(second, "endpoint.released")[0]["cause"] == "handover"
    hosted = named(third, "endpoint.hosted")[0]
    assert (hosted["endpoint"], hosted["epoch"], hosted["cause"]) == ("stage", 2, "handover")
    assert named(third, "stream.moved")[0]["message"] == 1
    assert named(third, "stream.reset")[0]["cause"] == "cancelled"
    assert named(first, "stream.closed")[0]["messages"] == 2
    assert named(first, "app.token")[0]["request"] == 3


def test_names_are_escaped(tmp_path: Path) -> None:
    journal = Journal(Peer('a "node"\n', 1, ""), tmp_path)
    journal.sent(5, 1, 2, 3, b"payload", 4)
    journal.record(6, "app.x", {"text": "line\u2028break"})
    journal.close()
    lines = (tmp_path / "journal-0000000000000001.jsonl").read_bytes().split(b"\n")
    records = [json.loads(line) for line in lines if line]
    assert [record["node"] for record in records] == ['a "node"\n'] * 2
    assert records[0]["size"] == 7


def test_nothing_is_gathered_without_anybody_to_read_it(tmp_path: Path) -> None:
    journal = Journal(Peer("w0", 1, ""), None)
    assert not journal.active
    lines: list[str] = []
    journal.subscribe(lines.append)
    assert journal.active
    journal.sent(5, 1, 2, 3, b"x", 4)
    journal.flush()
    assert len(lines) == 1
    journal.unsubscribe(lines.append)
    assert not journal.active
    journal.close()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="expected a folder that exists"):
        Journal(Peer("w0", 1, ""), tmp_path / "missing")


async def test_a_node_without_a_place_for_its_journal_does_not_start(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    node = connex.Node("w0", journal=tmp_path / "missing")
    with pytest.raises(JournalError):
        await node.start()
    assert set(os.listdir("/proc/self/fd")) == before


async def test_events_of_the_application_have_their_prefix(lab: Lab) -> None:
    node = await lab.start("w0")
    with pytest.raises(LocalProtocolError, match="begins with app"):
        node.record("token", {})


async def test_a_record_is_written_before_its_frames_leave(tmp_path: Path) -> None:
    """When a frame is handed to its channel, the file already has what led to it."""
    me = Peer("w0", 1, "127.0.0.1:1")
    assembly = Assembly(Credentials(me, "c", b""), Config(), tmp_path, Arrivals())
    path = tmp_path / "journal-0000000000000001.jsonl"
    seen: list[list[str]] = []
    engine, core = assembly.engine, assembly.core
    write = engine.on_write

    def spy(outgoing: Any) -> None:
        write(outgoing)
        seen.append([json.loads(line)["event"] for line in path.read_text().splitlines()])

    engine.on_write = spy
    core.channel_opened(Peer("w1", 2, "127.0.0.1:2"), connex.TrafficClass.CONTROL, 1)
    core.host("stage", 1)
    engine.touched(1)
    assert seen
    assert all("endpoint.hosted" in events for events in seen)
    await assembly.close(0.1)


async def test_a_journal_that_cannot_be_written_stops_the_node(tmp_path: Path) -> None:
    (tmp_path / "journal-0000000000000001.jsonl").symlink_to("/dev/full")
    assembly = Assembly(Credentials(Peer("w0", 1, "127.0.0.1:1"), "c", b""), Config(), tmp_path, Arrivals())
    failures: list[Exception] = []
    assembly.engine.on_failure = failures.append
    sent: list[object] = []
    assembly.engine.on_write = sent.append
    assembly.core.host("stage", 1)
    with pytest.raises(OSError, match="No space left"):
        assembly.engine.touched(1)
    assert len(failures) == 1
    assembly.core.channel_opened(Peer("w1", 2, "127.0.0.1:2"), connex.TrafficClass.CONTROL, 2)
    assembly.engine.touched(2)
    assert sent == []
    await asyncio.wait_for(assembly.links.close(0.1), 1)
