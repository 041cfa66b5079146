"""Impairments that overlap are merged, and each gives back what the others do not ask for (T25)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.fault import NotDone
from faults.network import Impair, Impairments
from tests.faults.world import MemoryWorld, in_virtual_time

LINE = ("w1--s0", "a-to-b")
changes = st.dictionaries(
    st.sampled_from(["delay", "jitter", "rate", "queue"]), st.integers(0, 10**6), min_size=1
) | st.dictionaries(st.sampled_from(["loss", "reorder", "corrupt"]), st.floats(0, 1), min_size=1)


@settings(max_examples=60, deadline=None)
@given(st.lists(changes, min_size=1, max_size=6), st.data())
def test_a_line_is_what_is_declared_with_all_faults_in_force_in_the_order_in_which_they_came(
    faults: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Begun and ended in any order, at every moment in between."""
    world = MemoryWorld()

    async def main() -> None:
        shared = Impairments(world)
        guards: dict[int, AsyncExitStack] = {}
        coming = list(range(len(faults)))
        while coming or guards:
            number = data.draw(st.sampled_from(sorted([*coming[:1], *guards])))
            if number in guards:
                await guards.pop(number).aclose()
            else:
                coming.remove(number)
                guards[number] = AsyncExitStack()
                await guards[number].enter_async_context(Impair((LINE,), faults[number]).on(shared))
            expected = world.declared
            for one in guards:
                expected = expected.merge(faults[one])
            assert world.line(*LINE) == expected
        assert world.line(*LINE) == world.declared

    in_virtual_time(main())


def test_what_no_line_can_do_is_refused_and_leaves_nothing() -> None:
    world = MemoryWorld()

    async def main() -> None:
        shared = Impairments(world)
        async with Impair((LINE,), {"loss": 0.25}).on(shared):
            with pytest.raises(NotDone, match="w1--s0 a-to-b: duplicate"):
                async with Impair((("w2--s0", "a-to-b"), LINE), {"duplicate": 0.9}).on(shared):
                    pytest.fail("it is in force")
            assert world.line("w2--s0", "a-to-b") == world.declared, "the first line has been given back"
            assert world.line(*LINE).loss == 0.25
        assert world.healed

    in_virtual_time(main())


def test_of_several_lines_none_stays_impaired_when_it_is_cut_short_between_them() -> None:
    world = MemoryWorld()
    world.effect_takes = 1

    async def main() -> None:
        async def hold() -> None:
            async with Impair((LINE, ("w2--s0", "a-to-b")), {"delay": 5}).on(Impairments(world)):
                await asyncio.sleep(100)

        task = asyncio.create_task(hold())
        await asyncio.sleep(1.5)
        assert len(world.lines) == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.healed

    in_virtual_time(main())
