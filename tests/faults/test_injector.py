"""Faults begin when they should and are always healed, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from faults.document import parse
from faults.injector import Injector
from faults.scenario import check_scenario, read_scenario
from tests.faults.world import AROUND, MemoryWorld, VirtualLoop, in_virtual_time


def injector(world: MemoryWorld, *events: str, seed: int = 1) -> Injector:
    text = "topology: five\nduration: 10s\nevents:\n" + "".join(f"  - {event}\n" for event in events)
    document = parse(text, "s.yaml")
    scenario = read_scenario(document)
    check_scenario(document, scenario, AROUND)
    return Injector(world, scenario, seed, AROUND)


def play(world: MemoryWorld, *events: str, seed: int = 1, also: Callable[[float], None] | None = None) -> None:
    """Run the events. ``also(second)`` is called once in the middle of every second."""

    async def main() -> None:
        task = asyncio.create_task(injector(world, *events, seed=seed).run())
        await asyncio.sleep(0.5)
        for second in range(60):
            if task.done():
                break
            if also is not None:
                also(second)
            await asyncio.sleep(1)
        await task

    in_virtual_time(main())


def test_an_impairment_comes_and_goes_at_its_times() -> None:
    world = MemoryWorld()
    play(world, "{at: 2s, for: 3s, impair: {link: w1--s0, direction: a-to-b, rate: 50Mbit}}")
    assert world.at("fault.begun") == [2.0]
    assert world.at("fault.healed") == [5.0]
    assert world.lines == {("w1--s0", "a-to-b"): world.declared}


def test_one_direction_is_one_direction_and_a_node_is_all_its_links() -> None:
    world = MemoryWorld()
    play(
        world,
        "{at: 1s, impair: {link: w1--s0, direction: b-to-a, loss: 1%}}",
        "{at: 1s, impair: {node: w2, delay: 1ms}}",
    )
    assert set(world.lines) == {("w1--s0", "b-to-a"), ("w2--s0", "a-to-b"), ("w2--s0", "b-to-a")}
    assert world.healed


def test_what_has_no_end_lasts_until_the_scenario_ends_and_is_healed_in_reverse_order() -> None:
    world = MemoryWorld()
    play(
        world,
        "{at: 1s, impair: {link: w1--s0, direction: a-to-b, loss: 1%}}",
        "{at: 2s, partition: {between: [[w1], [w2, w3]]}}",
        "{at: 3s, impair: {link: w2--s0, direction: a-to-b, loss: 1%}}",
    )
    assert world.at("fault.healed") == [10.0] * 3
    assert [event["id"] for event in world.named("fault.healed")] == [3, 2, 1]
    assert world.done[3:] == ["restore w2--s0 a-to-b", "unblock", "restore w1--s0 a-to-b"]


@pytest.mark.parametrize(
    ("partition", "pairs"),
    [
        ("between: [[w1], [w2, w3]]", [("w1", "w2"), ("w1", "w3"), ("w2", "w1"), ("w3", "w1")]),
        ("between: [[w1], [w2]], one-way: true", [("w1", "w2")]),
        ("from: [w2], to: [left]", [("w2", "w0"), ("w2", "w1")]),
    ],
)
def test_a_partition_is_between_nodes_or_groups_both_ways_or_one(partition: str, pairs: list[tuple[str, str]]) -> None:
    world = MemoryWorld()
    seen: list[list[tuple[str, str]]] = []
    play(world, f"{{at: 1s, for: 2s, partition: {{{partition}}}}}", also=lambda _: seen.extend(world.blocked.values()))
    assert seen == [pairs] * 2
    assert world.healed


def test_a_dead_target_ends_its_fault_while_the_rest_goes_on() -> None:
    """T17."""
    world = MemoryWorld()
    play(
        world,
        "{at: 1s, pause: {node: w1, for: 4s}}",
        "{at: 2s, crash: {node: w1}}",
        "{at: 3s, pause: {node: w1, for: 1s}}",
        "{at: 4s, pause: {node: w2, for: 1s}}",
    )
    assert [event["id"] for event in world.named("fault.target-gone")] == [3, 1]
    assert [event["id"] for event in world.named("fault.healed")] == [2, 4]
    assert world.healed


def test_a_restart_during_an_impairment_keeps_it() -> None:
    """T16: the link is impaired, not the process."""
    world = MemoryWorld()
    lines = []
    play(
        world,
        "{at: 1s, for: 5s, impair: {link: w2--s0, delay: 5ms}}",
        "{at: 2s, restart: {node: w2}}",
        also=lambda second: lines.append(world.line("w2--s0", "a-to-b").delay),
    )
    assert lines == [100_000, *[5_000_000] * 5, *[100_000] * 4]
    assert world.alive["w2"]


def test_of_overlapping_pauses_the_last_lets_the_process_go_on() -> None:
    world = MemoryWorld()
    stopped = []
    play(
        world,
        "{at: 1s, pause: {node: w1, for: 2s}}",
        "{at: 2s, pause: {owner-of: stage-1, for: 3s}}",
        also=lambda second: stopped.append("w1" in world.stopped),
    )
    assert stopped == [False, *[True] * 4, *[False] * 5]
    assert world.done == ["SIGSTOP w1", "SIGSTOP w1", "SIGCONT w1"]


def test_a_stopped_process_that_is_to_end_is_let_go_on() -> None:
    world = MemoryWorld()
    play(world, "{at: 1s, pause: {node: w1, for: 3s}}", "{at: 2s, crash: {node: w1, signal: TERM}}")
    assert not world.alive["w1"]
    assert world.healed


def test_a_crash_for_a_while_brings_the_node_back() -> None:
    world = MemoryWorld()
    play(world, "{at: 1s, for: 2s, crash: {owner-of: stage-2}}")
    assert world.alive["w2"]
    assert world.at("fault.healed") == [3.05]
    assert world.named("fault.begun")[0]["node"] == "w2", "what was meant by owner-of is told"


def test_a_crash_for_a_while_does_not_bring_back_what_was_dead_before() -> None:
    world = MemoryWorld()
    play(world, "{at: 1s, crash: w2}", "{at: 2s, for: 1s, crash: w2}", "{at: 3s, restart: w2}")
    assert not world.alive["w2"]
    assert [event["id"] for event in world.named("fault.target-gone")] == [2, 3]


def test_a_restart_waits_before_it_comes_back() -> None:
    world = MemoryWorld()
    play(world, "{at: 1s, restart: {node: w2, after: 300ms}}")
    assert world.alive["w2"]
    assert world.at("fault.healed") == [1.35]


def test_a_node_joins_once() -> None:
    world = MemoryWorld()
    play(world, "{at: 1s, join: w5}", "{at: 2s, join: w5}", "{at: 2s, migrate: {endpoint: stage-1, to: w5}}")
    assert world.owners["stage-1"] == "w5"
    assert [event["text"] for event in world.named("fault.skipped")] == ["w5 runs already"]


def test_two_that_start_the_same_node_at_once_start_it_once() -> None:
    world = MemoryWorld()
    play(world, "{at: 1s, join: w5}", "{at: 1s, join: w5}")
    assert world.done == ["start w5"]


def test_a_node_leaves() -> None:
    world = MemoryWorld()
    play(world, "{at: 1s, leave: w2}")
    assert not world.alive["w2"]
    assert world.at("fault.healed") == [1.01]


def test_a_step_fires_once_on_the_event_it_waits_for() -> None:
    world = MemoryWorld()

    def also(second: float) -> None:
        if second == 1:
            world.happen(event="handover.prepared", endpoint="stage-1")
            world.happen(event="handover.prepared", endpoint="stage-2")
            world.happen(event="handover.prepared", endpoint="stage-2")
        if second > 1:
            world.happen(event="handover.prepared", endpoint="stage-2")

    play(
        world,
        "{on: {event: handover.prepared, endpoint: stage-2, count: 3}, after: 200ms, crash: {node: w2}}",
        also=also,
    )
    assert world.at("fault.begun") == [2.7]
    assert not world.alive["w2"]


def test_events_at_the_same_moment_are_counted_each() -> None:
    world = MemoryWorld()

    def also(second: float) -> None:
        if second == 1:
            for _ in range(3):
                world.happen(event="handover.begun")

    play(world, "{on: {event: handover.begun, count: 3}, crash: {node: w2}}", also=also)
    assert world.at("fault.begun") == [1.5]


def test_an_event_that_never_comes_does_not_hold_the_scenario_up() -> None:
    world = MemoryWorld()
    play(world, "{on: {event: peer.dead}, crash: {node: w2}}")
    assert world.events == []
    assert world.alive["w2"]


def test_what_an_event_has_begun_ends_with_the_scenario_but_a_planned_change_is_waited_for() -> None:
    world = MemoryWorld()
    world.move_takes = 3
    play(
        world,
        "{on: {event: peer.dead}, for: 5s, impair: {link: w1--s0, loss: 1%}}",
        "{on: {event: peer.dead}, migrate: {endpoint: stage-1, to: w4}}",
        also=lambda second: world.happen(event="peer.dead") if second == 8 else None,
    )
    assert world.owners["stage-1"] == "w4"
    assert [(event["id"], "cause" in event) for event in world.named("fault.healed")] == [(2, False), (1, True)]
    assert world.healed


def test_a_spare_node_is_one_that_hosts_nothing_and_the_seed_says_which() -> None:
    targets = []
    for seed in (1, 1, 2, 3, 4, 5):
        world = MemoryWorld()
        world.alive["w5"] = True
        play(world, "{at: 1s, migrate: {endpoint: stage-1, to: spare}}", seed=seed)
        targets.append(world.owners["stage-1"])
    assert set(targets) == {"w4", "w5"}
    assert targets[0] == targets[1]


def test_two_that_move_at_once_do_not_take_the_same_spare_node() -> None:
    for seed in range(5):
        world = MemoryWorld()
        world.alive["w5"] = True
        play(world, *(f"{{at: 1s, migrate: {{endpoint: stage-{n}, to: spare}}}}" for n in (1, 2)), seed=seed)
        assert {world.owners["stage-1"], world.owners["stage-2"]} == {"w4", "w5"}


def test_what_a_move_was_is_told_when_it_is_done() -> None:
    world = MemoryWorld()
    play(world, "{at: 1s, migrate: {endpoint: stage-1, to: spare}}")
    (healed,) = world.named("fault.healed")
    assert (healed["source"], healed["target"], healed["epoch"]) == ("w1", "w4", 2)


def test_what_is_not_done_is_told_apart() -> None:
    world = MemoryWorld()
    world.refuse = "no"
    play(world, "{at: 1s, migrate: {endpoint: stage-1, to: w1}}", "{at: 2s, migrate: {endpoint: stage-1, to: w4}}")
    assert "is on w1 already" in world.named("fault.skipped")[0]["text"]
    assert world.named("fault.failed")[0]["text"] == "w1 could not move stage-1 to w4: no"


def test_a_request_that_is_never_answered_has_failed_and_the_rest_goes_on() -> None:
    world = MemoryWorld()
    world.never_answers = True
    play(world, "{at: 1s, migrate: {endpoint: stage-1, to: w4}}", "{at: 5s, crash: w3}")
    assert world.named("fault.failed")[0]["text"] == "w1 does not answer"
    assert not world.alive["w3"]


def test_one_endpoint_moves_once_at_a_time() -> None:
    world = MemoryWorld()
    world.move_takes = 1
    play(world, *("{at: 1s, migrate: {endpoint: stage-1, to: any}}",) * 3)
    assert world.most_moving == 1
    assert len(world.named("fault.healed")) == 3
    play(world, "{at: 1s, migrate: {endpoint: stage-1, to: any}}", "{at: 1s, migrate: {endpoint: stage-2, to: any}}")
    assert world.most_moving == 2


EVERYTHING = (
    "{at: 1s, for: 8s, impair: {node: w1, delay: 1ms}}",
    "{at: 1s, impair: {link: w2--s0, loss: 1%}}",
    "{at: 1200ms, for: 7s, impair: {link: w1--s0, delay: 2ms}}",
    "{at: 2s, for: 7s, pause: {node: w3}}",
    "{at: 2s, for: 7s, partition: {between: [[w1], [w2]]}}",
    "{at: 3s, for: 4s, crash: w4}",
    "{at: 3s, migrate: {endpoint: stage-1, to: w2}}",
    "{on: {event: peer.dead}, crash: {node: w4}}",
)


@pytest.mark.parametrize("again", [0, 1, 5])
@pytest.mark.parametrize("moment", [0.5, 1.0, 1.05, 1.25, 2.05, 2.15, 3.05, 5.0, 7.02, 9.05])
def test_cancelling_at_any_moment_and_again_heals_everything(moment: float, again: int) -> None:
    """T10: another Ctrl-C does not stop the clean-up."""
    world = MemoryWorld()
    world.effect_takes = 0.1

    async def main() -> None:
        task = asyncio.create_task(injector(world, *EVERYTHING).run())
        await asyncio.sleep(moment)
        task.cancel()
        for _ in range(again):
            await asyncio.sleep(0.03)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.healed, "before run() has returned"

    in_virtual_time(main())
    assert all(world.alive[name] for name in ("w0", "w1", "w2", "w3", "w4"))
    begun = [event["id"] for event in world.named("fault.begun")]
    ended = [event["id"] for event in world.named("fault.healed") + world.named("fault.target-gone")]
    assert sorted(ended) == sorted(begun)


def test_a_defect_of_a_fault_is_raised_after_everything_is_healed() -> None:
    world = MemoryWorld()

    async def broken(*_: object) -> None:
        raise RuntimeError("broken")

    world.start = broken  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="broken"):
        play(world, "{at: 1s, impair: {link: w2--s0, loss: 1%}}", "{at: 2s, join: w5}")
    assert world.at("fault.healed") == [2.0]
    assert world.healed


def test_what_cannot_be_healed_is_told_and_the_rest_is_healed() -> None:
    world = MemoryWorld()

    async def broken(*_: object) -> None:
        world.blocked.clear()
        raise RuntimeError("the wire is dead")

    world.unblock = broken  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="dead"):
        play(world, "{at: 1s, impair: {link: w2--s0, loss: 1%}}", "{at: 2s, partition: {between: [[w1], [w2]]}}")
    assert world.named("fault.failed")[0]["text"] == "could not be healed: the wire is dead"
    assert world.healed


def test_how_late_a_step_was_is_told() -> None:
    world = MemoryWorld()

    async def main() -> None:
        task = asyncio.create_task(injector(world, "{at: 1s, crash: w2}").run())
        await asyncio.sleep(0.5)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.jump.now += 2  # a machine that was suspended
        await task

    in_virtual_time(main())
    assert world.named("fault.begun")[0]["late_ns"] == 1_500_000_000
