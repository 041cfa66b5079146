"""Channels: frames out of any pieces, large payloads straight into their place, no late writer into a used buffer."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from connex import TrafficClass
from connex.core.frames import Frame, FrameType, encode
from connex.runtime.sockets import TUNINGS
from tests.runtime.lab import until
from tests.runtime.peer import STREAM, HandPlayed, feed, message

KIB = 1024


@pytest_asyncio.fixture
async def played() -> AsyncIterator[HandPlayed]:
    both = HandPlayed()
    yield both
    await both.close()


def conversation(seed: int) -> tuple[list[bytes], bytes]:
    """Messages of all sizes, and the bytes that carry them, with other frames in between."""
    draw = random.Random(seed)
    payloads, wire, offset = [], [], 0
    for number in range(12):
        payload = draw.randbytes(draw.choice((0, 1, 60, 5000, 9000, 70_000, 300_000, 600_000)))
        wire.append(message(number, offset, payload, draw.choice((1000, 10_000, 256 * KIB))))
        if draw.random() < 0.5:
            wire.append(encode(Frame(FrameType.HEARTBEAT, 0, TrafficClass.CONTROL, payload=bytes(16))))
        payloads.append(payload)
        offset += len(payload)
    return payloads, b"".join(wire)


@pytest.mark.parametrize("sizes", ["whole", "tiny", "odd", "random"])
async def test_frames_come_out_whole_whatever_the_reads(played: HandPlayed, sizes: str) -> None:
    channel, _ = played.connect()
    played.open(channel)
    payloads, wire = conversation(5)
    draw = random.Random(6)
    limits = {
        "whole": iter([]),
        "tiny": (draw.randrange(1, 60) for _ in range(2000)),
        "odd": (1 + 55 * (number % 2) for number in range(3000)),
        "random": (draw.choice((1, 56, 57, 4096, 100_000)) for _ in range(5000)),
    }[sizes]
    feed(channel, wire, limits)
    assert [len(one) for one in played.got] == [len(one) for one in payloads]
    assert played.got == payloads


def test_any_split_of_any_conversation() -> None:
    import asyncio

    @settings(max_examples=25, deadline=None)
    @given(seed=st.integers(0, 1 << 30), sizes=st.lists(st.integers(1, 300_000), max_size=60))
    def check(seed: int, sizes: list[int]) -> None:
        async def run() -> None:
            played = HandPlayed()
            channel, _ = played.connect()
            played.open(channel)
            payloads, wire = conversation(seed)
            feed(channel, wire, sizes)
            assert played.got == payloads
            await played.close()

        asyncio.run(run())

    check()


async def test_large_payloads_are_read_into_the_buffer_of_the_receiver(played: HandPlayed) -> None:
    channel, _ = played.connect()
    stream = played.open(channel)
    buffer = bytearray(1024 * KIB)
    stream.receive_into(lambda size: buffer)
    wire = message(0, 0, b"x" * 1024 * KIB)
    feed(channel, wire[: 64 * KIB])
    assert channel.bulk is not None
    place = channel.bulk.get_buffer(-1)
    assert place.obj is buffer
    assert len(place) == 256 * KIB + 56 - 64 * KIB
    feed(channel, wire[64 * KIB :])
    assert played.got == [b"x" * 1024 * KIB]


@pytest.mark.parametrize("buffer", [bytearray(600 * KIB - 1), bytes(600 * KIB), None])
async def test_a_buffer_that_does_not_fit_resets_the_stream(
    played: HandPlayed, buffer: bytearray | None, caplog: pytest.LogCaptureFixture
) -> None:
    channel, wire = played.connect()
    stream = played.open(channel)
    stream.receive_into(lambda size: buffer)  # type: ignore[arg-type, return-value]
    feed(channel, message(0, 0, b"x" * 600 * KIB)[:-1])
    await until(lambda: stream.ended, "the stream is reset")
    assert "no buffer for a message of 614400 bytes" in str(stream.error)
    assert FrameType.RESET in [frame.type for frame in wire.frames()]
    assert not channel.over
    assert "receive_into of the stream from source" in caplog.text


async def test_a_late_copy_on_another_channel_never_touches_a_buffer_in_use(played: HandPlayed) -> None:
    """The old connection still holds the end of a frame; the new one has carried the message again, and the application
    reuses its buffer for the next."""
    old, _ = played.connect()
    stream = played.open(old)
    buffer = bytearray(512 * KIB)
    stream.receive_into(lambda size: buffer)
    first = message(0, 0, b"1" * 512 * KIB)
    feed(old, first[: 300 * KIB])
    assert old.bulk is not None
    assert old.bulk.get_buffer(-1).obj is buffer
    new, _ = played.connect()
    feed(new, first[256 * KIB + 56 :])
    assert played.got == [b"1" * 512 * KIB]
    second = message(1, 512 * KIB, b"2" * 512 * KIB)
    feed(new, second[: 200 * KIB])
    feed(old, first[300 * KIB :])
    feed(new, second[200 * KIB :])
    assert played.got[1] == b"2" * 512 * KIB


async def test_a_stream_that_is_reset_frees_its_buffer_at_once(played: HandPlayed) -> None:
    channel, _ = played.connect()
    stream = played.open(channel)
    buffer = bytearray(512 * KIB)
    stream.receive_into(lambda size: buffer)
    wire = message(0, 0, b"1" * 512 * KIB)
    feed(channel, wire[: 300 * KIB])
    stream.reset("not wanted")
    buffer[:] = bytes(512 * KIB)
    feed(channel, wire[300 * KIB :])
    assert buffer == bytes(512 * KIB)
    assert played.got == []


async def test_a_broken_header_ends_the_channel(played: HandPlayed) -> None:
    channel, wire = played.connect()
    played.open(channel)
    good, bad = message(0, 0, b"good"), bytearray(message(1, 4, b"bad"))
    bad[30] ^= 1
    feed(channel, good + bytes(bad) + message(1, 4, b"never"))
    assert wire.closed
    assert played.got == [b"good"]
    assert played.assembly.links.refused_channels == 1


async def test_a_frame_longer_than_the_class_allows_ends_the_channel(played: HandPlayed) -> None:
    channel, wire = played.connect(TrafficClass.TOKEN)
    feed(channel, message(0, 0, b"x" * (16 * KIB + 1), kind=TrafficClass.TOKEN))
    assert wire.closed


async def test_a_channel_that_takes_no_more_is_left_alone_until_it_does(played: HandPlayed) -> None:
    channel, wire = played.connect()
    played.open(channel)
    engine = played.assembly.engine
    outbound = played.sink.start_stream("source", TrafficClass.KV)
    (opening,) = [frame for frame in wire.frames() if frame.type == FrameType.OPEN]
    limit = (1 << 30).to_bytes(8, "big")
    feed(channel, encode(Frame(FrameType.ACK, 0, TrafficClass.KV, opening.stream, 0, 0, 0, 1, 1, limit)))
    wire.frames()
    channel.pause_writing()
    outbound.send_nowait(b"x" * 300 * KIB)
    assert wire.frames() == []
    channel.resume_writing()
    sent = [frame for frame in wire.frames() if frame.type == FrameType.DATA]
    assert b"".join(bytes(frame.payload) for frame in sent) == b"x" * 300 * KIB
    assert engine.drains > 0
    assert outbound.id == opening.stream != STREAM


@pytest.mark.parametrize("kind", list(TrafficClass))
async def test_the_socket_is_set_up_for_its_class(played: HandPlayed, kind: TrafficClass) -> None:
    import socket

    _, wire = played.connect(kind)
    sock = wire.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == TUNINGS[kind].dscp << 2
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) >= 1000
    assert wire.limits[0] == TUNINGS[kind].high
