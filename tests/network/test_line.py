"""Each impairment of a line, by its effect on many frames with a fixed seed."""

from __future__ import annotations

from random import Random

import pytest

from faults.impairment import Impairment
from testbed.network.line import NEVER, Line, check, merged

MS = 1_000_000
SECOND = 1_000_000_000
SIZE = 1000


def flip(frame: int, random: Random) -> int:
    return -frame - 1 - random.randrange(1)


def make(**parameters: float) -> Line[int]:
    return Line("a--b/a-to-b", Impairment(**parameters), 42, flip)  # type: ignore[arg-type]


def pass_through(line: Line[int], frames: int, gap: int = MS, size: int = SIZE) -> list[tuple[int, int]]:
    """Frames 0, 1, ... enter ``gap`` ns apart; all that leave, with their times."""
    left: list[tuple[int, int]] = []
    for number in range(frames):
        line.enter(number, size, number * gap)
    while (time := line.next_time()) != NEVER:
        left += line.leave(time)
    return left


def test_nothing_configured_changes_nothing() -> None:
    assert pass_through(make(), 100) == [(number * MS, number) for number in range(100)]


def test_delay_is_exact() -> None:
    assert pass_through(make(delay=7 * MS), 3) == [(7 * MS, 0), (8 * MS, 1), (9 * MS, 2)]


def test_jitter_is_uniform_where_frames_are_far_apart() -> None:
    added = [time - number * 100 * MS for time, number in pass_through(make(jitter=10 * MS), 4000, gap=100 * MS)]
    assert min(added) >= 0
    assert max(added) <= 10 * MS
    assert sum(added) / len(added) == pytest.approx(5 * MS, rel=0.03)
    assert sum(value < 2 * MS for value in added) / len(added) == pytest.approx(0.2, abs=0.02)


