"""Whether a scenario fits its topology: every name, every time and every effect, before anything is made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faults.document import Document, DocumentError, DocumentErrors
from faults.impairment import Impairment
from faults.observed import ENDPOINT_FIELDS, EVENTS, NODE_FIELDS
from faults.reading import suggest
from faults.steps import Pick, Step
from faults.verbs import ANY, SPARE, Impair, Migrate, NodeTarget, Partition

if TYPE_CHECKING:
    from faults.scenario import Scenario

WORKERS = "workers"
"""The group that every topology has: all nodes that run Connex."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a scenario may refer to: the names in its topology, and what its links do."""

    workers: Collection[str]
    autostart: Collection[str]
    links: Mapping[str, tuple[str, str]]
    """Link -> the nodes at its ends, a first."""
    groups: Mapping[str, Collection[str]]
    lines: Mapping[tuple[str, str], Impairment] = field(default_factory=dict)
    """(link, direction) -> what it does where no fault acts on it. Left out: changes are not checked against it."""
    merged: Callable[[Impairment, Mapping[str, int | float | bool]], Impairment] = Impairment.merge
    """What a line does after a change; raises ValueError where no line could, or the change had no effect."""

    def members(self, names: Iterable[str]) -> set[str]:
        """Nodes, groups replaced by theirs."""
        groups = {WORKERS: self.workers, **self.groups}
        return {node for name in names for node in groups.get(name, (name,))}

    def pool(self, pick: Pick, steps: Iterable[Step]) -> list[str]:
        """Whom a pick chooses from: endpoints, or the nodes of the group that run from the start or that some step
        lets join.
        """
        if pick.endpoints is not None:
            return sorted(set(pick.endpoints))
        ever = {*self.autostart, *(step.join for step in steps)}
        return sorted(self.members([pick.group or ""]) & ever)


def check_scenario(document: Document, scenario: Scenario, around: Surroundings) -> None:
    """Check every name and time against the topology. Raises DocumentErrors with all mistakes."""
    errors = list(_problems(document, scenario, around))
    if errors:
        raise DocumentErrors(errors)


def warnings(document: Document, scenario: Scenario, around: Surroundings) -> list[str]:
    """What is allowed and probably not meant: queues that cannot hold the line (T23)."""
    found = []
    for place, name, line in _changed_lines(scenario, around):
        if isinstance(line, Impairment) and line.queue and line.in_flight > line.queue:
            text = (
                f"{name}: a queue of {line.queue} B is less than delay x rate = {line.in_flight} B; bursts will be lost"
            )
            found.append(str(document.error(place, text)))
    return found


def _problems(document: Document, scenario: Scenario, around: Surroundings) -> Iterator[DocumentError]:
    if len(around.autostart) < 2:
        yield document.error(("topology",), "a pipeline needs at least two connex nodes that start by themselves")
    joining = {step.join for step in scenario.events if step.join is not None}
    for number, step in enumerate(scenario.events):
        place = ("events", number)
        for inner, text in (
            *_time_problems(step, scenario.duration),
            *_name_problems(step, scenario, around, joining),
            *_event_problems(step, scenario, around),
            *_pick_problems(step, scenario, around),
        ):
            yield document.error((*place, *inner), text)
        if step.join in around.autostart:
            yield document.error(
                (*place, "join"), f"{step.join} runs from the start: only a node with autostart: false can join"
            )
    yield from _adapter_problems(document, scenario)
    yield from _line_problems(document, scenario, around)


_Problem = tuple[tuple[str | int, ...], str]


def _time_problems(step: Step, duration: int) -> Iterator[_Problem]:
    if step.window is None:
        return
    where = "at" if step.at is not None else "between"
    first, last = step.window
    after_the_end = last > duration if where == "between" else last >= duration
    if after_the_end or first >= duration:
        yield (where,), f"this is after the end of the scenario ({duration / 1e9:g} s)"
    elif step.lasts is not None and last + step.lasts > duration:
        place = ("pause", "for") if step.for_ is None else ("for",)
        yield place, f"this lasts longer than the scenario ({duration / 1e9:g} s)"


def _name_problems(
    step: Step, scenario: Scenario, around: Surroundings, joining: Collection[str]
) -> Iterator[_Problem]:
    groups = {WORKERS, *around.groups}
    known: dict[str, Collection[str]] = {
        "node": around.workers,
        "node or group": {*around.workers, *groups},
        "link": around.links,
        "endpoint": scenario.workload.endpoints,
        "group": groups,
    }
    for place, kind, name in _names(step):
        if name not in known[kind]:
            yield place, f"there is no {kind} {name!r}" + suggest(name, known[kind])
        elif kind == "node" and name not in around.autostart and name not in joining:
            yield place, f"{name} does not run from the start, and no step lets it join"
    if step.partition is not None:
        a, b = map(around.members, step.partition.sides)
        if a & b:
            yield (
                ("partition",),
                f"{', '.join(sorted(a & b))} on both sides: expected lists that have no node in common",
            )


