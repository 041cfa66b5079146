"""Roles that move, stay after all, crash, or are lied to: what a request's bytes and the counts make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from memory_network import Network

PARAMETERS: dict[str, Any] = {
    "stages": 3, "requests_per_s": 100_000.0, "requests": 30, "tokens": 5, "activation_bytes": 300, "token_bytes": 48,
    "kv_bytes": 65_536, "kv_dirty_bytes": 512, "compute_ns": 0, "concurrency": 8,
}  # fmt: skip
PLACEMENT = [["source", "sink"], ["stage-1"], ["stage-2"], ["stage-3"], [], []]
ALL = ["source", "sink", "stage-1", "stage-2", "stage-3"]


async def run(act: Callable[[Network], None] | None = None, **changes: Any) -> tuple[dict[str, Any], Network]:
    """The result of a run in which ``act`` is called again and again while requests are under way."""
    room = changes.pop("room", 1 << 30)
    async with Network(PARAMETERS | changes, PLACEMENT, room=room) as network:
        traffic = asyncio.create_task(network.traffic() if act is None else follow(network))
        while act is not None and not traffic.done():
            if network.counts("app.request"):
                act(network)
            for _ in range(7):
                await asyncio.sleep(0)
        return await traffic, network


async def follow(network: Network) -> dict[str, Any]:
    """The same as ``Network.traffic`` for a source that may move."""
    await network.ask("start")
    await network.until(lambda: network.ended == network.parameters.requests)
    return await network.ask("finish")


@pytest.fixture
async def quiet() -> dict[str, Any]:
    """The result of a run in which nothing happens."""
    result, _ = await run()
    assert (result["issued"], result["done"], result["failed"], result["tokens"]) == (30, 30, 0, 150)
    return result


def mover(names: list[str]) -> Callable[[Network], None]:
    """Moves one endpoint after the other, each to another node."""
    turn = iter(range(1_000_000))

    def move(network: Network) -> None:
        step = next(turn)
        network.migrate(names[step % len(names)], to=(step * 5 + 1) % len(PLACEMENT))

    return move


@pytest.mark.parametrize("names", [["stage-1"], ["stage-2"], ["stage-3"], ["source"], ["sink"], ALL])
async def test_a_run_with_moves_gives_the_same_bytes(quiet: dict[str, Any], names: list[str]) -> None:
    result, network = await run(mover(names))
    assert result == quiet | {key: result[key] for key in result if key.endswith("_ns")}
    assert network.counts("app.token") == 150


async def test_moves_in_the_middle_of_computations_and_with_hardly_any_room(quiet: dict[str, Any]) -> None:
    result, _ = await run(mover(ALL), compute_ns=200_000, room=1)
    assert result["digest"] == quiet["digest"]
    assert result["failed"] == 0


async def test_several_units_and_other_arrivals_do_not_change_the_bytes(quiet: dict[str, Any]) -> None:
    result, _ = await run(compute_ns=50_000, compute_units=4, requests_per_s=3000.0)
    assert result["digest"] == quiet["digest"]


async def test_every_request_has_bytes_of_its_own() -> None:
    async with Network(PARAMETERS, PLACEMENT) as network:
        await network.traffic()
        hashes = [record["hash"] for record in network.journal if record["event"] == "app.done"]
    assert len(set(hashes)) == 30


async def test_handovers_that_are_given_up_leave_no_trace(quiet: dict[str, Any]) -> None:
    def try_and_give_up(network: Network) -> None:
        for name in ALL:
            network.freeze(name)
        for name in ALL:
            network.thaw(name)

    result, _ = await run(try_and_give_up, compute_ns=100_000, room=2)
    assert result["digest"] == quiet["digest"]
    assert result["failed"] == 0


async def test_a_frozen_stage_keeps_what_it_has_until_it_moves() -> None:
    async with Network(PARAMETERS | {"compute_ns": 1_000_000}, PLACEMENT) as network:
        await network.nodes[0].ask("start")
        await network.until(lambda: network.counts("app.token") > 3)
        network.freeze("stage-2")
        await network.until(lambda: network.counts("app.request") == network.ended + 8)
        tokens = network.counts("app.token")
        network.complete("stage-2", to=4)
        await network.until(lambda: network.counts("app.token") > tokens + 8)
        assert (await network.ask("progress"))["failed"] == 0


def once(
    step: int, sender: str, what: Callable[[list[bytes]], list[bytes]]
) -> Callable[[str, str, bytes], list[bytes]]:
    """Do ``what`` to one message of one sender, the ``step``-th, and the one before."""
    kept: list[bytes] = []

    def tamper(frm: str, to: str, message: bytes) -> list[bytes]:
        if frm != sender:
            return [message]
        kept.append(message)
        return what(kept[-2:]) if len(kept) == step else [message]

    return tamper


@pytest.mark.parametrize("sender", ["source", "stage-1", "stage-2", "stage-3", "sink"])
@pytest.mark.parametrize(
    "lie",
    [
        lambda last: [last[1], last[1]],
        lambda last: [last[1][:40] + bytes((last[1][40] ^ 1,)) + last[1][41:]],
        lambda last: [last[1][:-1] + bytes((last[1][-1] ^ 1,))],
        lambda last: [last[0][:16] + last[1][16:]],
        lambda last: [],
    ],
    ids=["twice", "a bit early in it", "a bit late in it", "another one's header", "lost"],
)
async def test_every_lie_of_the_network_shows(quiet: dict[str, Any], sender: str, lie: Any) -> None:
    async with Network(PARAMETERS, PLACEMENT) as network:
        network.tamper = once(60, sender, lie)
        await network.ask("start")
        ended = network.until(lambda: network.counts("app.done") == network.parameters.requests)
        with suppress(TimeoutError):  # without an answer, a request stays open for ever
            await asyncio.wait_for(ended, 0.15)
        result = await network.ask("progress")
    assert result["digest"] != quiet["digest"]


async def test_state_that_is_lost_on_the_way_shows(quiet: dict[str, Any]) -> None:
    def lose(network: Network) -> None:
        if network.counts("app.token") < 40 or "lost" in network.endpoints:
            return
        name = "stage-2"
        network.freeze(name)
        kv = network.endpoints[name].regions["kv"]
        for offset in range(0, len(kv), 512):
            kv.write(offset, bytes(1))
        network.complete(name, to=5)

    result, _ = await run(lose)
    assert result["digest"] != quiet["digest"]


@pytest.mark.parametrize(("crashed", "names"), [(1, ["stage-1"]), (2, ["stage-2"]), (3, ["stage-3"])])
async def test_a_crash_fails_what_it_touches_and_the_rest_goes_on(crashed: int, names: list[str]) -> None:
    parameters = PARAMETERS | {"requests": 200, "compute_ns": 100_000}
    async with Network(parameters, PLACEMENT) as network:
        await network.ask("start")
        await network.until(lambda: network.counts("app.token") > 30)
        network.crash(crashed)
        await asyncio.sleep(0)
        await network.start(crashed, names)
        await network.until(lambda: network.ended == 200)
        result = await network.ask("finish")
    assert result["failed"] > 0
    assert result["done"] > 100
    assert result["done"] + result["failed"] == 200
    causes = {record["cause"] for record in network.journal if record["event"] == "app.failed"}
    assert all("lost" in cause or "KV state" in cause for cause in causes)


async def test_a_stage_that_stays_away_fails_requests_and_hangs_none() -> None:
    async with Network(PARAMETERS | {"compute_ns": 100_000}, PLACEMENT) as network:
        await network.ask("start")
        await network.until(lambda: network.counts("app.token") > 30)
        network.crash(2)
        await network.until(lambda: network.ended == 30)
        result = await network.ask("finish")
    assert result["failed"] > 0


async def test_a_sink_that_crashes_fails_what_waits_for_tokens() -> None:
    placement = [["source"], ["stage-1"], ["stage-2"], ["stage-3"], ["sink"]]
    async with Network(PARAMETERS | {"compute_ns": 100_000, "requests": 60}, placement) as network:
        await network.ask("start")
        await network.until(lambda: network.counts("app.token") > 30)
        network.crash(4)
        await network.start(4, ["sink"])
        await network.until(lambda: network.ended == 60)
        result = await network.ask("finish")
    assert 0 < result["failed"] <= 16
    assert result["done"] == 60 - result["failed"]


async def test_a_stream_that_ends_while_its_endpoint_moves_is_noticed_there() -> None:
    """For the source, a stage and the sink, with either side."""
    for name, sender, receiver in (
        ("source", "source", "stage-1"),
        ("source", "sink", "source"),
        ("stage-2", "stage-2", "stage-3"),
        ("sink", "sink", "source"),
    ):
        async with Network(PARAMETERS | {"compute_ns": 100_000}, PLACEMENT) as network:
            await network.ask("start")
            await network.until(lambda: network.counts("app.token") > 30)
            network.freeze(name)
            stream = network.endpoints[sender].find(receiver)
            assert stream is not None
            network.reset(stream, "given up")
            network.complete(name, to=5)
            await network.until(lambda: network.ended == 30)
            result = await network.ask("finish")
            assert result["failed"] > 0
            assert result["done"] > 0


async def test_finish_is_refused_by_a_node_that_the_source_has_left() -> None:
    async with Network(PARAMETERS, PLACEMENT) as network:
        await network.ask("start")
        await network.until(lambda: network.counts("app.token") > 3)
        network.freeze("source")
        waiting = asyncio.create_task(network.nodes[0].ask("finish"))
        await asyncio.sleep(0)
        network.complete("source", to=4)
        with pytest.raises(Exception, match="left this node"):
            await waiting
        with pytest.raises(Exception, match="ask the node that does"):
            await network.nodes[0].ask("progress")
        assert (await network.ask("finish"))["failed"] == 0