def test_jitter_keeps_order() -> None:
    """T24"""
    left = pass_through(make(delay=MS, jitter=50 * MS), 5000, gap=MS // 10)
    assert [number for _, number in left] == list(range(5000))
    assert len({time - number * (MS // 10) for time, number in left}) > 1000


def test_a_smaller_delay_keeps_order() -> None:
    line = make(delay=100 * MS)
    line.enter(0, SIZE, 0)
    line.change(Impairment(), 10 * MS)
    line.enter(1, SIZE, 11 * MS)
    assert line.leave(100 * MS) == [(100 * MS, 0), (100 * MS, 1)]


@pytest.mark.parametrize("loss", [0.005, 0.01, 0.3])
def test_loss_loses_its_share(loss: float) -> None:
    line = make(loss=loss)
    left = pass_through(line, 40_000)
    assert line.counters.lost == 40_000 - len(left)
    assert line.counters.lost / 40_000 == pytest.approx(loss, rel=0.1)


def _bursts(left: list[tuple[int, int]], frames: int) -> list[int]:
    arrived = {number for _, number in left}
    bursts, run = [], 0
    for number in range(frames):
        if number not in arrived:
            run += 1
        elif run:
            bursts.append(run)
            run = 0
    return bursts


@pytest.mark.parametrize("burst", [1.0, 2.0, 8.0])
def test_losses_come_in_bursts_of_the_mean_length(burst: float) -> None:
    left = pass_through(make(loss=0.05, loss_burst=burst), 60_000)
    bursts = _bursts(left, 60_000)
    assert sum(bursts) / 60_000 == pytest.approx(0.05, rel=0.15)
    # Independent losses meet by chance: their mean run is 1 / (1 - loss).
    assert sum(bursts) / len(bursts) == pytest.approx(burst if burst > 1 else 1 / 0.95, rel=0.1)


@pytest.mark.parametrize("name", ["loss", "duplicate", "corrupt"])
def test_zero_is_none_and_one_is_all(name: str) -> None:
    """T26"""
    counter = {"loss": "lost", "duplicate": "duplicated", "corrupt": "corrupted"}[name]
    for probability, expected in [(0.0, 0), (1.0, 500)]:
        line = make(**{name: probability})
        pass_through(line, 500)
        assert getattr(line.counters, counter) == expected


def test_everything_is_lost_at_loss_one_with_bursts_too() -> None:
    assert pass_through(make(loss=1.0, loss_burst=5.0), 100) == []


def test_duplicates_follow_their_original() -> None:
    line = make(duplicate=0.1)
    left = pass_through(line, 10_000)
    assert len(left) == 10_000 + line.counters.duplicated
    assert line.counters.duplicated == pytest.approx(1000, rel=0.1)
    assert [number for _, number in left] == sorted(number for _, number in left)


def test_reordered_frames_are_overtaken_by_those_within_their_time() -> None:
    line = make(delay=5 * MS, reorder=0.1, reorder_by=3 * MS)
    left = pass_through(line, 5000)
    late = [(time, number) for time, number in left if time == number * MS + 8 * MS]
    assert len(late) == line.counters.reordered == pytest.approx(500, rel=0.15)
    order = [number for _, number in left]
    assert sorted(order) == list(range(5000))
    overtaken = [sum(other > number for other in order[: order.index(number)]) for _, number in late[:50]]
    assert max(overtaken) == 3
    on_time = [number for time, number in left if time == number * MS + 5 * MS]
    assert on_time == sorted(on_time)


def test_corrupted_frames_go_through_the_damage_function() -> None:
    line = make(corrupt=0.25)
    left = pass_through(line, 8000)
    assert sum(number < 0 for _, number in left) == line.counters.corrupted == pytest.approx(2000, rel=0.1)


def test_rate_spaces_frames_by_their_size() -> None:
    left = pass_through(make(rate=8_000_000), 4, gap=0)
    assert left == [(MS, 0), (2 * MS, 1), (3 * MS, 2), (4 * MS, 3)]


def test_rate_does_not_delay_what_arrives_more_slowly() -> None:
    assert pass_through(make(rate=8_000_000), 3, gap=10 * MS) == [(MS, 0), (11 * MS, 1), (21 * MS, 2)]


def test_delay_comes_after_the_rate() -> None:
    assert pass_through(make(rate=8_000_000, delay=50 * MS), 2, gap=0) == [(51 * MS, 0), (52 * MS, 1)]


def test_the_queue_holds_what_it_says_beside_the_frame_being_sent() -> None:
    line = make(rate=8_000_000, queue=3 * SIZE)
    left = pass_through(line, 10, gap=0)
    assert [number for _, number in left] == [0, 1, 2, 3]
    assert (line.counters.overflowed, line.counters.lost, line.counters.overrun) == (6, 0, 0)


def test_overflow_is_counted_apart_from_loss() -> None:
    """T23"""
    line = make(rate=8_000_000, queue=5 * SIZE, loss=0.5)
    left = pass_through(line, 1000, gap=MS // 2)
    counters = line.counters
    assert counters.overflowed > 300
    assert counters.lost > 150
    assert len(left) == 1000 - counters.overflowed - counters.lost


def test_without_a_queue_nothing_is_dropped_however_long_the_line() -> None:
    """T23: the queue is sized to hold delay x rate and what waits."""
    line = make(rate=1_000_000_000, delay=SECOND)
    left = pass_through(line, 20_000, gap=0, size=1500)
    assert len(left) == 20_000
    assert line.counters.overflowed == line.counters.overrun == 0


def test_down_lets_nothing_through_and_loses_what_is_under_way() -> None:
    line = make(delay=10 * MS, rate=8_000_000)
    for number in range(3):
        line.enter(number, SIZE, 0)
    line.change(line.impairment.merge({"down": True}), 2 * MS)
    line.enter(3, SIZE, 3 * MS)
    assert line.next_time() == NEVER
    assert line.leave(SECOND) == []
    assert line.counters.down == 4
    line.change(line.impairment.merge({"down": False}), 4 * MS)
    line.enter(4, SIZE, 4 * MS)
    assert line.leave(SECOND) == [(15 * MS, 4)]


def test_a_new_rate_holds_for_frames_that_wait() -> None:
    """T29: a step is done only when its effect is."""
    line = make(rate=8_000)  # one frame per second
    for number in range(3):
        line.enter(number, SIZE, 0)
    line.change(line.impairment.merge({"rate": 8_000_000}), SECOND // 2)
    assert line.leave(10 * SECOND) == [
        (SECOND // 2 + MS // 2, 0),
        (SECOND // 2 + MS // 2 + MS, 1),
        (SECOND // 2 + MS // 2 + 2 * MS, 2),
    ]


def test_taking_the_rate_away_lets_waiting_frames_go_at_once() -> None:
    line = make(rate=8_000)
    for number in range(3):
        line.enter(number, SIZE, 0)
    line.change(Impairment(), MS)
    assert line.leave(MS) == [(MS, 0), (MS, 1), (MS, 2)]


def test_frames_that_wait_meet_a_loss_that_begins_meanwhile() -> None:
    line = make(rate=8_000_000)
    for number in range(5):
        line.enter(number, SIZE, 0)
    line.change(line.impairment.merge({"loss": 1.0}), 2 * MS + 1)
    assert line.leave(SECOND) == [(MS, 0), (2 * MS, 1)]
    assert line.counters.lost == 3


def test_the_same_seed_does_the_same_and_another_does_not() -> None:
    def run(seed: int, name: str = "l") -> list[tuple[int, int]]:
        impairment = Impairment(loss=0.3, jitter=MS, duplicate=0.1, corrupt=0.1)
        return pass_through(Line(name, impairment, seed, flip), 500)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(1) != run(1, "m")


def test_merging_keeps_the_other_parameters() -> None:
    """T25"""
    before = Impairment(delay=5, loss=0.1, rate=1000)
    after = merged(before, {"loss": 0.0})
    assert after == Impairment(delay=5, loss=0.0, rate=1000)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": 1.5}, "loss: 1.5 is not a probability"),
        ({"loss": -0.1}, "loss: -0.1 is not a probability"),
        ({"delay": -1}, "delay: -1 is negative"),
        ({"loss": 0.9, "loss_burst": 2.0}, "needs a mean burst of at least 9"),
        ({"loss": 0.1, "loss_burst": 0.5}, "shorter than one frame"),
        ({"colour": 1}, "unknown parameter colour"),
        ({"queue": 1000}, "has no effect without a rate"),
        ({"reorder": 0.1}, "has no effect without reorder_by"),
        ({"reorder_by": 5}, "has no effect without reorder"),
        ({"loss_burst": 3.0}, "has no effect without loss"),
    ],
)
def test_what_no_line_can_show_is_refused(changes: dict[str, float], said: str) -> None:
    """T26"""
    with pytest.raises(ValueError, match=said):
        merged(Impairment(), changes)


def test_an_impossible_impairment_is_refused_at_the_start_too() -> None:
    with pytest.raises(ValueError, match="corrupt"):
        check(Impairment(corrupt=2.0))
