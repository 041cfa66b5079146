"""What a step of a scenario can do, one model for each verb."""

from __future__ import annotations

import signal as signals
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic_core import CoreSchema

from faults.declaration import Flag, ImpairmentSpec, Strict
from faults.units import Duration

SPARE, ANY = "spare", "any"
"""Targets drawn when a step fires: a running node that hosts nothing, or any other running node."""

DEADLY = ("KILL", "TERM", "INT", "QUIT", "ABRT", "SEGV")
"""Signals that end a process. What only stops it is ``pause``."""


def _signal(value: object) -> int:
    name = value.removeprefix("SIG") if isinstance(value, str) else None
    if name not in DEADLY:
        raise ValueError(f"{value!r} is not a signal that ends a process: expected one of {', '.join(DEADLY)}")
    return int(signals.Signals[f"SIG{name}"])


Signal = Annotated[int, BeforeValidator(_signal), WithJsonSchema({"type": "string", "enum": list(DEADLY)})]
Direction = Literal["a-to-b", "b-to-a", "both"]


class Migrate(Strict):
    """A planned handover of an endpoint."""

    endpoint: str | None = None
    to: str
    """A node, ``spare`` (a running node that hosts nothing) or ``any`` (another running node)."""


class NodeTarget(Strict):
    """A node, by name or by what it hosts when the step fires."""

    node: str | None = None
    owner_of: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.node is not None and self.owner_of is not None:
            raise ValueError("say node or owner-of, not both")
        return self


class _NodeName:
    """A node's name alone, in place of the keys."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(core)]}


def _by_name(value: object) -> object:
    return {"node": value} if isinstance(value, str) else value


class Leave(NodeTarget):
    """A node hands over what it hosts, says goodbye, and ends."""


class Crash(NodeTarget):
    """End a node's process. With ``for`` it is started again afterwards."""

    signal: Signal = int(signals.SIGKILL)


class Restart(NodeTarget):
    """Kill a node's process and start it again on the same address."""

    after: Duration = 0


class Pause(NodeTarget):
    """Stop a node's process as a busy or suspended machine would, for ``for``."""

    for_: Duration | None = None


class Impair(ImpairmentSpec):
    """Change what a link does, or all links of a node. Directions are named by the link's ends."""

    link: str | None = None
    node: str | None = None
    direction: Direction | None = None
    """Both, if it is left out."""

    @model_validator(mode="after")
    def _target(self) -> Self:
        if (self.link is None) == (self.node is None):
            raise ValueError("say which link, or which node")
        if self.node is not None and self.direction is not None:
            raise ValueError("a direction goes with a link: for a node it would not say which")
        if not self.changes():
            raise ValueError("nothing is changed: say delay, jitter, loss, rate, …")
        return self

    @property
    def directions(self) -> tuple[str, ...]:
        return ("a-to-b", "b-to-a") if self.direction in (None, "both") else (str(self.direction),)


_Names = Annotated[tuple[str, ...], Field(min_length=1)]


class Partition(Strict):
    """Nodes that cannot reach each other, by name or by group: ``between`` two lists, or only ``from`` one ``to`` the
    other.
    """

    between: tuple[_Names, _Names] | None = None
    one_way: Flag | None = None
    """With ``between``: nothing passes from the first list to the second, and everything the other way."""
    from_: _Names | None = None
    to: _Names | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.from_ is None) != (self.to is None) or (self.between is None) == (self.from_ is None):
            raise ValueError("expected between: [[…], […]], or from: […] and to: […]")
        if self.from_ is not None and self.one_way is not None:
            raise ValueError("one-way goes with between: from and to are one way")
        return self

    @property
    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.between is not None:
            return self.between
        assert self.from_ is not None
        assert self.to is not None
        return self.from_, self.to

    @property
    def is_one_way(self) -> bool:
        return self.from_ is not None or self.one_way is True


OneCrash = Annotated[Crash, BeforeValidator(_by_name), _NodeName()]
OneLeave = Annotated[Leave, BeforeValidator(_by_name), _NodeName()]
OneRestart = Annotated[Restart, BeforeValidator(_by_name), _NodeName()]
