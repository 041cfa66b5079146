"""Endpoints that move between real nodes while messages are in flight."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import connex
from connex import EndpointMoved, HandoverFailed, TrafficClass
from tests.runtime.counter import Counter, add
from tests.runtime.lab import Lab, config, until

MIB = 1 << 20


async def source_and_stage(lab: Lab, nodes: int = 3, **changes: Any) -> tuple[list[connex.Node], connex.OutboundStream]:
    """A source on w0 with a stream to a Counter on w1, which all nodes would take."""
    cluster = await lab.cluster(nodes, config=config(**changes))
    for node in cluster:
        node.on_arrival("stage", Counter)
    Counter(await cluster[1].host("stage"))
    source = await cluster[0].host("source")
    return cluster, await source.open_stream("stage", TrafficClass.ACTIVATION)


async def test_a_receiver_moves_round_and_round_under_traffic(lab: Lab) -> None:
    nodes, stream = await source_and_stage(lab)
    draw = random.Random(7)
    sums = 0
    sent = 0
    moving = True

    async def send() -> None:
        nonlocal sums, sent
        while moving:
            payload = draw.randbytes(draw.choice((10, 3000, 70_000, 600_000)))
            sums = add(sums, payload)
            assert await stream.send(payload) == sent
            sent += 1
            await asyncio.sleep(0)

    sending = asyncio.ensure_future(send())
    owner = 1
    async with asyncio.timeout(20):
        for epoch in range(2, 10):
            target = (owner + 1) % 3
            handover = await nodes[owner].migrate("stage", to=f"w{target}")
            assert (handover.epoch, handover.target) == (epoch, f"w{target}")
            assert "stage" not in nodes[owner].endpoints
            owner = target
        moving = False
        await sending
        await stream.close()
    counter = nodes[owner].endpoints["stage"].application
    assert (counter.count, counter.sum) == (sent, sums)
    assert sent > 8


async def test_a_sender_moves_and_its_stream_goes_on(lab: Lab) -> None:
    first, second, third = await lab.cluster(3)
    sink = await third.host("sink")
    got: list[bytes] = []
    sink.on_message(lambda message: got.append(bytes(message.payload)))
    arrived: list[connex.Endpoint] = []
    second.on_arrival("source", arrived.append)
    source = await first.host("source")
    stream = await source.open_stream("sink", TrafficClass.TOKEN, label="answers")
    for number in range(10):
        await stream.send(bytes([number]))
    waiting: list[asyncio.Future[int]] = []
    frozen: list[connex.WouldWait] = []

    def freeze() -> None:
        waiting.append(asyncio.ensure_future(stream.send(b"too late")))
        with pytest.raises(connex.WouldWait) as caught:
            stream.send_nowait(b"too late as well")
        frozen.append(caught.value)

    source.on_freeze(freeze)
    await first.migrate("source", to="w1")
    assert frozen
    with pytest.raises(EndpointMoved, match="served by w1 now") as caught:
        await waiting[0]
    assert caught.value.node == "w1"
    with pytest.raises(EndpointMoved):
        await stream.send(b"later")
    with pytest.raises(EndpointMoved):
        source.region("new", 1)
    (moved,) = arrived[0].outbound.values()
    assert (moved.id, moved.label, moved.receiver, moved.offset) == (stream.id, "answers", "sink", 10)
    for number in range(10, 20):
        assert await moved.send(bytes([number])) == number
    await moved.close()
    assert got == [bytes([number]) for number in range(20)]


async def test_undelivered_messages_and_waiting_readers_move_along(lab: Lab) -> None:
    first, second, third = await lab.cluster(3)
    sink, source = await second.host("sink"), await first.host("source")
    third.on_arrival("sink", lambda endpoint: "application")
    stream = await source.open_stream("sink", TrafficClass.KV)
    for number in range(5):
        await stream.send(bytes([number]) * 300_000)
    assert (await sink.receive()).number == 0
    await second.migrate("sink", to="w2")
    assert [message.number async for message in sink] == []
    with pytest.raises(EndpointMoved):
        await sink.receive()
    moved = third.endpoints["sink"]
    assert moved.application == "application"
    async with asyncio.timeout(5):
        for number in range(1, 5):
            message = await moved.receive()
            assert message.number == number
            assert message.payload == bytes([number]) * 300_000


async def test_large_state_is_copied_while_it_changes(lab: Lab) -> None:
    first, second = await lab.cluster(2)
    second.on_arrival("store", lambda endpoint: None)
    store = await first.host("store")
    region, small, empty = store.region("kv", 40 * MIB), store.region("small", 3), store.region("empty")
    draw = random.Random(3)
    for block in range(40):
        region.write(block * MIB, draw.randbytes(1000) * 1048)
    changes = 0

    async def change() -> None:
        nonlocal changes
        while not store.frozen and store.released is None:
            region.write(draw.randrange(40 * MIB - 100), draw.randbytes(100))
            changes += 1
            await asyncio.sleep(0)

    def freeze() -> None:
        small.write(0, b"end")
        region.resize(41 * MIB)
        region.write(40 * MIB + 5, b"last words")
        kept.append(region.view)

    kept: list[memoryview] = []
    store.on_freeze(freeze)
    changing = asyncio.ensure_future(change())
    async with asyncio.timeout(20):
        await first.migrate("store", to="w1")
        await changing
    moved = second.endpoints["store"].regions
    assert changes > 10
    assert moved["kv"].view == kept[0]
    assert len(region) == 0, "memory is given back at once"
    assert bytes(moved["small"].view) == b"end"
    assert len(moved["empty"]) == len(empty) == 0


async def test_preparation_ahead_of_time(lab: Lab) -> None:
    nodes, stream = await source_and_stage(lab)
    stage = nodes[1].endpoints["stage"]
    handover = await nodes[1].prepare("stage", to="w2")
    assert not stage.frozen
    for _ in range(10):
        await stream.send(b"served here still")
    await stream.flush()
    assert stage.application.count == 10
    nodes[1].cancel(handover)
    with pytest.raises(HandoverFailed, match="not under way"):
        nodes[1].cancel(handover)
    await until(lambda: not nodes[2].core.handovers(), "the target has forgotten it")
    handover = await nodes[1].prepare("stage", to="w2")
    with pytest.raises(HandoverFailed, match="earlier handover"):
        await nodes[1].migrate("stage", to="w0")
    assert (await nodes[1].execute(handover)).epoch == 2
    assert nodes[2].endpoints["stage"].application.count == 10
    assert stage.application.hooks == ["freeze", "release handover"]


@pytest.mark.parametrize(
    ("endpoint", "to", "text"),
    [
        ("private", "w1", "w1 takes no endpoint named private; it takes: stage"),
        ("stage", "w9", "no such node is known; known are w1, w2"),
        ("stage", "w0", "it is there already"),
        ("elsewhere", "w1", "not hosted on w0"),
    ],
)
async def test_handovers_that_cannot_be(lab: Lab, endpoint: str, to: str, text: str) -> None:
    nodes = await lab.cluster(3)
    nodes[1].on_arrival("stage", Counter)
    await nodes[0].host("private")
    await nodes[0].host("stage")
    with pytest.raises(HandoverFailed, match=text):
        await nodes[0].migrate(endpoint, to=to)
    assert set(nodes[0].endpoints) == {"private", "stage"}


async def test_a_freeze_hook_that_fails_leaves_the_endpoint_where_it_is(lab: Lab) -> None:
    nodes, stream = await source_and_stage(lab)
    stage = nodes[1].endpoints["stage"]

    async def broken() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("cannot stop")

    stage.on_freeze(broken)
    with pytest.raises(HandoverFailed, match=r"goes on here.*RuntimeError: cannot stop"):
        await nodes[1].migrate("stage", to="w2")
    await stream.send(b"x")
    await stream.flush()
    assert stage.application.count == 1
    assert stage.application.hooks == ["thaw"]
    assert len(lab.unseen) == 1
    lab.unseen.clear()


async def test_while_it_is_frozen_nothing_is_delivered(lab: Lab) -> None:
    nodes, stream = await source_and_stage(lab)
    stage = nodes[1].endpoints["stage"]
    frozen, go_on = asyncio.Event(), asyncio.Event()

    async def freeze() -> None:
        frozen.set()
        await go_on.wait()
        stage.application.freeze()

    stage.on_freeze(freeze)
    migration = asyncio.ensure_future(nodes[1].migrate("stage", to="w2"))
    await frozen.wait()
    for _ in range(5):
        await stream.send(b"during the freeze")
    await until(lambda: nodes[1].metrics()["ACTIVATION.received_frames"] > 0, "a frame has arrived meanwhile")
    assert stage.application.count == 0
    go_on.set()
    async with asyncio.timeout(5):
        await migration
        await stream.flush()
    assert nodes[2].endpoints["stage"].application.count == 5


async def test_a_handover_that_takes_too_long_is_given_up(lab: Lab) -> None:
    nodes, stream = await source_and_stage(lab)
    stage = nodes[1].endpoints["stage"]
    stopped: list[str] = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append("cancelled")
            raise

    stage.on_freeze(never)
    with pytest.raises(HandoverFailed, match=r"not complete after 0\.05 s"):
        await nodes[1].migrate("stage", to="w2", timeout_s=0.05)
    await stream.send(b"x")
    await stream.flush()
    assert stage.application.count == 1
    await until(lambda: stopped, "the hook was cancelled")


async def test_a_task_that_is_cancelled_cancels_its_handover(lab: Lab) -> None:
    nodes, _ = await source_and_stage(lab)
    stage = nodes[1].endpoints["stage"]
    frozen = asyncio.Event()

    async def never() -> None:
        frozen.set()
        await asyncio.Event().wait()

    stage.on_freeze(never)
    migration = asyncio.ensure_future(nodes[1].migrate("stage", to="w2"))
    await frozen.wait()
    migration.cancel()
    with pytest.raises(asyncio.CancelledError):
        await migration
    await until(lambda: not stage.frozen and not nodes[2].core.handovers(), "both sides have given it up")


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_an_application_that_cannot_be_made_resets_its_streams(lab: Lab, kind: str) -> None:
    nodes, stream = await source_and_stage(lab)

    def broken(endpoint: connex.Endpoint) -> None:
        raise RuntimeError("out of memory")

    async def broken_later(endpoint: connex.Endpoint) -> None:
        await asyncio.sleep(0)
        broken(endpoint)

    target = await lab.start("w3")
    target.on_arrival("stage", broken if kind == "plain" else broken_later)
    await until(lambda: any(one.node == "w3" for one in nodes[1].core.members()), "the new node is known")
    await nodes[1].migrate("stage", to="w3")
    await until(lambda: stream.ended, "the sender hears of it")
    assert "endpoint-ended" in str(stream.error)
    assert len(lab.unseen) == 1
    lab.unseen.clear()


async def test_an_application_made_by_a_coroutine_gets_its_messages_afterwards(lab: Lab) -> None:
    nodes, stream = await source_and_stage(lab)
    ready = asyncio.Event()

    async def factory(endpoint: connex.Endpoint) -> Counter:
        await ready.wait()
        return Counter(endpoint)

    target = await lab.start("w3")
    target.on_arrival("stage", factory)
    await until(lambda: any(one.node == "w3" for one in nodes[1].core.members()), "the new node is known")
    await nodes[1].migrate("stage", to="w3")
    for _ in range(3):
        await stream.send(b"x")
    await until(lambda: any(one.get("received") == 3 for one in target.core.streams()), "they have arrived")
    ready.set()
    async with asyncio.timeout(5):
        await stream.flush()
    assert target.endpoints["stage"].application.count == 3


async def test_regions_beyond_the_targets_limit_are_declined(lab: Lab) -> None:
    first = await lab.start("w0")
    second = await lab.start("w1", config=config(region=1 * MIB))
    await until(lambda: first.core.members(), "they know each other")
    second.on_arrival("store", lambda endpoint: None)
    store = await first.host("store")
    for name in ("a", "b"):
        store.region(name, 600_000).write(0, b"x" * 600_000)
    with pytest.raises(HandoverFailed, match=r"goes on here.*region b.*exceed its limit of 1048576"):
        await first.migrate("store", to="w1")
    assert "store" in first.endpoints
    assert second.endpoints == {}


async def test_leaving_moves_endpoints_under_traffic(lab: Lab) -> None:
    nodes, stream = await source_and_stage(lab)
    for _ in range(50):
        await stream.send(bytes(20_000))
    assert await nodes[1].leave() == ["stage"]
    await nodes[1].close()
    async with asyncio.timeout(5):
        await stream.close()
    (owner,) = [node for node in (nodes[0], nodes[2]) if "stage" in node.endpoints]
    assert owner.endpoints["stage"].application.count == 50


@pytest.mark.parametrize("moves", [False, True], ids=["stays", "moves"])
@pytest.mark.parametrize("what", ["close", "reset"])
async def test_what_is_asked_of_a_stream_during_a_freeze_waits_for_its_outcome(
    lab: Lab, what: str, moves: bool
) -> None:
    nodes = await lab.cluster(3, config=config())
    for node in nodes:
        node.on_arrival("*", Counter)
    Counter(await nodes[1].host("stage"))
    source = await nodes[0].host("source")
    stream = await source.open_stream("stage", TrafficClass.TOKEN)
    await stream.send(b"before")
    frozen, go_on = asyncio.Event(), asyncio.Event()

    async def freeze() -> None:
        frozen.set()
        await go_on.wait()

    source.on_freeze(freeze)
    moving = asyncio.ensure_future(nodes[0].migrate("source", to="w2"))
    async with asyncio.timeout(5):
        await frozen.wait()
        closing = asyncio.ensure_future(stream.close()) if what == "close" else None
        if closing is None:
            stream.reset("enough")
        await asyncio.sleep(0.02)
        assert not stream.ended
        if not moves:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
        go_on.set()
        if moves:
            await moving
            with pytest.raises(EndpointMoved):
                await (closing or stream.close())
            assert nodes[2].endpoints["source"].outbound, "the stream goes on where the endpoint is"
        elif closing is not None:
            await closing
            assert stream.error is None
        else:
            await until(lambda: stream.ended, "the stream has ended")
            assert isinstance(stream.error, connex.StreamReset)
