"""Many random schedules, and the smallest that still shows what one of them has found."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from testbed.simulation.player import Player
from testbed.simulation.schedule import Schedule, draw


@dataclass
class Failure:
    """A schedule under which the protocol broke its contract, or the core itself failed."""

    schedule: Schedule
    what: str

    @property
    def kind(self) -> str:
        """What is broken, without the names and numbers of this one case."""
        return self.what.split(":")[0]


@dataclass
class Tally:
    """What has been explored. Times are virtual, in seconds."""

    schedules: int = 0
    messages: int = 0
    delivered: int = 0
    frames: int = 0
    handovers: int = 0
    seconds: float = 0.0
    resets: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, player: Player) -> None:
        cluster = player.cluster
        self.schedules += 1
        self.messages += sum(len(sent) for sent in cluster.sent.values())
        self.delivered += sum(len(taken) for taken in cluster.delivered.values())
        self.frames += len(cluster.frames)
        self.handovers += player.oracles.handovers
        self.seconds += (cluster.now - player.begun) / 1e9
        self.resets.update(ending.cause for ending in cluster.endings)


def try_out(schedule: Schedule) -> tuple[Player, Failure | None]:
    """Play a schedule; what it breaks, if anything."""
    player = Player(schedule)
    try:
        player.play()
    except Exception as error:  # noqa: BLE001 - whatever the core raises here is what is looked for
        what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return player, Failure(schedule, what)
    return player, None


def explore(seeds: range, *, nodes: int, messages: int, adversarial: bool) -> Iterator[Tally]:
    """Play the schedule of each seed; yields the tally after each."""
    tally = Tally()
    for seed in seeds:
        player, failure = try_out(draw(seed, nodes=nodes, messages=messages, adversarial=adversarial))
        tally.add(player)
        if failure is not None:
            tally.failures.append(failure)
        yield tally


def shrink(failure: Failure) -> Failure:
    """Leave out what a failure of the same kind does not need: delta debugging (Zeller and Hildebrandt, 2002), of the
    steps, then of streams and sizes.
    """
    best = failure
    size = len(best.schedule.steps) // 2
    while size:
        begin = 0
        while begin < len(best.schedule.steps):
            steps = best.schedule.steps
            smaller = _still(best, replace(best.schedule, steps=steps[:begin] + steps[begin + size :]))
            if smaller is None:
                begin += size
            else:
                best = smaller
        size //= 2
    for number in range(len(best.schedule.streams) - 1, -1, -1):
        best = _still(best, _without_stream(best.schedule, number)) or best
    for index, step in enumerate(best.schedule.steps):
        if step.verb == "send" and step.amount > 1:
            steps = best.schedule.steps
            shorter = (*steps[:index], step._replace(amount=1), *steps[index + 1 :])
            best = _still(best, replace(best.schedule, steps=shorter)) or best
    return best


def _still(failure: Failure, schedule: Schedule) -> Failure | None:
    found = try_out(schedule)[1]
    return found if found is not None and found.kind == failure.kind else None


def _without_stream(schedule: Schedule, number: int) -> Schedule:
    streams = schedule.streams[:number] + schedule.streams[number + 1 :]
    steps = []
    for step in schedule.steps:
        if step.verb in ("send", "close", "reset"):
            if int(step.who) == number:
                continue
            if int(step.who) > number:
                step = step._replace(who=str(int(step.who) - 1))
        steps.append(step)
    return replace(schedule, streams=streams, steps=tuple(steps))


def digest(player: Player) -> str:
    """A fingerprint of all that happened: equal for equal schedules."""
    fingerprint = hashlib.sha256()
    for at, name, event in player.cluster.log:
        fingerprint.update(f"{at} {name} {event}\n".encode())
    for at, here, there, frame in player.cluster.frames:
        fingerprint.update(f"{at} {here} {there} {frame[:9]}".encode() + bytes(frame.payload))
    return fingerprint.hexdigest()
