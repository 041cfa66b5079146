"""What will happen, drawn completely from the seed before anything starts: the same seed gives the same schedule."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from faults.scenario import Impair, Migrate, NodeTarget, Partition, Scenario, Step


@dataclass(frozen=True, slots=True)
class Entry:
    """One fault to come. Times in ns since the start of the traffic."""

    id: int
    kind: str
    at: int | None
    """None: when ``on`` has been observed."""
    on: Mapping[str, Any] | None
    count: int
    after: int
    lasts: int | None
    parameters: Mapping[str, Any]
    draw: int
    """Seed of what can only be drawn when it happens (a spare node)."""

    def to_json(self) -> dict[str, Any]:
        when: dict[str, Any] = (
            {"at": self.at} if self.on is None else {"on": dict(self.on), "count": self.count, "after": self.after}
        )
        return {"id": self.id, "kind": self.kind, **when, "for": self.lasts, **self.parameters}


def draw_schedule(scenario: Scenario, seed: int, groups: Mapping[str, Collection[str]]) -> list[Entry]:
    """All faults of the scenario, in the order of their steps and times. ``groups``: name -> nodes."""
    entries: list[Entry] = []
    for number, step in enumerate(scenario.events):
        draw = random.Random(f"{seed}/{number}")
        for at in _times(step, draw):
            for parameters in _parameters(step, draw, groups):
                entries.append(
                    Entry(
                        id=len(entries) + 1,
                        kind=step.verb,
                        at=at,
                        on=step.on.match if step.on else None,
                        count=step.on.count if step.on else 1,
                        after=step.after or 0,
                        lasts=step.lasts,
                        parameters=parameters,
                        draw=draw.getrandbits(32),
                    )
                )
    return entries


def _times(step: Step, draw: random.Random) -> Iterator[int | None]:
    if step.every is None or step.between is None:
        yield step.at
        return
    first, last = step.between
    for at in range(first, last, step.every):
        yield min(at + draw.randrange(step.jitter + 1) if step.jitter else at, last)


def _parameters(step: Step, draw: random.Random, groups: Mapping[str, Collection[str]]) -> Iterator[dict[str, Any]]:
    body = step.body
    plain = _plain(body)
    if step.pick is None:
        yield plain
        return
    key = "endpoint" if step.pick.endpoints else "node"
    pool = sorted(step.pick.endpoints or groups[step.pick.group or ""])
    chosen = pool if step.pick.mode == "all" else [draw.choice(pool)]
    for name in chosen:
        yield {**plain, key: name}


def _plain(body: Migrate | NodeTarget | Impair | Partition | str) -> dict[str, Any]:
    """A step's content without what is not said."""
    if isinstance(body, str):
        return {"node": body}
    if isinstance(body, Impair):
        target = {"link": body.link} if body.link else {"node": body.node}
        return {**target, "direction": body.direction, "changes": body.changes()}
    return {name: value for name, value in body.model_dump(mode="json").items() if value is not None and name != "for_"}
