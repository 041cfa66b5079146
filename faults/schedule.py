"""What will happen, drawn completely from the seed before anything starts: same seed, same schedule (T47)."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from faults.fitting import Surroundings
from faults.scenario import Scenario
from faults.steps import Step
from faults.verbs import ANY, SPARE, Crash, Impair, Migrate, NodeTarget, Partition, Restart


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
    """None: until the end of the scenario, or over at once."""
    parameters: Mapping[str, Any]
    draw: int
    """Seed of what can only be drawn when it happens (a spare node)."""

    @property
    def keeps(self) -> bool:
        """Whether it stays in force until the end of the scenario."""
        return self.lasts is None and self.kind in ("impair", "partition")

    def to_json(self) -> dict[str, Any]:
        when: dict[str, Any] = (
            {"at": self.at} if self.on is None else {"on": dict(self.on), "count": self.count, "after": self.after}
        )
        drawn = {"draw": self.draw} if self.parameters.get("to") in (SPARE, ANY) else {}
        return {"id": self.id, "kind": self.kind, **when, "for": self.lasts, **self.parameters, **drawn}


def draw_schedule(scenario: Scenario, seed: int, around: Surroundings) -> list[Entry]:
    """All faults of the scenario, in the order of their steps and times."""
    entries: list[Entry] = []
    for number, step in enumerate(scenario.events):
        draw = random.Random(f"{seed}/{number}")  # its own for each step: what one draws does not change the others
        for at in _times(step, draw):
            for parameters in _parameters(step, draw, scenario, around):
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
    jitter = step.jitter or 0
    if step.every is None or step.between is None:
        yield None if step.at is None else step.at + draw.randint(0, jitter)
        return
    first, last = step.between
    for at in range(first, last, step.every):
        yield at + draw.randint(0, min(jitter, last - at))


def _parameters(step: Step, draw: random.Random, scenario: Scenario, around: Surroundings) -> Iterator[dict[str, Any]]:
    plain = _plain(step, around)
    if step.pick is None:
        yield plain
        return
    key = "node" if step.pick.endpoints is None else "endpoint" if step.verb == "migrate" else "owner_of"
    for name in _picked(step, around.pool(step.pick, scenario.events), draw):
        yield {**plain, key: name}


def _picked(step: Step, pool: Collection[str], draw: random.Random) -> list[str]:
    assert step.pick is not None
    most = step.pick.most(len(pool))
    number = draw.randint(1, most) if step.pick.mode == "random-max-percent" else most
    return sorted(draw.sample(list(pool), number))


def _plain(step: Step, around: Surroundings) -> dict[str, Any]:
    """A step's content without what is not said, groups replaced by their nodes."""
    body = step.body
    if isinstance(body, str):
        return {"node": body}
    if isinstance(body, Impair):
        target = {"link": body.link} if body.link else {"node": body.node}
        return {**target, "direction": body.direction or "both", "changes": body.changes()}
    if isinstance(body, Partition):
        return {"between": [sorted(around.members(side)) for side in body.sides], "one_way": body.is_one_way}
    if isinstance(body, Migrate):
        return {"to": body.to, **({"endpoint": body.endpoint} if body.endpoint else {})}
    return {**_target(body), **_own(body)}


def _target(body: NodeTarget) -> dict[str, Any]:
    return {name: getattr(body, name) for name in ("node", "owner_of") if getattr(body, name) is not None}


def _own(body: NodeTarget) -> dict[str, Any]:
    if isinstance(body, Crash):
        return {"signal": body.signal}
    return {"down_for": body.after} if isinstance(body, Restart) else {}  # a step has an ``after`` of its own
