"""The control socket: JSON lines, several at once, extensible, and whole whatever is sent to it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

import connex
from connex import ControlError
from tests.runtime.lab import Lab, until


class Client:
    """One connection to a control socket, reached through its folder because its path may be long."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, path: Path) -> Client:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return cls(*await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{path.name}"))
        finally:
            os.close(folder)

    async def line(self) -> dict[str, Any]:
        async with asyncio.timeout(5):
            answer: dict[str, Any] = json.loads(await self.reader.readline())
            return answer

    async def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        self.writer.write(json.dumps({"id": 7, "do": do} | fields).encode() + b"\n")
        return await self.line()


async def test_the_common_commands(lab: Lab, tmp_path: Path) -> None:
    node = await lab.start("w0", control=tmp_path / "control.sock")
    await node.host("stage")
    client = await Client.connect(tmp_path / "control.sock")
    hello = await client.ask("hello")
    assert hello == {
        "id": 7,
        "ok": True,
        "node": "w0",
        "incarnation": f"{node.me.incarnation:016x}",
        "pid": os.getpid(),
    }
    other = await lab.start("w1")
    await until(lambda: other.channels(), "the other has joined")
    status = await client.ask("status")
    assert status["endpoints"] == {"stage": {"epoch": 1, "frozen": False}}
    assert [peer["node"] for peer in status["peers"]] == ["w1"]
    assert [(one["node"], one["state"]) for one in status["members"]] == [("w1", "alive")]
    assert status["streams"] == []
    assert status["handovers"] == []
    metrics = await client.ask("metrics")
    assert metrics["channels_open"] == 1
    assert metrics["CONTROL.sent_bytes"] > 0
    client.writer.close()


async def test_handovers_by_command(lab: Lab, tmp_path: Path) -> None:
    first, second = await lab.cluster(2, control=None)
    third = await lab.start("w2", control=tmp_path / "control.sock")
    await until(lambda: len(third.core.members()) == 2, "all know each other")
    first.on_arrival("stage", lambda endpoint: None)
    await third.host("stage")
    client = await Client.connect(tmp_path / "control.sock")
    refused = await client.ask("migrate", endpoint="stage", to="w1")
    assert not refused["ok"]
    assert "w1 takes no endpoint named stage" in refused["error"]
    prepared = await client.ask("prepare", endpoint="stage", to="w0")
    assert (await client.ask("cancel", handover=prepared["handover"]))["ok"]
    prepared = await client.ask("prepare", endpoint="stage", to="w0")
    done = await client.ask("execute", handover=prepared["handover"])
    assert done == {"id": 7, "ok": True, "handover": prepared["handover"], "epoch": 2}
    assert "stage" in first.endpoints
    wrong = await client.ask("migrate", endpoint="stage", to="w0")
    assert "endpoint stage is not hosted on w2" in wrong["error"]
    client.writer.close()
    assert second.endpoints == {}


async def test_a_leave_moves_everything_and_then_answers(lab: Lab, tmp_path: Path) -> None:
    first = await lab.start("w0")
    second = await lab.start("w1", control=tmp_path / "control.sock")
    await until(lambda: second.core.members(), "they know each other")
    first.on_arrival("stage-*", lambda endpoint: None)
    for name in ("stage-1", "stage-2", "private"):
        await second.host(name)
    client = await Client.connect(tmp_path / "control.sock")
    answer = await client.ask("leave")
    assert answer == {"id": 7, "ok": True, "moved": ["stage-1", "stage-2"]}
    async with asyncio.timeout(5):
        await second.stopped()
    assert set(first.endpoints) == {"stage-1", "stage-2"}
    await until(lambda: first.core.peer_state("w1") == "left", "the goodbye has arrived")


