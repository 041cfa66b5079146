"""A step of a scenario: when something happens, to whom, and what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, WithJsonSchema, model_validator

from faults.declaration import Strict, mistakes
from faults.units import Duration, parse_probability
from faults.verbs import Impair, Migrate, NodeTarget, OneCrash, OneLeave, OneRestart, Partition, Pause

VERBS = ("migrate", "join", "leave", "crash", "pause", "restart", "impair", "partition")
NODE_VERBS = ("leave", "crash", "pause", "restart")
LASTING_VERBS = ("crash", "pause", "impair", "partition")
"""Those that ``for`` goes with."""
MOST_TIMES = 10_000
"""Times at which one step may fire."""

_Mistake = tuple[tuple[str | int, ...], str]


class Pick(Strict):
    """Whom a step acts on, drawn from the seed: some of a group of nodes, or some of these endpoints (of a fault of a
    node: their owners).
    """

    group: str | None = None
    endpoints: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    mode: Literal["one", "all", "fixed", "fixed-percent", "random-max-percent"] = "one"
    value: Annotated[
        int | str | None,
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9.]+ ?%$"}]}),
    ] = None
    """With fixed: how many. With fixed-percent: this share of them, rounded down. With random-max-percent: a number
    drawn, at most that share. Always one at least.
    """

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.group is None) == (self.endpoints is None):
            raise ValueError("pick: say group (of nodes) or endpoints")
        if self.mode in ("one", "all") and self.value is not None:
            mistakes([(("value",), f"value goes with fixed, fixed-percent and random-max-percent, not {self.mode}")])
        if self.mode == "fixed" and (not isinstance(self.value, int) or self.value is True or self.value < 1):
            mistakes([(("value",), "fixed needs value: how many, 1 or more")])
        if self.mode in ("fixed-percent", "random-max-percent"):
            if self.value is None:
                raise ValueError(f"{self.mode} needs value: a share such as 50%")
            try:
                parse_probability(self.value)
            except ValueError as error:
                mistakes([(("value",), str(error))])
            if parse_probability(self.value) == 0:
                mistakes([(("value",), "0% would pick nobody")])
        return self

    def most(self, pool: int) -> int:
        """How many of ``pool`` are picked at most; exactly so many unless the mode is random-max-percent."""
        if self.mode == "one":
            return 1
        if self.mode == "all":
            return pool
        if isinstance(self.value, int):
            return self.value
        return max(1, int(pool * parse_probability(self.value)))


class On(Strict):
    """An observed event (docs/history.md): its name, and fields that must have these values."""

    model_config = Strict.model_config | {"extra": "allow"}

    event: str
    count: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 1
    """The how manieth such event, counted from the start of the traffic."""

    @property
    def match(self) -> dict[str, Any]:
        """The event's name and fields as journals have them."""
        return {
            "event": self.event,
            **{name.replace("-", "_"): value for name, value in (self.model_extra or {}).items()},
        }


class Step(Strict):
    """Exactly one of ``at``, ``every`` and ``on``; exactly one verb."""

    at: Duration | None = None
    every: Duration | None = None
    between: tuple[Duration, Duration] | None = None
    jitter: Duration | None = None
    """With at and every: later by up to this, drawn from the seed."""
    on: On | None = None
    after: Duration | None = None
    """With on: this long after the event."""
    for_: Duration | None = None
    pick: Pick | None = None

    migrate: Migrate | None = None
    join: str | None = None
    leave: OneLeave | None = None
    crash: OneCrash | None = None
    pause: Pause | None = None
    restart: OneRestart | None = None
    impair: Impair | None = None
    partition: Partition | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        verbs = [verb for verb in VERBS if getattr(self, verb) is not None]
        if len(verbs) != 1:
            raise ValueError(
                f"expected exactly one of {', '.join(VERBS)}" + (f", not {' and '.join(verbs)}" if verbs else "")
            )
        mistakes([*self._when(), *self._how_long(), *self._whom()])
        return self

    def _when(self) -> Iterator[_Mistake]:
        if sum(when is not None for when in (self.at, self.every, self.on)) != 1:
            yield (), "expected exactly one of at, every, on"
        if self.every is not None:
            if self.every == 0:
                yield ("every",), "a period of 0 has no end"
            elif self.between is None or self.between[0] >= self.between[1]:
                yield ("every",), "every needs between: [from, until], from before until"
            elif (self.between[1] - self.between[0]) / self.every > MOST_TIMES:
                yield ("every",), f"this would happen more than {MOST_TIMES} times"
        elif self.between is not None:
            yield ("between",), "between goes with every"
        if self.jitter is not None and self.on is not None:
            yield ("jitter",), "jitter goes with at and every"
        if self.after is not None and self.on is None:
            yield ("after",), "after goes with on"

    def _how_long(self) -> Iterator[_Mistake]:
        if self.for_ is not None and self.verb not in LASTING_VERBS:
            yield ("for",), f"for goes with faults that last ({', '.join(LASTING_VERBS)}), not with {self.verb}"
        inner = self.pause.for_ if self.pause is not None else None
        if self.for_ is not None and inner is not None:
            yield ("for",), "how long is said twice: here and in pause"
        if self.pause is not None and self.lasts is None:
            yield ("pause",), "pause needs for: how long"
        if self.lasts == 0:
            yield ("for",) if self.for_ is not None else ("pause", "for"), "for: 0 would have no effect"

    def _whom(self) -> Iterator[_Mistake]:
        body = self.body
        if self.pick is not None:
            if self.verb not in (*NODE_VERBS, "migrate"):
                yield ("pick",), f"pick goes with migrate, {', '.join(NODE_VERBS)}, not with {self.verb}"
            elif self.pick.group is not None and self.verb == "migrate":
                yield ("pick", "group"), "migrate moves endpoints: pick endpoints"
            if isinstance(body, Migrate) and body.endpoint is not None:
                yield ("migrate", "endpoint"), "the endpoint is picked: leave it out"
            if isinstance(body, NodeTarget) and (body.node or body.owner_of):
                yield (self.verb,), "the node is picked: leave it out"
        elif isinstance(body, Migrate) and body.endpoint is None:
            yield ("migrate",), "migrate needs an endpoint"
        elif isinstance(body, NodeTarget) and body.node is None and body.owner_of is None:
            yield (self.verb,), f"{self.verb} needs node or owner-of"

    @property
    def verb(self) -> str:
        return next(verb for verb in VERBS if getattr(self, verb) is not None)

    @property
    def body(self) -> Migrate | NodeTarget | Impair | Partition | str:
        """What stands under the verb; of a ``join`` the node's name."""
        body: Migrate | NodeTarget | Impair | Partition | str = getattr(self, self.verb)
        return body

    @property
    def lasts(self) -> int | None:
        """How long, in ns; None until the end of the scenario, or if it is over at once."""
        return self.for_ if self.pause is None or self.pause.for_ is None else self.pause.for_

    @property
    def window(self) -> tuple[int, int] | None:
        """The first and the last time, in ns, at which it can fire; None if that depends on an event."""
        if self.at is not None:
            return self.at, self.at + (self.jitter or 0)
        return self.between
