"""What breaks beneath: connections cut or held in the middle of messages, processes killed and started again."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import connex
from connex import HandoverFailed, StreamReset, TrafficClass
from connex.runtime.locator import format_locator, parse_locator
from tests.runtime.counter import add
from tests.runtime.lab import Lab, config, until
from tests.runtime.proxy import Proxy
from tests.runtime.test_control import Client

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


def free_address() -> tuple[str, int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        host, port = sock.getsockname()
        return host, port


@asynccontextmanager
async def through_proxies(lab: Lab, **changes: Any) -> AsyncIterator[tuple[connex.Node, connex.Node, list[Proxy]]]:
    """w0 and w1, which reach each other through proxies only."""
    async with AsyncExitStack() as stack:
        proxies, nodes = [], []
        for name in ("w0", "w1"):
            address = free_address()
            proxies.append(await stack.enter_async_context(Proxy(address)))
            options = {"listen": format_locator(*address), "locator": proxies[-1].locator, "config": config(**changes)}
            nodes.append(await lab.start(name, **options))
        await until(lambda: nodes[0].core.members(), "they know each other")
        yield nodes[0], nodes[1], proxies


@pytest.mark.parametrize("kind", [TrafficClass.TOKEN, TrafficClass.KV])
async def test_connections_cut_in_the_middle_of_messages(lab: Lab, kind: TrafficClass) -> None:
    async with through_proxies(lab) as (first, second, proxies):
        sink, source = await second.host("sink"), await first.host("source")
        got: list[bytes] = []
        sink.on_message(lambda message: got.append(bytes(message.payload)))
        stream = await source.open_stream("sink", kind)
        draw = random.Random(kind)
        sent = [draw.randbytes(draw.choice((10, 20_000, 700_000))) for _ in range(30)]
        for proxy in proxies:
            proxy.cut_every = 1_000_001
        for payload in sent:
            await stream.send(payload)
        async with asyncio.timeout(10):
            await stream.close()
        assert sum(proxy.cuts for proxy in proxies) >= 3
        assert got == sent


async def test_connections_that_stand_still_for_a_while(lab: Lab) -> None:
    async with through_proxies(lab, dead_after=5_000_000_000) as (first, second, proxies):
        sink, source = await second.host("sink"), await first.host("source")
        stream = await source.open_stream("sink", TrafficClass.ACTIVATION)
        for proxy in proxies:
            proxy.open.clear()
        for number in range(20):
            await stream.send(bytes([number]) * 50_000)
        await until(lambda: first.core.peer_state("w1") == "suspected", "the peer is suspected")
        for proxy in proxies:
            proxy.open.set()
        async with asyncio.timeout(5):
            for number in range(20):
                assert (await sink.receive()).payload == bytes([number]) * 50_000
        await until(lambda: first.core.peer_state("w1") == "alive", "the peer is alive again")


# Processes


class Workers:
    """Worker processes, each with a control connection."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str, seeds: list[str], listen: str = "127.0.0.1:0") -> Client:
        path = self.folder / f"{name}.sock"
        options = {"name": name, "listen": listen, "seeds": seeds, "control": str(path)}
        self.processes[name] = process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.runtime.worker", json.dumps(options), cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'nodes'}"},
        )  # fmt: skip
        async with asyncio.timeout(10):
            while True:
                assert process.returncode is None, f"worker {name} ended with status {process.returncode}"
                try:
                    return await Client.connect(path)
                except (FileNotFoundError, ConnectionRefusedError):
                    await asyncio.sleep(0.01)

    async def kill(self, name: str, sig: signal.Signals = signal.SIGKILL) -> None:
        process = self.processes.pop(name)
        process.send_signal(sig)
        await process.wait()

    async def close(self) -> None:
        for name in list(self.processes):
            await self.kill(name)


@asynccontextmanager
async def workers(folder: Path) -> AsyncIterator[Workers]:
    async with AsyncExitStack() as stack:
        started = Workers(folder)
        stack.push_async_callback(started.close)
        yield started


async def knows(node: connex.Node, *names: str) -> None:
    await until(lambda: {one.node for one in node.core.members()} >= set(names), f"{node.name} knows {names}")


@pytest.mark.live
async def test_a_stage_moves_between_processes_under_traffic(lab: Lab, tmp_path: Path) -> None:
    first = await lab.start("w0")
    async with workers(tmp_path) as started:
        clients = {name: await started.start(name, [first.locator]) for name in ("w1", "w2")}
        await knows(first, "w1", "w2")
        assert (await clients["w1"].ask("host", endpoint="stage", state=5 * MIB))["ok"]
        source = await first.host("source")
        stream = await source.open_stream("stage", TrafficClass.ACTIVATION)
        total, draw, moving = 0, random.Random(2), True

        async def send() -> int:
            nonlocal total
            count = 0
            while moving:
                payload = draw.randbytes(draw.choice((100, 30_000, 300_000)))
                total = add(total, payload)
                await stream.send(payload)
                count += 1
                await asyncio.sleep(0)
            return count

        sending = asyncio.ensure_future(send())
        owner, other = "w1", "w2"
        for epoch in range(2, 8):
            answer = await clients[owner].ask("migrate", endpoint="stage", to=other)
            assert answer.get("epoch") == epoch, answer
            owner, other = other, owner
        moving = False
        count = await sending
        async with asyncio.timeout(5):
            await stream.close()
        seen = await clients[owner].ask("seen", endpoint="stage")
        assert (seen["count"], seen["sum"]) == (count, total)


@pytest.mark.live
async def test_a_target_killed_in_the_middle_of_the_transfer(lab: Lab, tmp_path: Path) -> None:
    first = await lab.start("w0")
    async with workers(tmp_path) as started:
        await started.start("w1", [first.locator])
        await knows(first, "w1")
        stage = await first.host("stage")
        stage.region("bulk", 256 * MIB).write(0, b"\xa5" * 256 * MIB)
        sender = await first.host("sender")
        stream = await sender.open_stream("stage")
        migration = asyncio.ensure_future(first.migrate("stage", to="w1"))
        await until(lambda: any(one.moved > 20 * MIB for one in first.core.handovers()), "20 MiB have moved")
        await started.kill("w1")
        async with asyncio.timeout(5):
            with pytest.raises(HandoverFailed, match="goes on here"):
                await migration
            await stream.send(b"still here")
            assert (await stage.receive()).payload == b"still here"


@pytest.mark.live
async def test_a_peer_that_dies_and_one_that_starts_again(lab: Lab, tmp_path: Path) -> None:
    first = await lab.start("w0")
    async with workers(tmp_path) as started:
        client = await started.start("w1", [first.locator])
        await knows(first, "w1")
        await client.ask("host", endpoint="stage")
        source = await first.host("source")
        stream = await source.open_stream("stage")
        await stream.send(b"x")
        await stream.flush()
        (member,) = first.core.members()
        await started.kill("w1")
        async with asyncio.timeout(5):
            with pytest.raises(StreamReset, match=r"owner-died|owner-restarted"):
                await stream.close()
        address = parse_locator(member.locator)
        client = await started.start("w1", [first.locator], listen=f"{address.host}:{address.port}")
        await until(lambda: first.core.members()[0].incarnation != member.incarnation, "its new life is known")
        await client.ask("host", endpoint="stage")
        again = await source.open_stream("stage")
        await again.send(b"y")
        async with asyncio.timeout(5):
            await again.close()
        assert (await client.ask("seen", endpoint="stage"))["count"] == 1
        await started.kill("w1", signal.SIGTERM)