def _names(step: Step) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Every name in a step: where, of what kind, and the name."""
    body, verb = step.body, step.verb
    if isinstance(body, str):
        yield (verb,), "node", body
    elif isinstance(body, Migrate):
        if body.endpoint is not None:
            yield (verb, "endpoint"), "endpoint", body.endpoint
        if body.to not in (SPARE, ANY):
            yield (verb, "to"), "node", body.to
    elif isinstance(body, NodeTarget):
        if body.node is not None:
            yield (verb, "node"), "node", body.node
        if body.owner_of is not None:
            yield (verb, "owner-of"), "endpoint", body.owner_of
    elif isinstance(body, Impair):
        if body.link is not None:
            yield (verb, "link"), "link", body.link
        if body.node is not None:
            yield (verb, "node"), "node", body.node
    elif isinstance(body, Partition):
        keys: tuple[tuple[str | int, ...], ...] = (
            (("between", 0), ("between", 1)) if body.between is not None else (("from",), ("to",))
        )
        for key, names in zip(keys, body.sides, strict=True):
            for at, name in enumerate(names):
                yield (verb, *key, at), "node or group", name
    if step.pick is not None:
        if step.pick.group is not None:
            yield ("pick", "group"), "group", step.pick.group
        for at, endpoint in enumerate(step.pick.endpoints or ()):
            yield ("pick", "endpoints", at), "endpoint", endpoint


def _event_problems(step: Step, scenario: Scenario, around: Surroundings) -> Iterator[_Problem]:
    """An event that nobody writes would be waited for in vain."""
    if step.on is None:
        return
    fields = EVENTS.get(step.on.event)
    if fields is None:
        yield ("on", "event"), f"there is no event {step.on.event!r}" + suggest(step.on.event, EVENTS)
        return
    for key, value in (step.on.model_extra or {}).items():
        name = key.replace("-", "_")
        if name not in fields | {"node"}:
            yield ("on", key), f"the event {step.on.event} has no field {key!r}" + suggest(key, {*fields, "node"})
        elif not isinstance(value, str | int) or isinstance(value, bool):
            yield ("on", key), "expected one value that the field must have"
        else:
            yield from _value_problems(key, value, scenario, around)


def _value_problems(key: str, value: Any, scenario: Scenario, around: Surroundings) -> Iterator[_Problem]:
    if key in NODE_FIELDS and value not in around.workers:
        yield ("on", key), f"there is no node {value!r}" + suggest(str(value), around.workers)
    elif key in ENDPOINT_FIELDS and value not in scenario.workload.endpoints:
        yield ("on", key), f"there is no endpoint {value!r}" + suggest(str(value), scenario.workload.endpoints)


def _pick_problems(step: Step, scenario: Scenario, around: Surroundings) -> Iterator[_Problem]:
    pick = step.pick
    if pick is None or (pick.group is not None and pick.group not in {WORKERS, *around.groups}):
        return  # an unknown group is told already
    pool = len(around.pool(pick, scenario.events))
    if pool == 0:
        yield ("pick", "group"), "no node of this group runs from the start, and no step lets one join"
    elif pick.mode == "fixed" and pick.most(pool) > pool:
        yield ("pick", "value"), f"there are only {pool} to pick from"
    if pick.endpoints is not None and len(pick.endpoints) != pool:
        yield ("pick", "endpoints"), "an endpoint stands here twice"


def _adapter_problems(document: Document, scenario: Scenario) -> Iterator[DocumentError]:
    """What only Connex can do is refused with another adapter, rather than left without effect."""
    adapter = scenario.workload.adapter
    if adapter == "connex":
        return
    if scenario.connex.overrides():
        yield document.key_error(("connex",), f"with the adapter {adapter} these settings have no effect")
    for number, step in enumerate(scenario.events):
        if step.verb in ("migrate", "leave"):
            yield document.key_error(
                ("events", number, step.verb), f"the adapter {adapter} cannot {step.verb}: its addresses are static"
            )


def _changed_lines(
    scenario: Scenario, around: Surroundings
) -> Iterator[tuple[tuple[str | int, ...], str, Impairment | str]]:
    """Each line that a step changes: where that stands, the line's name, and what it then does, or why it cannot."""
    for number, step in enumerate(scenario.events):
        if step.impair is None:
            continue
        for link, ends in around.links.items():
            if link != step.impair.link and step.impair.node not in ends:
                continue
            for direction in step.impair.directions:
                declared = around.lines.get((link, direction))
                if declared is None:
                    continue
                line: Impairment | str
                try:
                    line = around.merged(declared, step.impair.changes())
                except ValueError as error:
                    line = str(error).replace("_", "-")
                yield ("events", number, "impair"), f"{link} {direction}", line


def _line_problems(document: Document, scenario: Scenario, around: Surroundings) -> Iterator[DocumentError]:
    for place, name, line in _changed_lines(scenario, around):
        if isinstance(line, str):
            yield document.error(place, f"{name}: {line}")
