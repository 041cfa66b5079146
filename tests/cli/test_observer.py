"""Owners and awaited events, from journal records."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from testbed.observer import Observer


def hosted(node: str, epoch: int, cause: str = "handover") -> dict[str, Any]:
    return {"event": "endpoint.hosted", "node": node, "endpoint": "stage-1", "epoch": epoch, "cause": cause}


def released(node: str, epoch: int, cause: str = "handover") -> dict[str, Any]:
    return {"event": "endpoint.released", "node": node, "endpoint": "stage-1", "epoch": epoch, "cause": cause}


def test_the_newest_epoch_owns_whatever_order_the_news_come_in() -> None:
    observer = Observer()
    for event in (
        hosted("w1", 1, "host"),
        hosted("w2", 2),
        released("w1", 1),
        hosted("w3", 3),
        hosted("w2", 2),
    ):
        observer.take(event)
    assert observer.owners == {"stage-1": "w3"}


def test_an_endpoint_that_has_ended_has_no_owner_but_one_on_its_way_has() -> None:
    observer = Observer()
    observer.take(hosted("w1", 1, "host"))
    observer.take(released("w1", 1))
    assert observer.owners == {"stage-1": "w1"}
    observer.take(released("w1", 1, "ended"))
    assert observer.owners == {}


async def test_only_an_event_with_all_given_values_is_what_was_waited_for() -> None:
    observer = Observer()
    waiting = asyncio.create_task(observer.wait({"event": "handover.prepared", "endpoint": "stage-2"}))
    await asyncio.sleep(0)
    observer.take({"event": "handover.prepared", "endpoint": "stage-1", "node": "w1"})
    observer.take({"event": "handover.begun", "endpoint": "stage-2", "node": "w1"})
    await asyncio.sleep(0)
    assert not waiting.done()
    observer.take({"event": "handover.prepared", "endpoint": "stage-2", "node": "w2", "side": "source"})
    assert (await waiting)["node"] == "w2"


async def test_events_that_come_before_anybody_looks_again_are_counted() -> None:
    observer = Observer()
    waiting = asyncio.create_task(observer.wait({"event": "handover.begun"}, 3))
    await asyncio.sleep(0)
    for handover in ("a", "b", "c", "d"):
        observer.take({"event": "handover.begun", "handover": handover, "node": "w1"})
    assert (await waiting)["handover"] == "c"


async def test_messages_are_passed_over_unless_waited_for() -> None:
    observer = Observer()
    record = {"t": 1, "event": "message.delivered", "node": "w1", "stream": "00" * 8, "message": 7}
    line = json.dumps({"journal": record}).encode()
    observer.take_line("w1", line)
    assert not observer.counts
    waiting = asyncio.create_task(observer.wait({"event": "message.delivered", "message": 7}))
    await asyncio.sleep(0)
    observer.take_line("w1", line)
    assert (await waiting)["t"] == 1
    observer.take_line("w1", line)
    assert observer.counts == {"message.delivered": 1}
