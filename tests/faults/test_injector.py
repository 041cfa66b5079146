"""Faults begin when they should and are always healed, whatever happens."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import MemoryWorld, in_virtual_time

from faults.document import parse
from faults.injector import Injector
from faults.network import Impair, Impairments
from faults.scenario import read_scenario

LINKS = {f"w{number}--s0": (f"w{number}", "s0") for number in range(6)}


def injector(world: MemoryWorld, *events: str, seed: int = 1) -> Injector:
    text = "topology: five\nduration: 10s\nevents:\n" + "".join(f"  - {event}\n" for event in events)
    return Injector(world, read_scenario(parse(text, "s.yaml")), seed, links=LINKS)


def play(world: MemoryWorld, *events: str, seed: int = 1) -> None:
    async def main() -> None:
        await injector(world, *events, seed=seed).run()

    in_virtual_time(main())


def at(world: MemoryWorld, name: str) -> list[float]:
    return [time for time, event, _ in world.events if event == name]


def test_an_impairment_comes_and_goes_at_its_times() -> None:
    world = MemoryWorld()
    play(world, "{at: 2s, for: 3s, impair: {link: w1--s0, direction: a-to-b, rate: 50Mbit}}")
    assert at(world, "fault.begun") == [2.0]
    assert at(world, "fault.healed") == [5.0]
    assert world.lines == {("w1--s0", "a-to-b"): world.declared}


def test_one_direction_is_one_direction_and_a_node_is_all_its_links() -> None:
    world = MemoryWorld()
    play(
        world,
        "{at: 1s, impair: {link: w1--s0, direction: b-to-a, loss: 1%}}",
        "{at: 1s, impair: {node: w2, delay: 1ms}}",
    )
    assert set(world.lines) == {("w1--s0", "b-to-a"), ("w2--s0", "a-to-b"), ("w2--s0", "b-to-a")}
    assert set(world.lines.values()) == {world.declared}, "all healed at the end"


def test_what_has_no_end_lasts_until_the_scenario_ends() -> None:
    world = MemoryWorld()

    async def main() -> None:
        task = asyncio.create_task(
            injector(world, "{at: 1s, partition: {between: [[w1], [w2, w3]]}}", "{at: 9s, join: w5}").run()
        )
        await asyncio.sleep(5)
        assert list(world.blocked.values()) == [[("w1", "w2"), ("w1", "w3"), ("w2", "w1"), ("w3", "w1")]]
        await task

    in_virtual_time(main())
    assert world.blocked == {}
    assert world.alive["w5"]


def test_one_way_blocks_one_way() -> None:
    world = MemoryWorld()

    async def main() -> None:
        task = asyncio.create_task(
            injector(world, "{at: 0s, for: 2s, partition: {between: [[w1], [w2]], one-way: true}}").run()
        )
        await asyncio.sleep(1)
        assert list(world.blocked.values()) == [[("w1", "w2")]]
        await task

    in_virtual_time(main())


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_overlapping_impairments_merge_and_end_in_any_order(begin: list[int], end: list[int]) -> None:
    changes = [{"delay": 5}, {"delay": 7, "loss": 0.5}, {"rate": 1000}, {"loss": 0.25, "rate": 2000}]
    world = MemoryWorld()

    async def main() -> None:
        shared = Impairments(world)
        faults = [Impair(shared, [("w1--s0", "a-to-b")], change) for change in changes]
        active: list[int] = []
        for number in begin:
            await faults[number].__aenter__()
            active.append(number)
        for number in end:
            await faults[number].__aexit__(None, None, None)
            active.remove(number)
            expected = world.declared
            for one in active:
                expected = expected.merge(changes[one])
            assert world.line("w1--s0", "a-to-b") == expected

    in_virtual_time(main())


def test_a_pause_ends_and_a_dead_target_ends_its_fault_while_the_rest_goes_on() -> None:
    world = MemoryWorld()
    play(
        world,
        "{at: 1s, pause: {node: w1, for: 4s}}",
        "{at: 2s, crash: {node: w1}}",
        "{at: 3s, pause: {node: w1, for: 1s}}",
        "{at: 4s, pause: {node: w2, for: 1s}}",
    )
    assert [event["id"] for event in world.named("fault.target-gone")] == [3, 1]
    assert {event["id"] for event in world.named("fault.healed")} == {2, 4}
    assert world.stopped == set()


def test_a_crash_for_a_while_brings_the_node_back() -> None:
    world = MemoryWorld()
    play(world, "{at: 1s, for: 2s, crash: {owner-of: stage-2}}")
    assert world.alive["w2"]
    assert at(world, "fault.healed") == [3.05]


def test_a_restart_waits_before_it_comes_back() -> None:
    world = MemoryWorld()
    play(world, "{at: 1s, restart: {node: w2, after: 300ms}}")
    assert world.alive["w2"]
    assert at(world, "fault.healed") == [1.35]


def test_a_step_fires_on_the_event_it_waits_for() -> None:
    world = MemoryWorld()

    async def main() -> None:
        task = asyncio.create_task(
            injector(
                world, "{on: {event: handover.prepared, endpoint: stage-2, count: 2}, after: 500ms, crash: {node: w2}}"
            ).run()
        )
        await asyncio.sleep(1)
        world.happen(event="handover.prepared", endpoint="stage-1")
        world.happen(event="handover.prepared", endpoint="stage-2")
        await asyncio.sleep(1)
        assert world.alive["w2"]
        world.happen(event="handover.prepared", endpoint="stage-2")
        await task

    in_virtual_time(main())
    assert at(world, "fault.begun") == [2.5]
    assert not world.alive["w2"]


def test_an_event_that_never_comes_does_not_hold_the_scenario_up() -> None:
    world = MemoryWorld()
    play(world, "{on: {event: never}, crash: {node: w2}}")
    assert world.events == []
    assert world.alive["w2"]


def test_a_spare_node_is_one_that_hosts_nothing_and_the_seed_says_which() -> None:
    targets = []
    for seed in (1, 1, 2, 3, 4, 5):
        world = MemoryWorld()
        world.alive["w5"] = True
        play(world, "{at: 1s, migrate: {endpoint: stage-1, to: spare}}", seed=seed)
        targets.append(world.owners["stage-1"])
    assert set(targets) == {"w4", "w5"}
    assert targets[0] == targets[1]


def test_what_is_not_done_is_told_apart() -> None:
    world = MemoryWorld()
    world.refuse = "no"
    play(world, "{at: 1s, migrate: {endpoint: stage-1, to: w1}}", "{at: 2s, migrate: {endpoint: stage-1, to: w4}}")
    assert "is on w1 already" in world.named("fault.skipped")[0]["text"]
    assert world.named("fault.failed")[0]["text"] == "w1 could not move stage-1 to w4: no"


def test_one_endpoint_moves_once_at_a_time() -> None:
    world = MemoryWorld()
    world.move_takes = 1
    play(world, *("{at: 1s, migrate: {endpoint: stage-1, to: any}}",) * 3)
    assert world.most_moving == 1
    play(world, "{at: 1s, migrate: {endpoint: stage-1, to: any}}", "{at: 1s, migrate: {endpoint: stage-2, to: any}}")
    assert world.most_moving == 2


@pytest.mark.parametrize("moment", [0.5, 1.5, 2.5, 5.0])
def test_cancelling_at_any_moment_heals_everything(moment: float) -> None:
    world = MemoryWorld()

    async def main() -> None:
        task = asyncio.create_task(
            injector(
                world,
                "{at: 1s, for: 8s, impair: {node: w1, delay: 1ms}}",
                "{at: 1s, impair: {link: w2--s0, loss: 1%}}",
                "{at: 2s, for: 7s, pause: {node: w3}}",
                "{at: 2s, for: 7s, partition: {between: [[w1], [w2]]}}",
                "{on: {event: never}, crash: {node: w4}}",
            ).run()
        )
        await asyncio.sleep(moment)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    in_virtual_time(main())
    assert set(world.lines.values()) <= {world.declared}
    assert (world.blocked, world.stopped) == ({}, set())
    begun = {event["id"] for event in world.named("fault.begun")}
    assert {event["id"] for event in world.named("fault.healed")} == begun


def test_a_defect_of_a_fault_is_raised_after_everything_is_healed() -> None:
    world = MemoryWorld()

    async def broken(*_: object) -> None:
        raise RuntimeError("broken")

    world.start = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="broken"):
        play(world, "{at: 1s, impair: {link: w2--s0, loss: 1%}}", "{at: 2s, join: w5}")
    assert set(world.lines.values()) == {world.declared}
