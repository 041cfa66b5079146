"""Scenario files: a timed list of faults, with the workload they disturb and what is expected of it."""

from __future__ import annotations

import signal as signals
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from faults.declaration import ImpairmentSpec, Strict
from faults.document import Document, DocumentError, DocumentErrors, read
from faults.units import Duration, Frequency, Probability, Setting, Size

BUILTIN = Path(__file__).parent / "scenarios"
SPARE, ANY = "spare", "any"
"""Targets drawn when a step fires: a running node that hosts nothing, or any other running node."""


def _signal(value: object) -> int:
    if isinstance(value, str) and f"SIG{value.removeprefix('SIG')}" in signals.Signals.__members__:
        return int(signals.Signals[f"SIG{value.removeprefix('SIG')}"])
    raise ValueError(f"{value!r} is not a signal: expected a name such as KILL or TERM")


Signal = Annotated[int, BeforeValidator(_signal)]
Direction = Literal["a-to-b", "b-to-a", "both"]


class Migrate(Strict):
    """A planned handover of an endpoint."""

    endpoint: str | None = None
    to: str


class NodeTarget(Strict):
    """A node, by name or by what it hosts."""

    node: str | None = None
    owner_of: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.node is not None and self.owner_of is not None:
            raise ValueError("say node or owner-of, not both")
        return self


class Crash(NodeTarget):
    """End a node's process. With ``for`` it is started again afterwards."""

    signal: Signal = int(signals.SIGKILL)


class Pause(NodeTarget):
    """Stop a node's process as a busy or suspended machine would, for ``for``."""

    for_: Duration | None = None


class Restart(NodeTarget):
    """Kill a node's process and start it again on the same address."""

    after: Duration = 0


class Impair(ImpairmentSpec):
    """Change what a link does, or all links of a node. Directions are named by the link's ends."""

    link: str | None = None
    node: str | None = None
    direction: Direction = "both"

    @model_validator(mode="after")
    def _target(self) -> Self:
        if (self.link is None) == (self.node is None):
            raise ValueError("say which link, or which node")
        if self.node is not None and self.direction != "both":
            raise ValueError("a direction goes with a link: for a node it would not say which")
        if not self.changes():
            raise ValueError("nothing is changed: say delay, jitter, loss, rate, …")
        return self

    def changes(self) -> dict[str, int | float | bool]:
        changes = super().changes()
        return {name: value for name, value in changes.items() if name not in ("link", "node", "direction")}


class Partition(Strict):
    """Two groups of nodes cannot reach each other; one way: nothing passes from the first to the second."""

    between: tuple[tuple[str, ...], tuple[str, ...]]
    one_way: bool = False

    @model_validator(mode="after")
    def _apart(self) -> Self:
        both = set(self.between[0]) & set(self.between[1])
        if both or not all(self.between):
            raise ValueError("between: expected two lists of nodes that have none in common")
        return self


class Pick(Strict):
    """Whom a step acts on, drawn from the seed."""

    group: str | None = None
    endpoints: tuple[str, ...] = ()
    mode: Literal["one", "all"] = "one"

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.group is None) == (not self.endpoints):
            raise ValueError("pick: say group (of nodes) or endpoints")
        return self


class On(Strict):
    """An observed event (docs/history.md): its name and fields that must have these values."""

    model_config = Strict.model_config | {"extra": "allow"}

    event: str
    count: int = Field(default=1, ge=1)
    """The how manieth such event."""

    @property
    def match(self) -> dict[str, Any]:
        return {
            "event": self.event,
            **{name.replace("-", "_"): value for name, value in (self.model_extra or {}).items()},
        }


VERBS = ("migrate", "join", "leave", "crash", "pause", "restart", "impair", "partition")
_ON_NODES = frozenset({"leave", "crash", "pause", "restart", "join"})


