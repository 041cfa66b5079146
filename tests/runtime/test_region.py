"""State regions: what changes is tracked and arrives, whatever happens while it is being copied."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connex import LimitExceeded, LocalProtocolError, StateRegion
from connex.runtime.region import Budget

BLOCK = 8
OPERATION = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 100), st.binary(max_size=30)),
    st.tuples(st.just("resize"), st.integers(0, 100), st.just(b"")),
    st.tuples(st.just("copy"), st.integers(0, 3), st.just(b"")),
)


def region(size: int = 100, limit: int = 1 << 20) -> StateRegion:
    return StateRegion("kv", size, BLOCK, Budget(limit))


def copy(source: StateRegion, target: StateRegion, most_runs: int = 1 << 30) -> None:
    """One round of pre-copy, perhaps interrupted."""
    position = 0
    for _ in range(most_runs):
        run = source.take_dirty(position, 3 * BLOCK)
        if run is None:
            return
        offset, data = run
        target.restore(len(source), offset, bytes(data))
        position = offset + len(data)


@settings(max_examples=60, deadline=None)
@given(before=st.binary(max_size=60), operations=st.lists(OPERATION, max_size=30))
def test_the_target_ends_up_with_the_same_bytes(before: bytes, operations: list[tuple[str, int, bytes]]) -> None:
    source, target = region(), StateRegion("kv", 0, BLOCK, Budget(1 << 20))
    source.write(7, before)
    model = bytearray(source.view)
    source.begin()
    for what, number, data in operations:
        if what == "write" and number + len(data) <= len(model):
            source.write(number, data)
            model[number : number + len(data)] = data
        elif what == "resize":
            source.resize(number)
            model = model[:number] + bytes(max(0, number - len(model)))
        elif what == "copy":
            copy(source, target, number)
    copy(source, target)
    assert bytes(source.view) == model
    assert bytes(target.view) == model


def test_only_what_changed_is_sent_again() -> None:
    source = region(10 * BLOCK)
    source.write(0, bytes(10 * BLOCK))
    source.begin()
    target = region(0)
    copy(source, target)
    assert source.dirty_bytes == 0
    source.write(3 * BLOCK + 1, b"new")
    assert source.dirty_bytes == BLOCK
    assert source.take_dirty(0, 1 << 20) == (3 * BLOCK, source.view[3 * BLOCK : 4 * BLOCK])
    assert source.take_dirty(0, 1 << 20) is None


def test_zeros_that_were_never_written_are_not_sent() -> None:
    source = region(1000 * BLOCK)
    source.write(500 * BLOCK, b"x")
    source.begin()
    assert source.dirty_bytes == BLOCK


def test_an_empty_region_announces_its_size() -> None:
    source = region(64)
    source.begin()
    run = source.take_dirty(0, 100)
    assert run is not None
    assert (run[0], len(run[1])) == (0, 0)
    assert source.take_dirty(0, 100) is None


def test_a_second_handover_sends_everything_again() -> None:
    source = region(4 * BLOCK)
    source.write(0, b"x" * 4 * BLOCK)
    for _ in range(2):
        source.begin()
        target = region(0)
        copy(source, target)
        source.end()
        assert target.view == source.view


def test_what_was_restored_moves_on() -> None:
    first, second, third = region(4 * BLOCK), region(0), region(0)
    first.write(BLOCK, b"state")
    first.begin()
    copy(first, second)
    second.begin()
    copy(second, third)
    assert third.view == first.view


def test_bytes_edited_in_place_are_tracked() -> None:
    source = region(4 * BLOCK)
    source.begin()
    source.edit(BLOCK, 2)[:] = b"ab"
    assert source.dirty_bytes == BLOCK
    assert bytes(source.view[BLOCK : BLOCK + 2]) == b"ab"


def test_the_view_cannot_be_written_and_shows_later_writes() -> None:
    source = region()
    view = source.view
    with pytest.raises(TypeError):
        view[0] = 1
    source.write(0, b"later")
    assert bytes(view[:5]) == b"later"


@pytest.mark.parametrize(("offset", "data"), [(96, b"12345"), (-1, b"1"), (200, b"")])
def test_writes_beyond_the_end_say_what_to_do(offset: int, data: bytes) -> None:
    with pytest.raises(LocalProtocolError, match="not within its 100 bytes; resize it first"):
        region().write(offset, data)


def test_other_buffers_are_written_as_bytes() -> None:
    from array import array

    source = region()
    source.write(4, memoryview(array("I", [1, 2])))
    assert source.view[4:12] == array("I", [1, 2]).tobytes()


def test_the_limit_counts_all_regions_of_an_endpoint() -> None:
    budget = Budget(100)
    StateRegion("a", 60, BLOCK, budget)
    with pytest.raises(LimitExceeded, match=r"region b.*exceed its limit of 100"):
        StateRegion("b", 41, BLOCK, budget)
    second = StateRegion("b", 40, BLOCK, budget)
    second.resize(0)
    StateRegion("c", 40, BLOCK, budget)
    with pytest.raises(LocalProtocolError, match="expected 0 or more"):
        second.resize(-1)
