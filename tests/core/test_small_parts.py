"""Frames, bindings and timers: the parts that everything else stands on."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import connex.core
from connex.core import frames
from connex.core.binding import Binding, BindingTable, newer
from connex.core.errors import RemoteProtocolError
from connex.core.frames import BodyReader, Frame, FrameType, decode_header, encode, encode_header
from connex.core.timers import Timers

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
some_frames = st.builds(
    Frame,
    type=st.sampled_from(sorted(FrameType)),
    flags=st.integers(0, 7),
    traffic_class=st.integers(0, 3),
    stream=u64,
    message=u64,
    offset=u64,
    end=u64,
    sender_epoch=u32,
    destination_epoch=u32,
    payload=st.binary(max_size=40),
)


@given(some_frames)
def test_a_frame_survives_the_wire(frame: Frame) -> None:
    data = encode(frame)
    header, length = decode_header(data)
    assert header._replace(payload=data[56:]) == frame
    assert length == len(frame.payload)


@given(some_frames, st.integers(0, 55), st.integers(0, 7))
def test_a_flipped_bit_in_a_header_is_noticed(frame: Frame, byte: int, bit: int) -> None:
    data = bytearray(encode_header(frame))
    data[byte] ^= 1 << bit
    with pytest.raises(RemoteProtocolError):
        decode_header(data)


def test_the_first_frame_of_the_specification_byte_by_byte() -> None:
    data = encode(Frame(FrameType.DATA, 2, 1, 0x0102030405060708, 9, 10, 12, 3, 4, b"hi"))
    assert data[:52].hex(" ", 4).split() == [
        "43580111",  # magic, version, type DATA
        "02010000",  # flag FIN, class TOKEN, reserved
        "00000002",  # length
        *("01020304", "05060708"),  # stream
        *("00000000", "00000009"),  # message
        *("00000000", "0000000a"),  # offset
        *("00000000", "0000000c"),  # end
        "00000003",  # sender epoch
        "00000004",  # destination epoch
    ]
    assert data[56:] == b"hi"


def test_bodies_that_are_too_short_or_too_long_are_violations() -> None:
    with pytest.raises(RemoteProtocolError, match="expected at least 4"):
        BodyReader(b"abc").number(4)
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        BodyReader(b"\x01\xff").text()
    reader = BodyReader(b"abc")
    reader.number(1)
    with pytest.raises(RemoteProtocolError, match="expected 1"):
        reader.finish()


@given(st.text(max_size=20), u32, st.text(max_size=20), u64, st.text(max_size=20))
def test_a_binding_survives_the_wire(endpoint: str, epoch: int, node: str, incarnation: int, locator: str) -> None:
    binding = Binding(endpoint, epoch, node, incarnation, locator)
    assert BodyReader(frames.binding(binding)).binding() == binding


some_bindings = st.builds(
    Binding, st.just("e"), st.integers(1, 4), st.sampled_from(["", "a", "b"]), st.integers(0, 3), st.just("")
)


@given(st.lists(some_bindings, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_newest_binding_wins_in_whatever_order_they_come(bindings: list[Binding], draw) -> None:  # type: ignore[no-untyped-def]
    def settle(order: list[Binding]) -> tuple[int, bool, int]:
        table = BindingTable()
        for binding in order:
            table.learn(binding)
        known = table.get("e")
        assert known is not None
        return known.epoch, known.gone, 0 if known.gone else known.incarnation

    shuffled = list(bindings)
    draw.shuffle(shuffled)
    assert settle(shuffled) == settle(bindings)


@given(some_bindings, some_bindings)
def test_two_bindings_are_never_each_newer_than_the_other(one: Binding, other: Binding) -> None:
    assert not (newer(one, other) and newer(other, one))


def test_timers_come_in_order_and_a_new_deadline_replaces_the_old() -> None:
    timers = Timers()
    timers.set(("a", 1, ""), 10)
    timers.set(("b", 1, ""), 20)
    timers.set(("a", 1, ""), 30)
    timers.set(("c", 1, ""), 5)
    timers.clear(("c", 1, ""))
    assert timers.next() == 20
    assert [timers.take_due(30), timers.take_due(30), timers.take_due(30)] == [("b", 1, ""), ("a", 1, ""), None]


def test_the_core_imports_nothing_that_reads_a_clock_draws_or_does_io() -> None:
    allowed = {
        "__future__",
        "collections",
        "dataclasses",
        "enum",
        "hashlib",
        "heapq",
        "struct",
        "typing",
        "zlib",
        "connex",
    }
    for path in Path(connex.core.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in allowed, f"{path.name} imports {name}"
                assert name.split(".")[0] in sys.stdlib_module_names | {"connex"}


def test_streams_and_credit_know_nothing_of_moving() -> None:
    folder = Path(connex.core.__file__).parent
    for name in ("stream.py", "credit.py"):
        code = (folder / name).read_text()
        tree = ast.parse(code)
        words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not {
            word for word in words if "epoch" in word or "handover" in word or "binding" in word or "node" in word
        }
