"""Streams between real nodes on loopback: order, completeness, all classes and sizes, and backpressure."""

from __future__ import annotations

import asyncio
import random
import time
from hashlib import blake2b

import pytest

import connex
from connex import EndpointMoved, LocalProtocolError, NodeClosed, ResetCause, StreamReset, TrafficClass, WouldWait
from tests.runtime.lab import Lab, config, until
from tests.runtime.peer import HandPlayed, feed, message

CLASSES = [TrafficClass.TOKEN, TrafficClass.ACTIVATION, TrafficClass.KV]
MIB = 1 << 20


def payloads(seed: int, count: int, most: int) -> list[bytes]:
    draw = random.Random(seed)
    return [draw.randbytes(draw.choice((0, 1, 100, 5000, most // 2, most))) for _ in range(count)]


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
async def test_all_classes_side_by_side_in_order_and_complete(lab: Lab, listen: str) -> None:
    first, second = await lab.cluster(2, listen=listen)
    sink, source = await second.host("sink"), await first.host("source")
    got: dict[int, list[bytes]] = {}
    sink.on_message(lambda message: got.setdefault(message.stream.id, []).append(bytes(message.payload)))
    sent: dict[int, list[bytes]] = {}

    async def send(kind: TrafficClass) -> None:
        stream = await source.open_stream("sink", kind, label=kind.name)
        sent[stream.id] = payloads(kind, 40, 600_000 if kind is TrafficClass.KV else 50_000)
        for number, payload in enumerate(sent[stream.id]):
            assert await stream.send(payload) == number
        await stream.close()

    async with asyncio.timeout(10):
        await asyncio.gather(*(send(kind) for kind in CLASSES))
    assert got == sent
    assert second.metrics()["delivered"] == 120


async def test_two_endpoints_of_one_node(lab: Lab) -> None:
    node = await lab.start("w0")
    left, right = await node.host("left"), await node.host("right")
    stream = await left.open_stream("right")
    for payload in (b"one", b"", b"three"):
        await stream.send(payload)
    assert [bytes((await right.receive()).payload) for _ in range(3)] == [b"one", b"", b"three"]
    await stream.close()
    assert not node.channels()


async def test_a_message_of_64_mib_into_the_receivers_own_buffer(lab: Lab) -> None:
    first, second = await lab.cluster(2)
    sink, source = await second.host("sink"), await first.host("source")
    buffer = bytearray(65 * MIB)
    asked: list[int] = []

    def allocate(size: int) -> memoryview:
        asked.append(size)
        return memoryview(buffer)

    sink.on_stream(lambda stream: stream.receive_into(allocate))
    stream = await source.open_stream("sink", TrafficClass.KV)
    payload = random.Random(1).randbytes(1 * MIB) * 64
    await stream.send(memoryview(payload), borrow=True)
    async with asyncio.timeout(20):
        message = await sink.receive()
        await stream.flush()
    assert asked == [64 * MIB]
    assert isinstance(message.payload, memoryview)
    assert message.payload.obj is buffer
    assert blake2b(message.payload).digest() == blake2b(payload).digest()
    assert bytes(buffer[64 * MIB : 64 * MIB + 10]) == bytes(10)


async def test_a_buffer_that_is_not_lent_may_change_at_once(lab: Lab) -> None:
    first, second = await lab.cluster(2)
    sink, source = await second.host("sink"), await first.host("source")
    stream = await source.open_stream("sink", TrafficClass.KV)
    buffer = bytearray(b"a" * 500_000)
    await stream.send(buffer)
    buffer[:] = b"b" * 500_000
    assert (await sink.receive()).payload == b"a" * 500_000


async def test_messages_are_bytes_whatever_the_buffers_items(lab: Lab) -> None:
    from array import array

    first, second = await lab.cluster(2)
    sink, source = await second.host("sink"), await first.host("source")
    stream = await source.open_stream("sink")
    numbers = array("d", [1.0, 2.0])
    await stream.send(memoryview(numbers), borrow=True)
    assert bytes((await sink.receive()).payload) == numbers.tobytes()


async def test_a_stream_nobody_reads_stops_its_own_sender_only(lab: Lab) -> None:
    first, second = await lab.cluster(2, config=config(send_buffer=1 * MIB))
    sink, source = await second.host("sink"), await first.host("source")
    reader = await second.host("reader")
    got = 0

    def count(message: connex.Message) -> None:
        nonlocal got
        got += len(message.payload)

    reader.on_message(count)
    stuck = await source.open_stream("sink", TrafficClass.KV)
    free = await source.open_stream("reader", TrafficClass.KV)
    sent = 4
    for _ in range(sent):
        stuck.send_nowait(bytes(MIB // 4))
    with pytest.raises(WouldWait, match="no room for 262144 bytes"):
        stuck.send_nowait(bytes(MIB // 4))
    waiting = asyncio.ensure_future(stuck.send(b"waits"))
    for _ in range(40):
        await free.send(bytes(MIB))
    async with asyncio.timeout(5):
        await free.close()
    assert got == 40 * MIB
    assert not waiting.done()
    for _ in range(sent):
        await sink.receive()
    async with asyncio.timeout(5):
        assert await waiting == sent
        assert (await sink.receive()).payload == b"waits"


async def test_sends_that_wait_keep_their_order_and_can_be_given_up(lab: Lab) -> None:
    first, second = await lab.cluster(2, config=config(send_buffer=1000))
    sink, source = await second.host("sink"), await first.host("source")
    stream = await source.open_stream("sink")
    sends = [asyncio.ensure_future(stream.send(bytes([number]) * 400)) for number in range(8)]
    await asyncio.sleep(0)
    assert [send.done() for send in sends] == [True] * 2 + [False] * 6
    with pytest.raises(LocalProtocolError, match="6 sends still wait"):
        stream.finish()
    sends[4].cancel()
    got = [bytes((await sink.receive()).payload)[0] for _ in range(7)]
    assert got == [0, 1, 2, 3, 5, 6, 7]


async def test_iterating_one_stream_ends_with_it(lab: Lab) -> None:
    first, second = await lab.cluster(2)
    sink, source = await second.host("sink"), await first.host("source")
    arrived: list[connex.InboundStream] = []
    sink.on_stream(arrived.append)
    stream = await source.open_stream("sink", label="closes")
    other = await source.open_stream("sink", label="is reset")
    await until(lambda: len(arrived) == 2, "both streams are there")
    for number in range(3):
        await stream.send(bytes([number]))
    await other.send(b"x")
    closing = asyncio.ensure_future(stream.close())
    assert [message.number async for message in arrived[0]] == [0, 1, 2]
    await closing
    assert (arrived[0].sender, arrived[0].receiver, arrived[0].label) == ("source", "sink", "closes")
    iterator = aiter(arrived[1])
    assert (await anext(iterator)).payload == b"x"
    waiting = asyncio.ensure_future(anext(iterator))
    await asyncio.sleep(0)
    other.reset("changed my mind")
    with pytest.raises(StreamReset, match="cancelled: changed my mind"):
        await waiting
    with pytest.raises(StreamReset):
        await other.send(b"more")


async def test_both_ends_hear_of_a_reset_by_the_receiver(lab: Lab) -> None:
    first, second = await lab.cluster(2)
    sink, source = await second.host("sink"), await first.host("source")
    ended: list[connex.Stream] = []
    source.on_stream_end(ended.append)
    stream = await source.open_stream("sink")
    await stream.send(b"x")
    message = await sink.receive()
    message.stream.reset("no more")
    await until(lambda: ended, "the sender hears of it")
    assert ended == [stream]
    assert isinstance(stream.error, StreamReset)
    assert stream.error.cause is ResetCause.CANCELLED


async def test_nobody_owns_the_receiver(lab: Lab) -> None:
    first, _ = await lab.cluster(2, config=config(resolve_for=50_000_000))
    source = await first.host("source")
    async with asyncio.timeout(5):
        with pytest.raises(StreamReset, match="endpoint-unknown"):
            await source.open_stream("nowhere")


async def test_a_stream_may_wait_for_its_receiver(lab: Lab) -> None:
    first, second = await lab.cluster(2)
    source = await first.host("source")
    stream = source.start_stream("later")
    await stream.send(b"early bird")
    sink = await second.host("later")
    async with asyncio.timeout(5):
        assert (await sink.receive()).payload == b"early bird"


async def test_ending_an_endpoint_tells_its_peers(lab: Lab) -> None:
    first, second = await lab.cluster(2)
    sink, source = await second.host("sink"), await first.host("source")
    stream = await source.open_stream("sink")
    reading = asyncio.ensure_future(sink.receive())
    await asyncio.sleep(0)
    causes: list[str] = []
    sink.on_release(causes.append)
    await sink.end()
    with pytest.raises(EndpointMoved, match=r"not served here any more \(ended\)"):
        await reading
    await until(lambda: stream.ended, "the sender hears of it")
    with pytest.raises(StreamReset, match="endpoint-ended"):
        await stream.send(b"x")
    assert causes == ["ended"]


async def test_what_a_callback_raises_is_reported_and_stops_nothing(lab: Lab) -> None:
    first, second = await lab.cluster(2)
    sink, source = await second.host("sink"), await first.host("source")
    got: list[bytes] = []

    def picky(message: connex.Message) -> None:
        got.append(bytes(message.payload))
        if message.payload == b"bad":
            raise ValueError("I do not like this one")

    sink.on_message(picky)
    stream = await source.open_stream("sink")
    for payload in (b"good", b"bad", b"good again"):
        await stream.send(payload)
    await stream.close()
    assert got == [b"good", b"bad", b"good again"]
    (context,) = lab.unseen
    assert "on_message of endpoint sink" in context["message"]
    lab.unseen.clear()


async def test_a_callback_that_comes_late_gets_what_waited(lab: Lab) -> None:
    first, second = await lab.cluster(2)
    sink, source = await second.host("sink"), await first.host("source")
    stream = await source.open_stream("sink")
    for number in range(5):
        await stream.send(bytes([number]))
    await until(lambda: second.core.streams()[0]["received"] == 5, "all have arrived")
    got: list[int] = []
    sink.on_message(lambda message: got.append(message.number))
    assert got == [0, 1, 2, 3, 4]


async def test_names_that_are_taken_or_wrong(lab: Lab) -> None:
    first, second = await lab.cluster(2)
    await first.host("stage")
    await until(lambda: second.core.binding("stage"), "the other node knows of it")
    with pytest.raises(LocalProtocolError, match="w0 owns it under epoch 1; move it from there"):
        await second.host("stage")
    with pytest.raises(LocalProtocolError, match="hosted here already"):
        await first.host("stage")
    with pytest.raises(LocalProtocolError, match="expected 1 to 63 bytes"):
        await first.host("")
    with pytest.raises(LocalProtocolError, match="not been started"):
        await connex.Node("w9").host("stage")


async def test_closing_a_node_tells_everybody_who_waits(lab: Lab) -> None:
    first, second = await lab.cluster(2)
    sink, source = await second.host("sink"), await first.host("source")
    stream = await source.open_stream("sink")
    reading = asyncio.ensure_future(sink.receive())
    await asyncio.sleep(0)
    await second.close()
    with pytest.raises(EndpointMoved):
        await reading
    async with asyncio.timeout(5):
        with pytest.raises(StreamReset):
            await stream.close()
    with pytest.raises((NodeClosed, LocalProtocolError)):
        await second.host("again")


async def test_a_polling_node_sleeps_when_it_is_quiet() -> None:
    played = HandPlayed(poll_ns=30_000_000)
    channel, _ = played.connect(TrafficClass.TOKEN)
    played.open(channel, TrafficClass.TOKEN)
    engine = played.assembly.engine
    assert engine.polling
    began = time.monotonic()
    await until(lambda: not engine.polling, "it stops polling")
    assert time.monotonic() - began > 0.02
    feed(channel, message(0, 0, b"x", kind=TrafficClass.TOKEN))
    assert engine.polling
    assert played.got == [b"x"]
    await played.close()
