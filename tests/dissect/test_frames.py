"""Frames out of a byte stream that comes in any pieces, with holes, from any point on."""

from __future__ import annotations

import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import frames
from testbed.frames import Splitter, check_header

LIMITS = {1: 16 * 1024, 2: 256 * 1024}


def make(payload: bytes, stream: int = 1, **changes: int) -> bytes:
    """A DATA frame by hand."""
    fields = {"magic": 0x4358, "version": 1, "type": 17, "flags": 0, "traffic_class": 1, "reserved": 0}
    fields |= {"length": len(payload), "stream": stream, "message": 0, "offset": 0, "end": len(payload)}
    header = frames.Header(**{**fields, "sender_epoch": 1, "destination_epoch": 1, "checksum": 0, **changes})
    raw = frames.pack_header(header)
    return frames.pack_header(header._replace(checksum=zlib.crc32(raw[:52]))) + payload


def split(pieces: list[bytes | int], *, from_start: bool = True) -> tuple[list[frames.Frame], Splitter]:
    """Bytes, and numbers for holes of that many bytes."""
    found: list[frames.Frame] = []
    splitter = Splitter(found.append, from_start=from_start)
    for time, piece in enumerate(pieces):
        if isinstance(piece, int):
            splitter.hole(time, piece)
        else:
            splitter.data(time, time, memoryview(piece))
    return found, splitter


def payloads(found: list[frames.Frame]) -> list[bytes]:
    return [b"".join(frame.payload) for frame in found]


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=6), st.lists(st.integers(0, 700), max_size=12))
def test_any_cut_of_the_bytes_gives_the_same_frames(contents: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(make(content) for content in contents)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    found, splitter = split([stream[a:b] for a, b in pairwise(edges)])
    assert payloads(found) == contents
    assert (splitter.skipped, splitter.malformed) == (0, "")
    assert all(frame.begun <= frame.time for frame in found)


@given(st.lists(st.binary(min_size=1, max_size=80), min_size=4, max_size=6), st.data())
def test_a_hole_costs_only_the_frames_that_it_touches(contents: list[bytes], data: st.DataObject) -> None:
    made = [make(content, number) for number, content in enumerate(contents)]
    stream = b"".join(made)
    begin = data.draw(st.integers(0, len(stream) - 2))
    stop = data.draw(st.integers(begin + 1, len(stream) - 1))
    found, splitter = split([stream[:begin], stop - begin, stream[stop:]])
    at, untouched = 0, []
    for number, frame in enumerate(made):
        if at + len(frame) <= begin or at >= stop:
            untouched.append(number)
        at += len(frame)
    assert [frame.header[7] for frame in found if frame.complete] == untouched
    assert not splitter.malformed


def test_a_hole_in_a_payload_leaves_the_header_readable() -> None:
    stream = make(b"abcdefgh", 7) + make(b"next", 8)
    found, splitter = split([stream[:58], 3, stream[61:]])
    assert [(frame.header[7], frame.complete) for frame in found] == [(7, False), (8, True)]
    assert splitter.skipped == 0


@given(st.binary(max_size=200))
def test_in_a_stream_that_was_open_before_the_next_header_is_found(before: bytes) -> None:
    found, splitter = split([before + make(b"one") + make(b"two")], from_start=False)
    assert payloads(found) == [b"one", b"two"]
    assert splitter.skipped == len(before)


def test_what_looks_like_a_header_and_has_the_wrong_checksum_is_passed_over() -> None:
    fake = bytearray(make(b""))
    fake[55] ^= 1
    found, splitter = split([bytes(fake) + make(b"real")], from_start=False)
    assert (payloads(found), splitter.skipped) == ([b"real"], 56)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"magic": 0x4359}, "magic"),
        ({"version": 2}, "version 2"),
        ({"flags": 8}, "reserved bits"),
        ({"reserved": 1}, "reserved bits"),
        ({"traffic_class": 4}, "class 4"),
        ({"length": 16 * 1024 + 1}, "the limit for class TOKEN is 16384"),
    ],
)
def test_a_header_that_cannot_be_right_ends_the_flow(changes: dict[str, int], problem: str) -> None:
    found, splitter = split([make(b"good"), make(b"", **changes), make(b"never read")])
    assert payloads(found) == [b"good"]
    assert problem in splitter.malformed
    assert splitter.skipped > 56


def test_a_flipped_bit_is_caught_by_the_checksum() -> None:
    for bit in range(52 * 8):
        header = bytearray(make(b""))
        header[bit // 8] ^= 1 << bit % 8
        assert check_header(frames.Header._make(frames.HEADER.unpack(header)), memoryview(header))
