"""The schedule is drawn from the seed before anything starts: the same seed, the same schedule (T47)."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from faults.document import parse
from faults.scenario import Scenario, read_scenario
from faults.schedule import Entry, draw_schedule
from tests.faults.world import AROUND

SECOND = 1_000_000_000


def scenario(*events: str) -> Scenario:
    return read_scenario(
        parse("topology: five\nduration: 10s\nevents:\n" + "".join(f"  - {one}\n" for one in events), "s.yaml")
    )


def draw(*events: str, seed: int = 1) -> list[Entry]:
    return draw_schedule(scenario(*events), seed, AROUND)


MIXED = (
    "{every: 1s, between: [1s, 9s], jitter: 500ms, pick: {group: left}, pause: {for: 100ms}}",
    "{every: 1s, between: [1s, 9s], pick: {endpoints: [stage-1, stage-2]}, migrate: {to: spare}}",
    "{at: 2s, jitter: 1s, crash: w3}",
    "{on: {event: peer.dead, peer: w1, count: 2}, after: 1s, restart: w1}",
)
READ = scenario(*MIXED)


def test_the_same_seed_gives_the_same_schedule_and_another_a_different_one() -> None:
    one, two, other = (draw(*MIXED, seed=seed) for seed in (1, 1, 2))
    assert one == two
    assert one != other
    assert len(one) == 18
    assert [entry.id for entry in one] == list(range(1, 19))
    assert {entry.parameters["node"] for entry in one if entry.kind == "pause"} == {"w0", "w1"}


def test_it_is_json() -> None:
    told = [entry.to_json() for entry in draw(*MIXED)]
    assert json.loads(json.dumps(told)) == told
    assert told[-1] == {
        "id": 18, "kind": "restart", "on": {"event": "peer.dead", "peer": "w1"}, "count": 2, "after": SECOND,
        "for": None, "node": "w1", "down_for": 0,
    }  # fmt: skip
    assert told[10]["kind"] == "migrate"
    assert "draw" in told[10], "a spare node is drawn when it happens, from this"


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**63 - 1))
def test_all_times_are_in_their_window_and_in_order(seed: int) -> None:
    drawn = draw_schedule(READ, seed, AROUND)
    pauses = [entry.at or 0 for entry in drawn if entry.kind == "pause"]
    assert all(
        at <= time <= at + SECOND // 2 for at, time in zip(range(SECOND, 9 * SECOND, SECOND), pauses, strict=True)
    )
    (crash,) = (entry.at or 0 for entry in drawn if entry.kind == "crash")
    assert 2 * SECOND <= crash <= 3 * SECOND


def test_what_one_step_draws_does_not_change_the_others() -> None:
    first = draw(MIXED[0], MIXED[1])
    second = draw(MIXED[0].replace("left", "workers"), MIXED[1])
    of = [
        [(entry.at, entry.parameters, entry.draw) for entry in one if entry.kind == "migrate"]
        for one in (first, second)
    ]
    assert of[0] == of[1]


def picked(pick: str, seed: int = 1) -> list[str]:
    return [entry.parameters["node"] for entry in draw(f"{{at: 1s, pick: {{{pick}}}, crash: {{}}}}", seed=seed)]


def test_so_many_are_picked() -> None:
    assert picked("group: left, mode: all") == ["w0", "w1"]
    assert len(picked("group: workers")) == 1
    assert len(set(picked("group: workers, mode: fixed, value: 4"))) == 4
    assert len(set(picked("group: workers, mode: fixed-percent, value: 50%"))) == 2
    assert len(picked("group: left, mode: fixed-percent, value: 1%")) == 1, "always one at least"
    sizes = {len(picked("group: workers, mode: random-max-percent, value: 50%", seed)) for seed in range(30)}
    assert sizes == {1, 2}


def test_of_endpoints_their_owners_are_meant_when_it_happens() -> None:
    (entry,) = draw("{at: 1s, pick: {endpoints: [stage-2]}, crash: {signal: TERM}}")
    assert entry.parameters == {"owner_of": "stage-2", "signal": 15}


def test_groups_of_a_partition_are_their_nodes() -> None:
    (entry,) = draw("{at: 1s, partition: {from: [w5, left], to: [right]}}")
    assert entry.parameters == {"between": [["w0", "w1", "w5"], ["w2", "w3", "w4"]], "one_way": True}
