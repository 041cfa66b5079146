"""Three readings of docs/wire.md: the scapy layers, the checkers' fast one, and the codec of Connex, held against each
other and against bytes written out by hand."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.packet import Padding

from connex.core import binding as codec_binding
from connex.core import frames as codec
from connex.core.fence import PROMISED, read_answer
from testbed import dissect, frames
from testbed.conversation import describe
from tests.checkers.story import usual

BINDING = dissect.Binding(
    endpoint="stage-1", epoch=3, node="w1", incarnation=0x1122334455667788, locator="10.0.0.1:7400"
)
MEMBER = dissect.Member(node="w2", incarnation=7, locator="[fd00::2]:7400", state=2)
HELD = dissect.Held(number=4, start=100, end=120, data=b"0123456789")
MOVED = dissect.MovedStream(
    stream=9, side=1, stream_class=1, peer="sink", label="ü", binding=BINDING, message=4, offset=100, limit=5000,
    stream_flags="OPENED", messages=[HELD, dissect.Held(number=5, start=120, end=120)],
)  # fmt: skip

BODIES: dict[int, Any] = {
    1: dissect.Hello(cluster="c", node="w0", incarnation=5, locator="10.0.0.1:7400", nonce=bytes(range(16))),
    2: dissect.Proof(proof=bytes(range(32))),
    3: dissect.Refused(code=3, text="no"),
    4: dissect.Heartbeat(sent_at=12345),
    5: dissect.Join(member=MEMBER),
    6: dissect.Leave(member=MEMBER),
    16: dissect.Open(sender="source", receiver="stage-1", label="x", stream_class=2, binding=BINDING),
    18: dissect.Ack(limit=1 << 40),
    19: dissect.Reset(cause=2, side=2, text="owner died"),
    20: dissect.Stale(binding=BINDING, refused=1),
    32: dissect.Announce(binding=BINDING),
    33: dissect.Resolve(endpoint="stage-1"),
    48: dissect.Prepare(endpoint="stage-1", source="w1", expected=1000),
    50: dissect.Declined(text="full"),
    51: dissect.Commit(endpoint="stage-1"),
    52: dissect.Committed(endpoint="stage-1"),
    55: dissect.Abort(text="changed my mind"),
    57: dissect.Fence(endpoint="stage-1", ends=[dissect.EndpointName(endpoint="sink")]),
}


def header_of(kind: int) -> frames.Header:
    return frames.Header._make([0, 0, kind, *[0] * 11])


def test_a_header_byte_by_byte_as_the_page_has_it() -> None:
    layer = dissect.Connex(
        type=17, flags="FIN", traffic_class=3, stream=0x0102030405060708, message=9, offset=10, end=11, sender_epoch=12,
        destination_epoch=13,
    )  # fmt: skip
    expected = (
        "4358" "01" "11" "02" "03" "0000" "00000002" "0102030405060708" "0000000000000009" "000000000000000a"
        "000000000000000b" "0000000c" "0000000d"
    )  # fmt: skip
    data = bytes(layer / dissect.RAW(b"ab"))
    assert data[:52].hex() == expected
    assert data[56:] == b"ab"
    assert dissect.Connex(data).fits
    broken = bytearray(data)
    broken[20] ^= 1
    assert not dissect.Connex(bytes(broken)).fits


def test_a_binding_byte_by_byte() -> None:
    assert (
        bytes(BINDING)
        == b"\x07stage-1" + bytes([0, 0, 0, 3]) + b"\x02w1" + bytes.fromhex("1122334455667788") + b"\x0d10.0.0.1:7400"
    )


@given(
    kind=st.sampled_from(sorted(dissect.TYPES)),
    flags=st.integers(0, 7),
    traffic_class=st.integers(0, 3),
    wide=st.tuples(*[st.integers(0, (1 << 64) - 1)] * 4),
    epochs=st.tuples(*[st.integers(0, (1 << 32) - 1)] * 2),
    payload=st.binary(max_size=100),
)
def test_all_three_read_and_write_the_same_header(
    kind: int, flags: int, traffic_class: int, wide: tuple[int, ...], epochs: tuple[int, int], payload: bytes
) -> None:
    frame = codec.Frame._make([kind, flags, traffic_class, *wide, *epochs, payload])
    data = codec.encode(frame)
    layer = dissect.Connex(data)
    read = (layer.type, int(layer.flags), layer.traffic_class, layer.stream, layer.message, layer.offset, layer.end)
    assert (*read, layer.sender_epoch, layer.destination_epoch) == tuple(frame[:9])
    assert (layer.fits, layer.length) == (True, len(payload))
    fields = dissect.Connex(type=kind, flags=flags, traffic_class=traffic_class, stream=wide[0], message=wide[1])
    fields.offset, fields.end, fields.sender_epoch, fields.destination_epoch = *wide[2:], *epochs
    assert bytes(fields / dissect.RAW(payload)) == data
    fast: list[frames.Frame] = []
    frames.Splitter(fast.append, from_start=True).data(1, 0, memoryview(data))
    header = frames.Header(*fast[0].header)
    assert (header.type, header.flags, header.stream, header.end) == (kind, flags, wide[0], wide[3])
    assert b"".join(fast[0].payload) == payload


@pytest.mark.parametrize("kind", BODIES)
def test_a_body_survives_and_ends_where_it_ends(kind: int) -> None:
    data = bytes(dissect.Connex(type=kind) / BODIES[kind])
    again = dissect.Connex(data)
    assert bytes(again) == data
    assert type(again.payload) is type(BODIES[kind])
    again.payload.remove_payload()
    assert bytes(again.payload) == data[56:]
    assert "Connex" in again.mysummary()[0]


@pytest.mark.parametrize("kind", [kind for kind in BODIES if frames.read_body(header_of(kind), bytes(BODIES[kind]))])
def test_the_fast_reading_of_bodies_agrees_with_the_layers(kind: int) -> None:
    body = BODIES[kind]
    read = frames.read_body(header_of(kind), bytes(body))
    names = {"from": "sender", "to": "receiver", "class": "stream_class", "bytes": "expected"}
    for name, value in read.items():
        layer = getattr(body, names.get(name, name))
        if name == "binding":
            assert value == frames.Binding("stage-1", 3, "w1", 0x1122334455667788, "10.0.0.1:7400")
        else:
            assert value == (layer.decode() if isinstance(layer, bytes) else layer)
    for damaged in (bytes(body)[:-1], bytes(body) + b"x"):
        with pytest.raises(frames.BodyError):
            frames.read_body(header_of(kind), damaged)


def test_a_state_record_is_read_the_same_by_both() -> None:
    data = bytes(dissect.State(streams=[MOVED, MOVED]))
    layer = dissect.record(data)
    assert [moved.messages[0].data for moved in layer.streams] == [b"0123456789"] * 2
    cursors = frames.read_state(memoryview(data)[1:])
    assert [(one.stream, one.inbound, one.peer, one.label, one.message, one.offset) for one in cursors] == [
        (9, True, "sink", "ü", 4, 100)
    ] * 2
    assert [(n, start, end, bytes(held)) for n, start, end, held in cursors[0].held] == [
        (4, 100, 120, b"0123456789"),
        (5, 120, 120, b""),
    ]
    with pytest.raises(frames.BodyError):
        frames.read_state(memoryview(data)[1:-1])


def test_the_codec_writes_bindings_as_the_page_has_them() -> None:
    written = codec.binding(codec_binding.Binding("stage-1", 3, "w1", 0x1122334455667788, "10.0.0.1:7400"))
    assert written == bytes(BINDING)


def test_a_join_reply_with_members_and_bindings() -> None:
    data = bytes(
        dissect.Connex(type=5, flags="REPLY") / dissect.JoinReply(members=[MEMBER, MEMBER], bindings=[BINDING])
    )
    layer = dissect.Connex(data)
    assert (layer.member_count, layer.binding_count) == (2, 1)
    assert layer.members[1].locator == b"[fd00::2]:7400"
    assert layer.bindings[0].endpoint == b"stage-1"


def test_a_question_of_a_source_in_doubt_and_its_answer_as_the_codec_writes_them() -> None:
    names = [dissect.EndpointName(endpoint=b"source"), dissect.EndpointName(endpoint=b"sink")]
    question = bytes(dissect.Fence(endpoint=b"stage-1", ends=names))
    assert question == codec.text("stage-1") + b"\0\2" + codec.text("source") + codec.text("sink")
    reply = dissect.FenceReply(endpoint=b"stage-1", answer=1, known=BINDING, elsewhere=[BINDING])
    answer = read_answer(codec.Frame(57, 1, payload=bytes(reply)))
    assert (answer.endpoint, answer.answer) == ("stage-1", PROMISED)
    assert answer.elsewhere == [answer.known]
    assert answer.known.epoch == 3
    data = bytes(dissect.Connex(type=57, flags=1, destination_epoch=4) / reply)
    assert "promised: stage-1 epoch 3 at w1" in dissect.Connex(data).mysummary()[0]


def test_frames_that_follow_each_other_are_told_apart() -> None:
    data = bytes(dissect.Connex(type=33) / BODIES[33])
    assert bytes(dissect.Connex(data + data)[Padding]) == data
    assert dissect.Connex.tcp_reassemble(data[:-1], {}, {}) is None
    assert dissect.Connex.tcp_reassemble(data, {}, {}).type == 33


def test_the_layers_do_not_know_the_codec() -> None:
    for module in (dissect, frames):
        assert "connex.core" not in inspect.getsource(module).replace("``connex.core``", "")


def test_a_conversation_is_told_line_by_line(tmp_path: Path) -> None:
    usual().write(tmp_path / "run")
    lines = list(describe(tmp_path / "run" / "captures" / "w0.eth1.pcapng"))
    text = "\n".join(lines)
    for part in (
        "CONTROL ANNOUNCE epochs 2 > 0 (stage-1 epoch 2 at w2",
        "ACTIVATION OPEN stream 0000000000001111 epochs 1 > 1 (source to stage-1)",
        "ACTIVATION DATA stream 0000000000001111 message 0 [0, 300) of 300 epochs 1 > 1",
        "TOKEN ACK stream 0000000000002222 delivered 1 messages, 64 bytes",
        "STALE stream 0000000000001111 epochs 0 > 1 (destination-moved: stage-1 epoch 2 at w2",
        "segments were sent again",
    ):
        assert part in text
    assert lines[0].split()[1] in "<>"


def test_a_cut_off_capture_is_told_up_to_its_end_and_said_to_be_cut(tmp_path: Path) -> None:
    usual().write(tmp_path / "run")
    path = tmp_path / "run" / "captures" / "w1.eth1.pcapng"
    whole = list(describe(path))
    path.write_bytes(path.read_bytes()[:-600])
    cut = list(describe(path))
    assert any("cut off" in line for line in cut)
    assert cut[:50] == whole[:50]
