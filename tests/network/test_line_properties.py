"""What holds for every line, whatever it is set to and whenever that changes."""

from __future__ import annotations

import itertools
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from faults.impairment import Impairment
from testbed.network.line import NEVER, Line

MS = 1_000_000

impairments = st.builds(
    Impairment,
    delay=st.integers(0, 20 * MS),
    jitter=st.integers(0, 20 * MS),
    loss=st.floats(0, 1),
    duplicate=st.floats(0, 1),
    rate=st.sampled_from([0, 1_000_000, 100_000_000]),
    queue=st.sampled_from([0, 3000, 30_000]),
    down=st.booleans(),
)
steps = st.lists(st.one_of(st.integers(0, 5 * MS), impairments), max_size=40)


@settings(max_examples=150, deadline=None)
@given(impairments, steps)
def test_no_frame_is_invented_forgotten_or_out_of_order(first: Impairment, script: list[int | Impairment]) -> None:
    line: Line[int] = Line("l", first, 1, lambda frame, _: frame)
    now, number = 0, 0
    entered: dict[int, int] = {}
    left: list[tuple[int, int]] = []
    for step in script:
        if isinstance(step, Impairment):
            line.change(step, now)
        else:
            now += step
            left += line.leave(now)
            line.enter(number, 1000, now)
            entered[number] = now
            number += 1
    while (time := line.next_time()) != NEVER:
        left += line.leave(time)
    counters = line.counters
    dropped = counters.lost + counters.down + counters.overflowed + counters.overrun
    assert counters.frames == number
    assert [time for time, _ in left] == sorted(time for time, _ in left)
    assert [frame for _, frame in left] == sorted(frame for _, frame in left)
    assert all(time >= entered[frame] for time, frame in left)
    # Both copies of a frame are dropped together only when a line goes down, which then counts them both.
    assert len(left) + dropped == number + counters.duplicated


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1_000_000, 1_000_000_000),
    st.lists(st.tuples(st.integers(0, MS), st.integers(60, 9014)), min_size=2, max_size=60),
)
def test_a_line_never_exceeds_its_rate(rate: int, frames: list[tuple[int, int]]) -> None:
    line: Line[int] = Line("l", Impairment(rate=rate), 1, lambda frame, _: frame)
    now = 0
    for gap, size in frames:
        now += gap
        line.enter(size, size, now)
    left: list[tuple[int, int]] = []
    while (time := line.next_time()) != NEVER:
        left += line.leave(time)
    for (before, _), (after, size) in itertools.pairwise(left):
        assert after - before >= size * 8_000_000_000 // rate


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, MS), max_size=50), st.lists(st.integers(0, 3 * MS), max_size=50), st.integers(0, 2**32))
def test_how_often_one_looks_does_not_change_what_happens(gaps: list[int], looks: list[int], seed: int) -> None:
    impairment = Impairment(delay=MS, jitter=MS, loss=0.2, reorder=0.2, reorder_by=MS, rate=20_000_000)
    arrivals = [sum(gaps[: index + 1]) for index in range(len(gaps))]

    def run(moments: list[int]) -> list[tuple[int, int]]:
        line: Line[int] = Line("l", impairment, seed, lambda frame, _: frame)
        left: list[tuple[int, int]] = []
        todo = sorted([(time, 0, number) for number, time in enumerate(arrivals)] + [(time, 1, 0) for time in moments])
        for time, look, number in todo:
            if look:
                left += line.leave(time)
            else:
                line.enter(number, 1000, time)
        return left + line.leave(1 << 50)

    assert run(sorted(Random(seed).sample(looks, len(looks)))) == run([])