async def test_subscribers_get_every_record_from_then_on(lab: Lab, tmp_path: Path) -> None:
    node = await lab.start("w0", control=tmp_path / "control.sock")
    client = await Client.connect(tmp_path / "control.sock")
    node.record("app.before", {})
    assert await client.ask("subscribe") == {"id": 7, "ok": True}
    await node.host("stage")
    node.record("app.after", {"request": 1})
    first, second = await client.line(), await client.line()
    assert first["journal"]["event"] == "endpoint.hosted"
    assert second["journal"] | {"t": 0} == {"t": 0, "event": "app.after", "node": "w0", "request": 1}
    client.writer.close()


async def test_applications_add_commands(lab: Lab, tmp_path: Path) -> None:
    node = await lab.start("w0", control=tmp_path / "control.sock")
    release = asyncio.Event()

    async def slow(request: dict[str, Any]) -> dict[str, Any]:
        await release.wait()
        return {"issued": request["count"]}

    def broken(request: dict[str, Any]) -> None:
        raise KeyError("count")

    node.control.add("finish", slow)
    node.control.add("broken", broken)
    with pytest.raises(ControlError, match="there already"):
        node.control.add("finish", slow)
    client = await Client.connect(tmp_path / "control.sock")
    client.writer.write(b'{"id": 1, "do": "finish", "count": 5}\n{"id": 2, "do": "hello"}\n{"id": 3, "do": "broken"}\n')
    assert (await client.line())["id"] == 2
    assert await client.line() == {"id": 3, "ok": False, "error": "KeyError: 'count'"}
    release.set()
    assert await client.line() == {"id": 1, "ok": True, "issued": 5}
    client.writer.close()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{nonsense}", "not a request"),
        (b"[1]", "not an object"),
        (b"\xff\xfe", "not a request"),
        (b'{"do": "dance"}', "no command 'dance'; there are: cancel, execute, hello"),
        (b'{"do": "migrate", "endpoint": 5}', "'endpoint' is 5; expected a name"),
        (b'{"do": "cancel", "handover": "zz"}', "expected 16 hexadecimal digits"),
        (b'{"do": "cancel", "handover": "01"}', "is not under way from here"),
    ],
)
async def test_bad_requests_are_answered(lab: Lab, tmp_path: Path, line: bytes, error: str) -> None:
    await lab.start("w0", control=tmp_path / "control.sock")
    client = await Client.connect(tmp_path / "control.sock")
    client.writer.write(b"\n" + line + b"\n")
    answer = await client.line()
    assert not answer["ok"]
    assert error in answer["error"]
    assert (await client.ask("hello"))["ok"]
    client.writer.close()


async def test_a_line_without_end_is_cut_off(lab: Lab, tmp_path: Path) -> None:
    await lab.start("w0", control=tmp_path / "control.sock")
    client = await Client.connect(tmp_path / "control.sock")
    client.writer.write(b"x" * ((1 << 20) + 1))
    assert "expected one JSON object a line" in (await client.line())["error"]
    assert await client.reader.read() == b""
    client.writer.close()


async def test_paths_may_be_long_and_old_sockets_are_replaced(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / ("long-" * 20) / ("longer-" * 20)
    folder.mkdir(parents=True)
    path = folder / "control.sock"
    stale = socket.socket(socket.AF_UNIX)
    fd = os.open(folder, os.O_RDONLY)
    stale.bind(f"/proc/self/fd/{fd}/control.sock")
    os.close(fd)
    stale.close()
    node = await lab.start("w0", control=path)
    client = await Client.connect(path)
    assert (await client.ask("stop"))["ok"]
    async with asyncio.timeout(5):
        await node.stopped()
    await node.close()
    assert not path.exists()
    assert await client.reader.read() == b""
    client.writer.close()


async def test_a_file_in_its_place_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "control.sock").write_text("precious")
    node = connex.Node("w0", control=tmp_path / "control.sock")
    with pytest.raises(ControlError, match="control socket"):
        await node.start()
    assert (tmp_path / "control.sock").read_text() == "precious"
