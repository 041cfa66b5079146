"""Who may speak: both sides of the handshake, and what a node does with connections that do not get through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from connex import ChannelRefused, ConnexError, RemoteProtocolError, TrafficClass
from connex.core.frames import Frame, FrameType, decode_header, encode
from connex.core.identity import Peer
from connex.runtime import links
from connex.runtime.handshake import Acceptor, Code, Credentials, Hello, Initiator, Refusal
from connex.runtime.locator import Address, LocatorError, format_locator, parse_locator
from tests.runtime.lab import SECRET, Lab, journal_of, until

W0 = Credentials(Peer("w0", 10, "127.0.0.1:7400"), "c", SECRET)
W1 = Credentials(Peer("w1", 11, "[::1]:7401"), "c", SECRET)


def shake(initiator: Initiator, acceptor: Acceptor, change: Callable[[Frame], Frame] = lambda frame: frame) -> None:
    """Carry frames to and fro until nobody has any left; ``change`` may alter them on the way."""
    frames: list[tuple[Initiator | Acceptor, Frame]] = [(acceptor, frame) for frame in initiator.start()]
    while frames:
        receiver, frame = frames.pop(0)
        other = initiator if receiver is acceptor else acceptor
        header, _ = decode_header(encode(change(frame)))
        frames += [(other, answer) for answer in receiver.receive(header._replace(payload=change(frame).payload))]


def sides(first: Credentials = W0, second: Credentials = W1) -> tuple[Initiator, Acceptor]:
    return Initiator(first, TrafficClass.TOKEN, b"i" * 16), Acceptor(second, b"a" * 16)


def test_both_sides_learn_who_the_other_is() -> None:
    initiator, acceptor = sides()
    shake(initiator, acceptor)
    assert initiator.peer == W1.me
    assert acceptor.peer == W0.me
    assert acceptor.traffic_class is TrafficClass.TOKEN


def test_the_secret_may_be_empty() -> None:
    initiator, acceptor = sides(W0._replace(secret=b""), W1._replace(secret=b""))
    shake(initiator, acceptor)
    assert initiator.peer == W1.me


@pytest.mark.parametrize(
    ("second", "code", "text"),
    [
        (W1._replace(secret=b"another"), Code.PROOF, "did not prove"),
        (W1._replace(cluster="d"), Code.CLUSTER, "belongs to cluster 'c', w1 to 'd'"),
        (W1._replace(me=W1.me._replace(node="w0")), Code.NAME, "the name w0 is in use"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(second: Credentials, code: Code, text: str) -> None:
    initiator, acceptor = sides(W0, second)
    with pytest.raises(Refusal, match=text) as caught:
        shake(initiator, acceptor)
    assert caught.value.code is code
    assert initiator.peer is None
    assert acceptor.peer is None
    told = Initiator(W0, TrafficClass.TOKEN, b"x" * 16)
    with pytest.raises(ChannelRefused, match=rf"refused by the other side \({code.name.lower()}\): .*{text}"):
        told.receive(caught.value.answer)


@pytest.mark.parametrize("versions", [(2, 3), (0, 0)])
def test_other_versions_are_refused(versions: tuple[int, int]) -> None:
    initiator, acceptor = sides()
    hello = Hello.decode(initiator.start()[0].payload)._replace(lowest=versions[0], highest=versions[1])
    with pytest.raises(Refusal, match="speaks versions") as caught:
        acceptor.receive(Frame(FrameType.HELLO, payload=hello.encode()))
    assert caught.value.code is Code.VERSION


def test_a_later_version_that_still_speaks_ours_is_accepted() -> None:
    initiator, acceptor = sides()
    hello = Hello.decode(initiator.start()[0].payload)._replace(highest=7)
    answers = acceptor.receive(Frame(FrameType.HELLO, payload=hello.encode()))
    assert [frame.type for frame in answers] == [FrameType.HELLO, FrameType.PROOF]


def test_any_changed_byte_of_a_hello_breaks_the_proof() -> None:
    initiator, acceptor = sides()

    def change(frame: Frame) -> Frame:
        body = bytearray(frame.payload)
        if frame.type == FrameType.HELLO:
            body[-1] ^= 1
        return frame._replace(payload=bytes(body))

    with pytest.raises(Refusal) as caught:
        shake(initiator, acceptor, change)
    assert caught.value.code is Code.PROOF


def test_a_proof_cannot_be_sent_back_as_one_s_own() -> None:
    """A stranger who reflects the acceptor's proof proves nothing: the role is part of it."""
    _, acceptor = sides()
    stranger = Initiator(W0._replace(secret=b"unknown to it"), TrafficClass.TOKEN, b"i" * 16)
    _, proof = acceptor.receive(stranger.start()[0])
    with pytest.raises(Refusal) as caught:
        acceptor.receive(proof)
    assert caught.value.code is Code.PROOF


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameType.DATA, payload=b"x"),
        Frame(FrameType.PROOF, payload=bytes(32)),
        Frame(FrameType.HELLO, payload=b""),
        Frame(FrameType.HELLO, payload=W0.hello(bytes(16)).encode() + b"more"),
        Frame(FrameType.HELLO, payload=W0.hello(bytes(16))._replace(node="").encode()),
        Frame(FrameType.HELLO, payload=W0.hello(bytes(16))._replace(node="x" * 64).encode()),
        Frame(FrameType.HELLO, payload=W0.hello(bytes(16))._replace(locator="nowhere").encode()),
    ],
)
def test_what_is_not_a_hello_ends_the_handshake(frame: Frame) -> None:
    _, acceptor = sides()
    with pytest.raises(ConnexError):
        acceptor.receive(frame)
    assert acceptor.peer is None


