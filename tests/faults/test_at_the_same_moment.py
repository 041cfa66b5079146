"""Faults of one thing that begin or end while another one's effect is still awaited do not see each other's halves."""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import Mapping

import pytest

from faults.network import Impair, Impairments
from faults.process import Pause, Processes
from tests.faults.world import MemoryWorld, in_virtual_time

LINE = ("w1--s0", "a-to-b")


class ReadingBack(MemoryWorld):
    """Looks, when an effect should be there, whether it is: as a world of real links and processes does."""

    async def impair(self, link: str, direction: str, changes: Mapping[str, int | float | bool]) -> None:
        await super().impair(link, direction, changes)
        there = self.line(link, direction)
        assert {name: getattr(there, name) for name in changes} == dict(changes), f"asked for {changes}, got {there}"

    async def signal(self, node: str, signal: int) -> None:
        await super().signal(node, signal)
        if signal in (signals.SIGSTOP, signals.SIGCONT):
            assert (node in self.stopped) is (signal == signals.SIGSTOP), f"{node}: {signal} has no effect"


def test_two_faults_change_one_line_at_once_and_the_last_one_wins() -> None:
    world = ReadingBack()
    world.effect_takes = 0.1

    async def main() -> None:
        shared = Impairments(world)
        first, second = (Impair((LINE,), {"delay": delay}).on(shared) for delay in (5, 7))
        await asyncio.gather(first.__aenter__(), second.__aenter__())
        assert world.line(*LINE).delay == 7
        await asyncio.gather(second.__aexit__(None, None, None), first.__aexit__(None, None, None))

    in_virtual_time(main())
    assert world.healed


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.15, 0.25])
def test_a_change_that_comes_while_another_ends_is_not_overwritten_by_an_older_one(moment: float) -> None:
    world = ReadingBack()
    world.effect_takes = 0.1

    async def main() -> None:
        shared = Impairments(world)
        oldest, ending, coming = (Impair((LINE,), {"delay": d, "loss": d / 10}).on(shared) for d in (1, 2, 3))
        await oldest.__aenter__()
        await ending.__aenter__()

        async def come() -> None:
            await asyncio.sleep(moment)
            await coming.__aenter__()

        await asyncio.gather(ending.__aexit__(None, None, None), come())
        assert (world.line(*LINE).delay, world.line(*LINE).loss) == (3, 0.3)
        await coming.__aexit__(None, None, None)
        assert world.line(*LINE).delay == 1
        await oldest.__aexit__(None, None, None)

    in_virtual_time(main())
    assert world.healed


@pytest.mark.parametrize("moment", [-0.05, 0.0, 0.05])
def test_one_pause_begins_where_another_ends(moment: float) -> None:
    world = ReadingBack()
    world.effect_takes = 0.1

    async def main() -> None:
        processes = Processes(world)

        async def pause(after: float, last: float) -> None:
            await asyncio.sleep(after)
            async with Pause("w1").on(processes):
                await asyncio.sleep(last)
                assert "w1" in world.stopped

        await asyncio.gather(pause(0, 1), pause(1.1 + moment, 1))

    in_virtual_time(main())
    assert world.healed
