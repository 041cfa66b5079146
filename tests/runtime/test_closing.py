"""A node lets go of everything: no task, descriptor or timer outlives it."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from pathlib import Path

import pytest

import connex
from connex import ListenError, LocatorError, TrafficClass
from tests.runtime.lab import SECRET, Lab, until


def descriptors() -> dict[str, str]:
    """Open descriptors of this process and what they are."""
    result = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            result[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return result


async def a_busy_life(folder: Path) -> None:
    """Three nodes with all that may leak: streams of all classes, waits, a migration, control connections, seeds that
    nobody answers.
    """
    nodes: list[connex.Node] = []
    for number in range(3):
        seeds = [nodes[0].locator] if nodes else ["127.0.0.1:1", "127.0.0.1:2"]
        node = connex.Node(f"w{number}", secret=SECRET, seeds=seeds, control=folder / f"{number}", journal=folder)
        nodes.append(await node.start())
    for node in nodes:
        await until(lambda node=node: len(node.core.members()) == 2, "all know each other")  # type: ignore[misc]
        node.on_arrival("*", lambda endpoint: None)
    sink, source = await nodes[1].host("sink"), await nodes[0].host("source")
    streams = [await source.open_stream("sink", kind) for kind in TrafficClass if kind]
    for stream in streams:
        await stream.send(bytes(300_000))
    reading = [asyncio.ensure_future(sink.receive()) for _ in range(5)]
    await nodes[1].migrate("sink", to="w2")
    reader, writer = await asyncio.open_unix_connection(str(folder / "0"))
    writer.write(b'{"id": 1, "do": "subscribe"}\n')
    await reader.readline()
    pending = await nodes[0].prepare("source", to="w1")
    assert pending
    flushing = asyncio.ensure_future(streams[0].flush())
    await asyncio.sleep(0)
    for node in nodes:
        await node.close()
        await node.close()
    await asyncio.gather(*reading, flushing, return_exceptions=True)
    writer.close()


async def test_nothing_is_left(tmp_path: Path) -> None:
    await a_busy_life(tmp_path)
    gc.collect()
    await asyncio.sleep(0)
    files, tasks = descriptors(), asyncio.all_tasks()
    for _ in range(3):
        await a_busy_life(tmp_path)
    gc.collect()
    await until(lambda: len(descriptors()) <= len(files), f"descriptors as before: {set(descriptors().values())}")
    assert asyncio.all_tasks() == tasks
    assert not [name for name in os.listdir(tmp_path) if not name.startswith("journal-")]


async def test_a_node_alone(lab: Lab) -> None:
    node = await lab.start("w0", seeds=[])
    echo = await node.host("echo")
    assert node.status()["endpoints"] == {"echo": {"epoch": 1, "frozen": False}}
    assert await node.leave() == []
    assert node.endpoints == {}
    assert echo.released == "ended"


async def test_a_node_whose_seeds_are_itself_and_nobody(lab: Lab) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{sock.getsockname()[1]}"
    node = await lab.start("w0", listen=listen, seeds=[listen, "127.0.0.1:1"])
    async with asyncio.timeout(3):
        await node.host("stage")


async def test_nodes_that_start_before_their_seeds_find_them_later(lab: Lab) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{sock.getsockname()[1]}"
    early = await lab.start("w0", seeds=[listen])
    await until(lambda: not early.core.joining, "it goes on alone")
    late = await lab.start("w1", listen=listen, seeds=[])
    await until(lambda: early.core.members() and late.core.members(), "they have found each other")


async def test_an_address_in_use_is_named(lab: Lab) -> None:
    node = await lab.start("w0")
    with pytest.raises(ListenError, match=rf"w1 cannot listen on {node.locator}: Address already in use"):
        await connex.Node("w1", listen=node.locator).start()
    with pytest.raises(ListenError, match="say with locator="):
        await connex.Node("w1", listen="0.0.0.0:0").start()
    with pytest.raises(LocatorError):
        await connex.Node("w1", listen="localhost").start()


async def test_a_node_starts_once(lab: Lab) -> None:
    node = await lab.start("w0")
    with pytest.raises(connex.LocalProtocolError, match="started already"):
        await node.start()


def test_run_uses_uvloop() -> None:
    async def loop_name() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert connex.run(loop_name()).startswith("uvloop")


def test_the_example_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    """The example in the package's own documentation runs as it stands."""
    assert connex.__doc__ is not None
    example = connex.__doc__.split("::\n", 1)[1].split("**Receiving.**")[0]
    code = "\n".join(line[4:] for line in example.splitlines())
    exec(compile(code, "example", "exec"), {})
    assert capsys.readouterr().out == "b'hello'\n"
