"""What all faults have in common.

A fault is a frozen set of parameters; ``on(...)`` gives the context manager that makes it happen in a world and
undoes it afterwards. What it yields tells what could not be known before (the node drawn, the handover's id).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

Told = Mapping[str, Any]
Guard = AbstractAsyncContextManager[Told]
"""A fault in force: entering begins it, leaving undoes it."""


class NotDone(Exception):
    """What was asked for was refused, or failed."""


class Skipped(Exception):
    """There was nothing to do."""


async def undisturbed(work: Coroutine[Any, Any, object]) -> None:
    """Carry out work that must not be left half done, even if this task is cancelled meanwhile, however often.

    The cancellation comes after the work.
    """
    task = asyncio.create_task(work, name="healing")
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except Exception:  # noqa: BLE001 - raised below
            break
    if cancelled:
        raise asyncio.CancelledError from task.exception()
    task.result()