def test_an_answer_in_another_class_ends_the_handshake() -> None:
    initiator, acceptor = sides()
    hello, _ = acceptor.receive(initiator.start()[0])
    with pytest.raises(RemoteProtocolError, match="class"):
        initiator.receive(hello._replace(traffic_class=TrafficClass.KV))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:7400", Address("10.0.0.1", 7400)),
        ("[fd00::1]:1", Address("fd00::1", 1)),
        ("[::]:0", Address("::", 0)),
    ],
)
def test_locators(text: str, address: Address) -> None:
    assert parse_locator(text) == address
    assert format_locator(*address) == text


@pytest.mark.parametrize(
    "text", ["", "10.0.0.1", ":7400", "host:7400", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:-1", "fd00::1:7400",
             "[10.0.0.1]:7400", "10.0.0.1:\uff17", "10.0.0.1 :7400"],
)  # fmt: skip
def test_what_is_not_a_locator(text: str) -> None:
    with pytest.raises(LocatorError, match="expected an IP address and a port"):
        parse_locator(text)


# On real sockets


async def closed_by_the_node(reader: asyncio.StreamReader, within_s: float) -> bytes:
    """What the node still says before it closes."""
    async with asyncio.timeout(within_s):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_a_silent_peer_is_let_go(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "HANDSHAKE_DEADLINE_S", 0.1)
    node = await lab.start("w0")
    reader, writer = await asyncio.open_connection(*parse_locator(node.locator))
    assert await closed_by_the_node(reader, 2) == b""
    assert node.metrics()["channels_refused"] == 1
    writer.close()


async def test_a_peer_that_stops_in_the_middle_is_let_go(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "HANDSHAKE_DEADLINE_S", 0.1)
    node = await lab.start("w0")
    reader, writer = await asyncio.open_connection(*parse_locator(node.locator))
    initiator = Initiator(W1._replace(cluster="default"), TrafficClass.TOKEN, bytes(16))
    writer.write(encode(initiator.start()[0]))
    answer = await closed_by_the_node(reader, 2)
    assert decode_header(answer)[0].type == FrameType.HELLO
    writer.close()
    assert not node.channels()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n" * 8, bytes(200), b"\xff" * 200])
async def test_garbage_ends_the_connection_at_once(lab: Lab, garbage: bytes) -> None:
    node = await lab.start("w0")
    reader, writer = await asyncio.open_connection(*parse_locator(node.locator))
    writer.write(garbage)
    assert await closed_by_the_node(reader, 2) == b""
    writer.close()
    assert node.metrics()["channels_refused"] == 1


async def test_a_frame_longer_than_its_class_allows_ends_the_connection(lab: Lab) -> None:
    node = await lab.start("w0")
    reader, writer = await asyncio.open_connection(*parse_locator(node.locator))
    writer.write(encode(Frame(FrameType.HELLO, payload=bytes(16 * 1024 + 1))))
    assert await closed_by_the_node(reader, 2) == b""
    writer.close()


async def test_too_many_half_open_connections_are_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "HALF_OPEN_LIMIT", 2)
    node = await lab.start("w0")
    connections = [await asyncio.open_connection(*parse_locator(node.locator)) for _ in range(3)]
    answer = await connections[2][0].readexactly(56)
    header, length = decode_header(answer)
    assert header.type == FrameType.REFUSED
    body = await connections[2][0].readexactly(length)
    assert body[0] == Code.LIMIT
    assert b"try again later" in body
    for _, writer in connections:
        writer.close()
    other = await lab.start("w1")
    await until(lambda: other.channels(), "a proper node gets in once the others are gone")


@pytest.mark.parametrize(
    ("options", "text"),
    [({"secret": b"wrong"}, "did not prove"), ({"cluster": "another"}, "belongs to cluster")],
)
async def test_nodes_that_do_not_fit_stay_apart(
    lab: Lab, tmp_path: Path, options: dict[str, str | bytes], text: str
) -> None:
    first = await lab.start("w0", journal=tmp_path)
    await first.host("stage")
    with pytest.raises(ChannelRefused, match="node w1 cannot join"):
        await lab.start("w1", **options)
    await until(lambda: first.metrics()["channels_refused"], "it is refused")
    assert not first.channels()
    records = journal_of(tmp_path, first)
    assert any(record["event"] == "channel.refused" and text in record["text"] for record in records)


async def test_a_second_node_of_the_same_name_is_refused(lab: Lab) -> None:
    first = await lab.start("w0")
    twin = await lab.start("w0", seeds=[first.locator])
    await until(lambda: twin.metrics()["channels_refused"], "the twin is refused")
    assert not twin.channels()
