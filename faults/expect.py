"""What a run is held to: the ``expect`` part of a scenario."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, StrictInt, model_validator
from pydantic_core import CoreSchema

from faults.declaration import Flag, Strict
from faults.units import Duration, Probability

Cause = Literal[
    "endpoint-unknown",
    "owner-died",
    "owner-restarted",
    "endpoint-ended",
    "cancelled",
    "limit-exceeded",
    "protocol-error",
    "handover-in-doubt",
    "fenced",
    "unknown-stream",
    "node-left",
    "unreachable",
]
"""Why a stream may be reset (docs/wire.md)."""
CAUSES: tuple[str, ...] = get_args(Cause)


class Delivery(Strict):
    """Order and exactly once. They are judged together, so they are expected together."""

    ordered: Flag = True
    exactly_once: Flag = True

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.ordered != self.exactly_once:
            raise ValueError("ordered and exactly-once are judged together: expected both true or both false")
        return self


class Cutover(Strict):
    """Most that the cutover of planned handovers may take. Without it: one second each."""

    p50: Duration | None = None
    p99: Duration | None = None
    max_: Duration | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.p50 is None and self.p99 is None and self.max_ is None:
            raise ValueError("nothing is expected: say p50, p99 or max")
        return self


class Goodput(Strict):
    """Least share of the issued requests that is answered."""

    min_: Probability


class Resets(Strict):
    """How many streams are reset, and why."""

    min_: Annotated[StrictInt, Field(ge=0)] | None = None
    max_: Annotated[StrictInt, Field(ge=0)] | None = None
    causes: tuple[Cause, ...] | None = None
    """Left out: any."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.min_ is not None and self.max_ is not None and self.min_ > self.max_:
            raise ValueError("min is more than max")
        return self


class _ShortResets:
    """``none``, ``allowed`` or a list of causes, in place of the keys."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        causes = {"type": "array", "items": {"type": "string", "enum": list(CAUSES)}}
        return {"anyOf": [{"type": "string", "enum": ["none", "allowed"]}, causes, handler(core)]}


def _resets(value: object) -> object:
    if isinstance(value, str):
        if value not in ("none", "allowed"):
            raise ValueError(f"{value!r}: expected none, allowed, a list of causes, or the keys min, max and causes")
        return {"max": 0} if value == "none" else {}
    return {"causes": value} if isinstance(value, list) else value


class Expect(Strict):
    """What the checkers hold the run to."""

    delivery: Delivery = Delivery()
    cutover: Cutover | None = None
    goodput: Goodput | None = None
    resets: Annotated[Resets, BeforeValidator(_resets), _ShortResets()] = Resets(max=0)
    """``none`` (the default), ``allowed``, a list of causes, or how many and why."""
    faults: Literal["fired", "may-fail"] = "fired"
    """``fired``: every fault took place, and every planned change (migrate, leave, join) succeeded. ``may-fail``:
    planned changes may be refused or fail.
    """
    verdict: Literal["pass", "fail", "unknown"] = "pass"
    """What the project's own tests expect of the whole run."""
