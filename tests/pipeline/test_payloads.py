"""What the bytes of messages, KV state and results are made of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import message
from pipeline.adapters.plain_region import PlainRegion
from pipeline.arrivals import gap
from pipeline.kv import KvState
from pipeline.latency import Latencies
from pipeline.message import HEADER_SIZE, Header, Kind
from pipeline.parameters import ParameterError, Parameters
from pipeline.results import HASH_SIZE, Outcome, Results
from pipeline.saved import load, save

GOOD = {
    "stages": 3, "requests_per_s": 50.0, "requests": 500, "tokens": 8, "activation_bytes": 8192, "token_bytes": 64,
    "kv_bytes": 1_048_576, "kv_dirty_bytes": 4096, "compute_ns": 500_000, "concurrency": 64,
}  # fmt: skip


@given(st.integers(1, 5000), st.integers(0, 1 << 32), st.integers(0, 1 << 32))
def test_content_has_its_size_and_follows_from_its_digest(size: int, one: int, other: int) -> None:
    digests = [message.derive(1, 2, request & 0xFFFF_FFFF, 4) for request in (one, other)]
    contents = [message.content(digest, size) for digest in digests]
    assert [len(content) for content in contents] == [size, size]
    if digests[0][:size] != digests[1][:size]:
        assert contents[0] != contents[1]
    assert message.content(digests[0], size) == contents[0]


def test_no_two_frames_of_a_large_payload_are_alike() -> None:
    content = message.content(message.derive(1, 2, 3, 4), 8 << 20)
    for frame in (4096, 16 << 10, 64 << 10, 256 << 10):
        pieces = [content[start : start + frame] for start in range(0, len(content), frame)]
        assert len(set(pieces)) == len(pieces)


def test_a_digest_depends_on_each_part_and_on_their_places() -> None:
    seen = {
        message.derive(1, 1, 1, 1, b"ab", b"c"),
        message.derive(2, 1, 1, 1, b"ab", b"c"),
        message.derive(1, 2, 1, 1, b"ab", b"c"),
        message.derive(1, 1, 2, 1, b"ab", b"c"),
        message.derive(1, 1, 1, 2, b"ab", b"c"),
        message.derive(1, 1, 1, 1, b"c", b"ab"),
        message.derive(1, 1, 1, 1, b"ab"),
    }
    assert len(seen) == 7


@given(st.builds(Header, *[st.integers(0, (1 << 32) - 1)] * 3, st.integers(0, 65535), st.sampled_from(list(Kind))))
def test_a_message_is_read_as_it_was_written(header: Header) -> None:
    made = message.compose(header, bytes(32), 100)
    assert len(made) == HEADER_SIZE + 100
    read, content = message.parse(memoryview(made))
    assert read == header
    assert len(content) == 100


def test_a_message_that_is_too_short_is_an_error() -> None:
    with pytest.raises(ValueError, match="15 bytes; expected a header of 16"):
        message.parse(bytes(15))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"stages": 0}, r"pipeline.stages is 0; expected a whole number of at least 1"),
        ({"tokens": 2.5}, r"pipeline.tokens is 2.5"),
        ({"requests": True}, r"pipeline.requests is True"),
        ({"requests_per_s": 0}, r"pipeline.requests_per_s is 0; expected a number above 0"),
        ({"requests_per_s": "50/s"}, r"pipeline.requests_per_s is '50/s'"),
        ({"concurrency": 65_536, "kv_dirty_bytes": 0}, r"expected at most 65535"),
        ({"kv_dirty_bytes": 16_385}, r"a request has only 16384 bytes .* enlarge kv_bytes or lower concurrency"),
        ({"stagess": 3}, r"pipeline.stagess: no such parameter; expected one of activation_bytes, "),
    ],
)
def test_parameters_that_cannot_be_meant_are_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        Parameters.load(42, GOOD | change)


def test_a_missing_parameter_is_named_and_all_survive_the_way_to_another_node() -> None:
    with pytest.raises(ParameterError, match=r"pipeline.tokens is missing"):
        Parameters.load(42, {name: value for name, value in GOOD.items() if name != "tokens"})
    parameters = Parameters.load(42, GOOD)
    assert Parameters.from_json(parameters.to_json()) == parameters


def small_kv(slots: int = 4, slot: int = 1024, block: int = 128, tokens: int = 20) -> tuple[KvState, PlainRegion]:
    region = PlainRegion(slots * slot)
    changes = {"kv_bytes": slots * slot, "kv_dirty_bytes": block, "concurrency": slots, "tokens": tokens}
    state = KvState(region, Parameters.load(1, GOOD | changes))
    state.fill()
    return state, region


def digests(state: KvState, slot: int, tokens: int) -> list[bytes]:
    """What the steps of request 9 depend on, one after the other."""
    result = []
    for step in range(tokens):
        digest = message.derive(1, 1, 9, step, *state.read(slot, 9, step))
        state.write(slot, step, digest)
        result.append(digest)
    return result


def test_a_request_does_not_depend_on_its_slot_or_on_who_had_it_before() -> None:
    state, _ = small_kv()
    first = digests(state, 0, 20)
    assert digests(state, 3, 20) == first
    assert digests(state, 0, 20) == first
    assert len(set(first)) == 20


@pytest.mark.parametrize("tokens", [3, 20])
def test_a_lost_byte_of_a_slot_is_missed(tokens: int) -> None:
    """Whichever byte it is: of what was written, or of what is only carried around (by this request, as the slot is
    small).
    """
    state, _ = small_kv(tokens=tokens)
    sound = digests(state, 1, tokens)
    about_to_be_written = range(1024 + (tokens - 1) % 8 * 128, 1024 + (tokens - 1) % 8 * 128 + 128)
    for offset in range(1024, 2048, 61):
        if tokens < 8 and offset in about_to_be_written:
            continue  # nobody has written there for this request yet
        state, region = small_kv(tokens=tokens)
        digests(state, 1, tokens - 1)
        region.write(offset, bytes((region.view[offset] ^ 0xFF,)))
        damaged = message.derive(1, 1, 9, tokens - 1, *state.read(1, 9, tokens - 1))
        assert damaged != sound[-1], offset


def test_results_give_one_digest_in_whatever_order_they_come() -> None:
    hashes = [bytes((number,)) * HASH_SIZE for number in range(6)]

    def enter(order: list[int], look: bool) -> Results:
        results = Results(PlainRegion(Results.size(6)))
        for number in order:
            results.set(number, Outcome.FAILED if number == 4 else Outcome.DONE, hashes[number])
            if look:
                results.digest(6)
        return results

    forth, back = enter([0, 1, 2, 3, 4, 5], look=False), enter([5, 4, 3, 2, 1, 0], look=True)
    of_five = forth.digest(5)
    assert forth.digest(6) == back.digest(6) != of_five
    before = forth.digest(6)
    forth.set(2, Outcome.DONE, bytes(HASH_SIZE))
    assert forth.digest(6) != before
    forth.set(2, Outcome.DONE, hashes[2])
    assert forth.digest(6) == before


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=50)))
def test_what_is_saved_is_loaded_again(parts: list[bytes]) -> None:
    region = PlainRegion(0)
    save(region, [b"something longer before" * 9])
    save(region, parts)
    assert load(region) == parts


def test_arrivals_are_irregular_repeatable_and_on_average_right() -> None:
    gaps = [gap(42, request, 1000.0) for request in range(20_000)]
    assert gaps == [gap(42, request, 1000.0) for request in range(20_000)]
    assert gaps[:10] != [gap(43, request, 1000.0) for request in range(10)]
    assert 970_000 < sum(gaps) / len(gaps) < 1_030_000
    assert len(set(gaps)) > 19_000


@settings(max_examples=40)
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_quantiles_are_right_to_half_a_percent(values: list[int], part: float) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    exact = next(v for i, v in enumerate(sorted(values), 1) if i >= part * len(values))
    assert exact * 0.995 - 1 <= latencies.quantile(part) <= exact
