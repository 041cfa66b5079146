"""Signals that end a command, while there is something to undo first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruption(say: Callable[[str], None]) -> Iterator[asyncio.Future[int]]:
    """A future that is set to the first ending signal's number.

    Later ones are answered with a remark and nothing else: undoing is never cut short. A signal that was
    ignored from the start (``nohup``) stays ignored.
    """
    loop = asyncio.get_running_loop()
    first: asyncio.Future[int] = loop.create_future()
    before = {number: signal.getsignal(number) for number in ENDING}

    def arrived(number: int) -> None:
        if first.done():
            say("already cleaning up, this takes a few seconds")
        else:
            say(f"{signal.Signals(number).name}: cleaning up")
            first.set_result(number)

    mine = [number for number in ENDING if before[number] is not signal.SIG_IGN]
    for number in mine:
        loop.add_signal_handler(number, arrived, number)
    try:
        yield first
    finally:
        for number in mine:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
