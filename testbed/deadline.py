"""Every wait has a deadline, and whoever waits in vain says what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from testbed.errors import DeadlineExceeded

SECOND = 1_000_000_000


@asynccontextmanager
async def deadline(timeout: int, missing: str | Callable[[], str]) -> AsyncIterator[None]:
    """Allow ``timeout`` ns for the body.

    Raises DeadlineExceeded with ``missing`` (a text, or a function called when the time is up, so that it can
    name what is missing at that moment).
    """
    try:
        async with asyncio.timeout(timeout / SECOND) as scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        what = missing if isinstance(missing, str) else missing()
        raise DeadlineExceeded(f"after {timeout / SECOND:g} s: {what}") from None
