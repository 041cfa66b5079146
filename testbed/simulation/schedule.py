"""A schedule: what is done to a cluster, and when; drawn from a seed, and small enough to read when it has shrunk."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from connex.core.identity import TrafficClass
from testbed.simulation.channels import Weather

NODES = "abcdefgh"
_CLASSES = (TrafficClass.TOKEN, TrafficClass.TOKEN, TrafficClass.ACTIVATION, TrafficClass.KV)
_MOST_BYTES = {TrafficClass.TOKEN: 2_000, TrafficClass.ACTIVATION: 60_000, TrafficClass.KV: 400_000}
_STRIKES = ("PREPARE", "PREPARED", "COMMIT", "COMMITTED", "RELEASE", "ANNOUNCE", "FENCE")
_FAULTS = ("crash", "pause", "partition", "one-way", "leave", "cancel", "hold", "reset", "close")


class Step(NamedTuple):
    """One thing that is done, at a time in ms from the beginning."""

    at: int
    verb: str
    who: str = ""
    """A node, an endpoint, the number of a stream, or the type of the frame at which to strike."""
    whom: str = ""
    """A node, or the step that is taken then."""
    amount: int = 0
    """Bytes, or a duration in ms."""

    def __str__(self) -> str:
        words = [self.verb, self.who, self.whom, str(self.amount) if self.amount else ""]
        return f"{self.at:6d} ms  " + " ".join(word for word in words if word)


@dataclass(frozen=True)
class Schedule:
    """Everything that decides a run."""

    seed: int
    nodes: int
    endpoints: tuple[tuple[str, str], ...]
    """(endpoint, the node where it is hosted first)."""
    streams: tuple[tuple[str, str, TrafficClass], ...]
    """(sender, receiver, class), opened at the beginning."""
    weather: Weather
    steps: tuple[Step, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(NODES[: self.nodes])


def draw(seed: int, *, nodes: int = 5, messages: int = 200, adversarial: bool = False) -> Schedule:
    """The schedule of that seed: one node joins late; endpoints move, and whatever can befall them does."""
    source = random.Random(seed)
    names = NODES[:nodes]
    present = names[:-1] if nodes > 3 else names
    endpoints = tuple((f"{place}{number}", place) for place in present for number in range(1 + (source.random() < 0.4)))
    streams = tuple(_stream(source, [name for name, _ in endpoints]) for _ in range(source.randint(4, 8)))
    length = source.randint(1_000, 2_500)
    steps = [
        _message(source, source.randrange(length), source.randrange(len(streams)), streams) for _ in range(messages)
    ]
    where = [name for name, _ in endpoints]
    for _ in range(source.randint(2, 14)):
        steps.append(Step(source.randrange(length), "move", source.choice(where), source.choice(names)))
    for _ in range(source.choice((0, 1, 1, 2, 3, 5))):
        steps += _fault(source, source.randrange(length), names, where, len(streams))
    for _ in range(source.choice((0, 0, 1, 2))):
        steps += _ambush(source, source.randrange(length), names, endpoints)
    if len(present) < nodes:
        steps.append(Step(source.randrange(length // 2), "join", names[-1]))
    return Schedule(
        seed, nodes, endpoints, streams, _weather(source, adversarial), tuple(sorted(steps, key=lambda step: step.at))
    )


def _stream(source: random.Random, endpoints: list[str]) -> tuple[str, str, TrafficClass]:
    sender, receiver = source.sample(endpoints, 2)
    return sender, receiver, source.choice(_CLASSES)


def _message(source: random.Random, at: int, stream: int, streams: tuple[tuple[str, str, TrafficClass], ...]) -> Step:
    most = _MOST_BYTES[streams[stream][2]]
    size = source.choice((0, 1, 100, most // 10, source.randrange(most)))
    return Step(at, "send", str(stream), "", size)


def _fault(source: random.Random, at: int, names: str, endpoints: list[str], streams: int) -> list[Step]:
    verb = source.choice(_FAULTS)
    node = source.choice(names)
    if verb == "crash":
        steps = [Step(at, "crash", node)]
        return [*steps, Step(at + source.choice((5, 100, 900)), "start", node)] if source.random() < 0.6 else steps
    if verb == "pause":
        return [Step(at, "pause", node, "", source.choice((50, 300, 1_500, 2_500)))]
    if verb in ("partition", "one-way"):
        other = source.choice([name for name in names if name != node])
        return [Step(at, verb, node, other, source.choice((50, 300, 1_500, 2_500)))]
    if verb in ("reset", "close"):
        return [Step(at, verb, str(source.randrange(streams)))]
    if verb == "leave":
        return [Step(at, "leave", node)]
    if verb == "hold":
        step = Step(at, "hold", source.choice(endpoints), source.choice(names))
        return [step, Step(at + source.randrange(500), source.choice(("execute", "cancel")), step.who)]
    return [Step(at, "cancel", source.choice(endpoints))]


def _ambush(source: random.Random, at: int, names: str, endpoints: tuple[tuple[str, str], ...]) -> list[Step]:
    """A move, and a move back or a fault of somebody who takes part in it, when a frame of the protocol leaves."""
    endpoint, home = source.choice(endpoints)
    target = source.choice([name for name in names if name != home])
    if source.random() < 0.2:
        return [Step(at, "move", endpoint, target), Step(at + source.randrange(40), "move", endpoint, home)]
    verb, who, whom = source.choice(
        (
            ("crash", home, ""),
            ("crash", target, ""),
            ("pause", home, ""),
            ("pause", target, ""),
            ("partition", home, target),
            ("one-way", home, target),
            ("one-way", target, home),
        )
    )
    long = source.choice((300, 1_500, 2_500))
    strike = Step(at, "strike", source.choice(_STRIKES), f"{verb} {who} {whom}".strip(), long)
    return [strike, Step(at, "move", endpoint, target)]


def _weather(source: random.Random, adversarial: bool) -> Weather:
    delay = source.choice((50_000, 200_000, 2_000_000))
    if not adversarial:
        return Weather(source.choice((0.0, 0.0, 0.01)), 0.0, source.choice((0.0, 0.05)), delay, ordered=True)
    return Weather(
        source.choice((0.0, 0.02, 0.1)), source.choice((0.0, 0.05, 0.2)), source.choice((0.0, 0.05, 0.2)), delay
    )