class Step(Strict):
    """When something happens, to whom, and what."""

    at: Duration | None = None
    every: Duration | None = None
    between: tuple[Duration, Duration] | None = None
    jitter: Duration | None = None
    on: On | None = None
    after: Duration | None = None
    for_: Duration | None = None
    pick: Pick | None = None

    migrate: Migrate | None = None
    join: str | None = None
    leave: str | NodeTarget | None = None
    crash: Crash | None = None
    pause: Pause | None = None
    restart: Restart | None = None
    impair: Impair | None = None
    partition: Partition | None = None

    @model_validator(mode="after")
    def _shape(self) -> Self:
        verbs = [verb for verb in VERBS if getattr(self, verb) is not None]
        if len(verbs) != 1:
            raise ValueError(
                f"expected exactly one of {', '.join(VERBS)}" + (f", not {' and '.join(verbs)}" if verbs else "")
            )
        if sum(when is not None for when in (self.at, self.every, self.on)) != 1:
            raise ValueError("expected exactly one of at, every, on")
        if self.every is not None and (self.every == 0 or self.between is None or self.between[0] >= self.between[1]):
            raise ValueError("every needs a period and between: [from, until], from before until")
        if self.every is None and (self.between is not None or self.jitter is not None):
            raise ValueError("between and jitter go with every")
        if self.after is not None and self.on is None:
            raise ValueError("after goes with on")
        self._check_duration()
        self._check_target()
        return self

    def _check_duration(self) -> None:
        if self.for_ == 0:
            raise ValueError("for: 0 would have no effect")
        if self.verb == "pause" and self.lasts is None:
            raise ValueError("pause needs for: how long")
        if self.for_ is not None and self.verb in ("migrate", "join", "leave", "restart"):
            raise ValueError(f"for goes with faults that last, not with {self.verb}")

    def _check_target(self) -> None:
        body = self.body
        if self.pick is not None:
            if self.pick.endpoints and self.verb != "migrate":
                raise ValueError(f"pick endpoints goes with migrate, not with {self.verb}")
            if self.pick.group and self.verb not in _ON_NODES - {"join"}:
                raise ValueError(f"pick group goes with leave, crash, pause and restart, not with {self.verb}")
            if isinstance(body, Migrate) and body.endpoint is not None:
                raise ValueError("the endpoint is picked: leave it out of migrate")
            if isinstance(body, NodeTarget) and (body.node or body.owner_of):
                raise ValueError(f"the node is picked: leave it out of {self.verb}")
        elif isinstance(body, Migrate) and body.endpoint is None:
            raise ValueError("migrate needs an endpoint")
        elif isinstance(body, NodeTarget) and body.node is None and body.owner_of is None:
            raise ValueError(f"{self.verb} needs node or owner-of")

    @property
    def verb(self) -> str:
        return next(verb for verb in VERBS if getattr(self, verb) is not None)

    @property
    def body(self) -> Migrate | NodeTarget | Impair | Partition | str:
        body = getattr(self, self.verb)
        return NodeTarget(node=body) if self.verb == "leave" and isinstance(body, str) else body

    @property
    def lasts(self) -> int | None:
        """How long, in ns; None until the end of the scenario, or if it is over at once."""
        if isinstance(self.pause, Pause) and self.pause.for_ is not None:
            return self.pause.for_
        return self.for_


class Workload(Strict):
    """The pipeline that runs meanwhile (docs: nodes/pipeline)."""

    kind: Literal["pipeline"] = "pipeline"
    stages: int = Field(default=3, ge=1, le=64)
    requests: Frequency = 50.0
    tokens: int = Field(default=8, ge=1, le=100_000)
    activation: Size = 8192
    token: Size = 64
    kv: Size = 1024 * 1024
    kv_dirty: Size = 4096
    compute: Duration = 500_000
    concurrency: int = Field(default=64, ge=1)
    adapter: Literal["connex", "tcp"] = "connex"

    @property
    def endpoints(self) -> tuple[str, ...]:
        return ("source", *(f"stage-{number}" for number in range(1, self.stages + 1)), "sink")


class Delivery(Strict):
    ordered: bool = True
    exactly_once: bool = True


class Cutover(Strict):
    p50: Duration | None = None
    p99: Duration | None = None
    max_: Duration | None = None


class Goodput(Strict):
    min_: Probability


class Resets(Strict):
    max_: int | None = Field(default=None, ge=0)
    causes: tuple[str, ...] | None = None


def _resets(value: object) -> object:
    return {"none": {"max": 0}, "allowed": {}}.get(value, value) if isinstance(value, str) else value


class Expect(Strict):
    """What the checkers hold the run to."""

    delivery: Delivery = Delivery()
    cutover: Cutover | None = None
    goodput: Goodput | None = None
    resets: Annotated[Resets, BeforeValidator(_resets)] = Resets(max=0)
    """``none`` (the default), ``allowed``, or how many and with which causes."""
    verdict: Literal["pass", "fail", "unknown"] = "pass"
    """What the project's own tests expect of the whole run."""


