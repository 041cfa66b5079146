"""The control client against a socket that answers as a node does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from testbed.control import ControlClient, ControlClosed
from testbed.deadline import SECOND, deadline
from testbed.errors import DeadlineExceeded, NodeFailed

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def node(path: Path) -> AsyncIterator[asyncio.Queue[Stream]]:
    """Listens at the path; hands every connection to the test. The path may be longer than ``sun_path``."""
    arrived: asyncio.Queue[Stream] = asyncio.Queue()
    short = path.parent.parent / "s"
    short.symlink_to(path.parent)
    server = await asyncio.start_unix_server(
        lambda reader, writer: arrived.put_nowait((reader, writer)), short / path.name
    )
    try:
        yield arrived
    finally:
        server.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / ("long-" * 20)
    folder.mkdir()
    assert len(str(folder)) > 108
    return folder / "control.sock"


async def test_answers_are_matched_whatever_their_order(path: Path) -> None:
    async with node(path) as arrived:
        client = await ControlClient.connect("w0", path)
        first = asyncio.create_task(client.request("status", SECOND))
        second = asyncio.create_task(client.request("metrics", SECOND))
        reader, writer = await arrived.get()
        requests = [json.loads(await reader.readline()) for _ in range(2)]
        for request in reversed(requests):
            writer.write(json.dumps({"id": request["id"], "ok": True, "was": request["do"]}).encode() + b"\n")
        assert (await first)["was"] == "status"
        assert (await second)["was"] == "metrics"
        await client.aclose()


async def test_journal_records_are_handed_on(path: Path) -> None:
    async with node(path) as arrived:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        client = await ControlClient.connect("w0", path, heard.put_nowait)
        _, writer = await arrived.get()
        writer.write(b'{"journal":{"event":"peer.alive"}}\n')
        async with deadline(SECOND, "the record"):
            assert json.loads(await heard.get())["journal"]["event"] == "peer.alive"
        await client.aclose()


async def test_a_refusal_says_who_what_and_why(path: Path) -> None:
    async with node(path) as arrived:
        client = await ControlClient.connect("w0", path)
        asking = asyncio.create_task(client.request("migrate", SECOND, endpoint="stage-1", to="w9"))
        reader, writer = await arrived.get()
        request = json.loads(await reader.readline())
        assert request == {"id": request["id"], "do": "migrate", "endpoint": "stage-1", "to": "w9"}
        writer.write(json.dumps({"id": request["id"], "ok": False, "error": "no node w9"}).encode() + b"\n")
        with pytest.raises(NodeFailed, match="w0: migrate: no node w9"):
            await asking
        await client.aclose()


async def test_a_node_that_ends_is_not_waited_for(path: Path) -> None:
    async with node(path) as arrived:
        client = await ControlClient.connect("w0", path)
        asking = asyncio.create_task(client.request("status", 60 * SECOND))
        reader, writer = await arrived.get()
        await reader.readline()
        writer.close()
        with pytest.raises(ControlClosed, match="w0"):
            await asking
        with pytest.raises(ControlClosed):
            await client.request("status", SECOND)


async def test_silence_has_a_deadline_that_names_the_node(path: Path) -> None:
    async with node(path):
        client = await ControlClient.connect("w0", path)
        with pytest.raises(DeadlineExceeded, match="w0 has not answered 'status'"):
            await client.request("status", SECOND // 20)
        await client.aclose()


async def test_nobody_listens(path: Path) -> None:
    with pytest.raises(NodeFailed, match="w0: nobody listens"):
        await ControlClient.connect("w0", path)


async def test_a_deadline_says_what_was_missing_when_the_time_was_up() -> None:
    missing = ["w1", "w2"]

    def say() -> str:
        return f"missing: {', '.join(missing)}"

    async def wait() -> None:
        async with deadline(SECOND // 20, say):
            missing.remove("w1")
            await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded, match=r"after 0\.05 s: missing: w2$"):
        await wait()


async def test_a_timeout_of_the_body_itself_is_not_the_deadline() -> None:
    with pytest.raises(TimeoutError):
        async with deadline(60 * SECOND, "never said"):
            raise TimeoutError
