"""Timers finer than an event loop's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvloop

from pipeline.clock import Clock


@pytest.fixture
async def clock() -> AsyncIterator[Clock]:
    clock = Clock()
    yield clock
    clock.close()


async def wait(clock: Clock, delay: int) -> int:
    """How late a timer is, in ns."""
    due = clock.now() + delay
    rung: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    clock.call_at(due, lambda: rung.set_result(None))
    async with asyncio.timeout(5):
        await rung
    return clock.now() - due


async def test_calls_come_in_order_of_their_times_and_cancelled_ones_never(clock: Clock) -> None:
    called: list[int] = []
    now = clock.now()
    timers = [clock.call_at(now + n * 1_000_000, lambda n=n: called.append(n)) for n in (5, 1, 4, 2, 3)]  # type: ignore[misc]
    timers[2].cancel()
    assert await wait(clock, 6_000_000) >= 0
    assert called == [1, 2, 3, 5]


async def test_what_is_due_already_is_called_soon_and_not_at_once(clock: Clock) -> None:
    called: list[str] = []
    clock.call_at(clock.now() - 5, lambda: called.append("past"))
    assert called == []
    await wait(clock, 0)
    assert called == ["past"]


async def test_a_callback_may_set_timers_and_one_that_raises_stops_no_other(clock: Clock) -> None:
    called: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    def again() -> None:
        clock.call_in(0, lambda: called.append("set within"))

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: called.append(type(context["exception"]).__name__))
    clock.call_in(100_000, fail)
    clock.call_in(200_000, again)
    async with asyncio.timeout(5):
        while len(called) < 2:
            await asyncio.sleep(0)
    assert called == ["ZeroDivisionError", "set within"]


def test_a_timer_is_never_early_and_mostly_a_fraction_of_a_millisecond_late() -> None:
    async def measure() -> list[int]:
        clock = Clock()
        late = [await wait(clock, 300_000) for _ in range(100)]
        clock.close()
        return sorted(late)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        late = runner.run(measure())
    assert late[0] >= 0
    assert late[30] < 400_000