class Scenario(Strict):
    """A scenario file."""

    topology: str
    seed: int = Field(default=1, ge=0, lt=1 << 63)
    duration: Duration
    workload: Workload = Workload()
    connex: dict[str, Setting] = {}
    """Settings of Connex by name, such as ``lease: 200ms``."""
    capture: Literal["wire", "node", "none"] = "wire"
    lag: Duration = 5_000_000
    """How late (99th percentile) frames may leave the emulated network before the verdict is unknown."""
    events: tuple[Step, ...] = ()
    expect: Expect = Expect()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a scenario may refer to: the names in its topology."""

    workers: Collection[str]
    autostart: Collection[str]
    links: Mapping[str, tuple[str, str]]
    """Link -> the nodes at its ends, a first."""
    groups: Mapping[str, Collection[str]]


def schema() -> dict[str, Any]:
    """The JSON schema of a scenario file, for editors."""
    return Scenario.model_json_schema(by_alias=True)


def scenario_folders() -> list[Path]:
    return [Path("faults/scenarios"), BUILTIN]


def read_scenario(document: Document) -> Scenario:
    """Check a document as a scenario, apart from what its topology must have. Raises DocumentErrors."""
    return read(document, Scenario)


def check_scenario(document: Document, scenario: Scenario, around: Surroundings) -> None:
    """Check every name and time against the topology. Raises DocumentErrors with all mistakes."""
    errors = list(_problems(document, scenario, around))
    if errors:
        raise DocumentErrors(errors)


def _problems(document: Document, scenario: Scenario, around: Surroundings) -> Iterator[DocumentError]:
    endpoints = scenario.workload.endpoints
    if scenario.duration == 0:
        yield document.error(("duration",), "a duration of 0 exercises nothing")
    if len(around.autostart) < 2:
        yield document.error(("topology",), "a pipeline needs at least two connex nodes that start by themselves")
    for number, step in enumerate(scenario.events):
        place = ("events", number)
        yield from _time_problems(document, place, step, scenario.duration)
        for inner, kind, name in _names(step):
            known: Collection[str] = {
                "node": around.workers,
                "link": around.links,
                "endpoint": endpoints,
                "group": around.groups,
            }[kind]
            if name not in known:
                yield document.error(
                    (*place, step.verb, *inner), f"there is no {kind} {name!r}; there are {', '.join(sorted(known))}"
                )
        if step.join in around.autostart:
            yield document.error(
                (*place, "join"), f"{step.join} runs from the start: only a node with autostart: false can join"
            )
        if scenario.workload.adapter != "connex" and step.verb in ("migrate", "leave"):
            yield document.error(
                place, f"the adapter {scenario.workload.adapter} cannot {step.verb}: its addresses are static"
            )


def _time_problems(document: Document, place: tuple[str, int], step: Step, duration: int) -> Iterator[DocumentError]:
    begins = step.at if step.at is not None else step.between[1] if step.between else None
    if begins is not None and begins > duration:
        yield document.error(
            (*place, "at" if step.at is not None else "between"), "this is after the end of the scenario"
        )
    elif begins is not None and begins + (step.lasts or 0) > duration:
        yield document.error((*place, "for"), "this lasts longer than the scenario")


def _names(step: Step) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Every name in a step: where, of what kind, and the name."""
    body = step.body
    if isinstance(body, str):
        yield (), "node", body
    elif isinstance(body, Migrate):
        if body.endpoint is not None:
            yield ("endpoint",), "endpoint", body.endpoint
        if body.to not in (SPARE, ANY):
            yield ("to",), "node", body.to
    elif isinstance(body, NodeTarget):
        if body.node is not None:
            yield ("node",), "node", body.node
        if body.owner_of is not None:
            yield ("owner-of",), "endpoint", body.owner_of
    elif isinstance(body, Impair):
        if body.link is not None:
            yield ("link",), "link", body.link
        if body.node is not None:
            yield ("node",), "node", body.node
    elif isinstance(body, Partition):
        for side, names in enumerate(body.between):
            for at, name in enumerate(names):
                yield ("between", side, at), "node", name
    if step.pick is not None:
        if step.pick.group is not None and step.pick.group != "workers":
            yield ("pick", "group"), "group", step.pick.group
        for endpoint in step.pick.endpoints:
            yield ("pick", "endpoints"), "endpoint", endpoint
