"""Plays a schedule on a simulated cluster, heals everything, waits for quiet, and judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from connex.core.config import Config
from connex.core.errors import ConnexError
from connex.core.frames import Frame, FrameType
from connex.core.handover import Phase
from connex.core.node import Node
from testbed.simulation.channels import MS, Weather
from testbed.simulation.cluster import Cluster
from testbed.simulation.oracles import Oracles, Violation
from testbed.simulation.schedule import Schedule, Step

QUIET_WITHIN = 20_000 * MS
"""After healing, everything is settled within this (virtual) time, or it hangs."""


def config() -> Config:
    """Shorter waits than in the field, so that little virtual time is spent on them."""
    return Config(
        dead_after=500 * MS, suspect_after=200 * MS, exchange=500 * MS, resolve_for=1_000 * MS,
        handover_timeout=3_000 * MS, retransmit_most=500 * MS,
    )  # fmt: skip


class Player:
    """One run of one schedule. ``cluster`` holds all that was seen, also where a violation ended the run."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        homes = {home for _, home in schedule.endpoints}
        self.cluster = Cluster(
            schedule.names, schedule.seed, config(), begins=[name for name in schedule.names if name in homes]
        )
        self.oracles = Oracles(self.cluster)
        self.skipped: list[Step] = []
        """Steps that could not be taken when their time had come."""
        self.messages = 0
        self.streams: list[int] = []
        """The ids of the schedule's streams."""
        self.begun = self.started = self.cluster.now
        """When the cluster was made, and when the schedule's first step was due."""
        self._held: dict[str, int] = {}
        self._strikes: list[tuple[FrameType, Step]] = []
        self.cluster.on_frame = self._watch

    def play(self) -> None:
        """Raises Violation, or whatever the core raises, where the protocol fails."""
        self._begin()
        start = self.started = self.cluster.now
        for step in self.schedule.steps:
            self.cluster.run(max(0, start + step.at * MS - self.cluster.now))
            try:
                taken = self._take(step)
            except ConnexError:
                taken = False  # a refusal by name is a right answer
            if not taken:
                self.skipped.append(step)
        self._end()

    def _begin(self) -> None:
        cluster = self.cluster
        cluster.weather = Weather(delay=self.schedule.weather.delay, ordered=self.schedule.weather.ordered)
        cluster.introduce()
        cluster.run(50 * MS)
        for endpoint, home in self.schedule.endpoints:
            cluster.host(home, endpoint)
        cluster.run(50 * MS)
        cluster.weather = replace(self.schedule.weather)
        homes = dict(self.schedule.endpoints)
        for sender, receiver, kind in self.schedule.streams:
            stream = cluster.open(homes[sender], sender, receiver, kind)
            self.oracles.opened(stream, sender, receiver, kind)
            self.streams.append(stream)

    def _end(self) -> None:
        cluster = self.cluster
        cluster.weather.loss = cluster.weather.repeat = cluster.weather.late = 0.0
        cluster.restore()
        for name in list(cluster.paused):
            cluster.resume(name)
        until = cluster.now + QUIET_WITHIN
        quiet = 0
        while quiet < 3 and cluster.now < until:
            self._cancel_what_is_held()
            cluster.run(100 * MS)
            quiet = quiet + 1 if self.oracles.settled() else 0
        self.oracles.judge()

    def _cancel_what_is_held(self) -> None:
        """Nobody will say any more that a handover held back is to go on."""
        cluster = self.cluster
        for name, node in list(cluster.nodes.items()):
            for handover in [one for one in node.handovers() if one.phase is Phase.HOLDING]:
                cluster.do(name, partial(Node.cancel, handover=handover.id, text="the end", now=cluster.now))

    def _take(self, step: Step) -> bool:
        return bool(getattr(self, "_" + step.verb.replace("-", "_"))(step))

    # Verbs: each says whether it could be done

    def _send(self, step: Step) -> bool:
        stream = self.streams[int(step.who)]
        sender = self.oracles.routes[stream][0]
        self.messages += 1
        content = self.messages.to_bytes(4, "big") * (step.amount // 4 + 1)
        # The oracle must know of the message before its first frame leaves.
        self.oracles.sent(stream, step.amount)
        taken = False
        try:
            taken = self.cluster.send(sender, stream, content[: step.amount])
        finally:
            if not taken:
                self.oracles.unsent(stream)
        return taken

    def _move(self, step: Step, hold: bool = False) -> bool:
        cluster = self.cluster
        owner = cluster.owner(step.who)
        if not owner or owner in cluster.paused:
            return False
        handover = cluster.move(step.who, step.whom, hold)
        if hold:
            self._held[step.who] = handover
        return True

    def _hold(self, step: Step) -> bool:
        return self._move(step, hold=True)

    def _execute(self, step: Step) -> bool:
        return self._settle(step, cancel=False)

    def _cancel(self, step: Step) -> bool:
        return self._settle(step, cancel=True)

    def _settle(self, step: Step, cancel: bool) -> bool:
        cluster = self.cluster
        owner = cluster.owner(step.who)
        if not owner or owner in cluster.paused:
            return False
        under_way = [
            one.id for one in cluster.nodes[owner].handovers() if (one.endpoint, one.side) == (step.who, "source")
        ]
        for handover in under_way:
            if cancel:
                cluster.do(owner, partial(Node.cancel, handover=handover, text="cancelled", now=cluster.now))
            else:
                cluster.do(owner, partial(Node.execute, handover=handover, now=cluster.now))
        return bool(under_way)

    def _reset(self, step: Step) -> bool:
        stream = self.streams[int(step.who)]
        return self._at_sender(stream, lambda node: node.reset(stream, "no longer wanted", self.cluster.now))

    def _close(self, step: Step) -> bool:
        stream = self.streams[int(step.who)]
        return self._at_sender(stream, lambda node: node.close(stream, self.cluster.now))

    def _crash(self, step: Step) -> bool:
        if step.who not in self.cluster.nodes:
            return False
        self.cluster.kill(step.who)
        self.oracles.killed(step.who)
        return True

    def _start(self, step: Step) -> bool:
        """Start a node, for the first time or again, and let it join."""
        cluster = self.cluster
        if step.who in cluster.nodes:
            return False
        cluster.start(step.who)
        for other in sorted(cluster.nodes):
            if other != step.who:
                cluster.join(step.who, cluster.nodes[other].me.locator)
        return True

    _join = _start

    def _pause(self, step: Step) -> bool:
        cluster = self.cluster
        if step.who not in cluster.nodes or step.who in cluster.paused:
            return False
        cluster.pause(step.who)
        cluster.after(step.amount * MS, lambda: cluster.resume(step.who))
        return True

    def _partition(self, step: Step) -> bool:
        return self._cut(step, {(step.who, step.whom), (step.whom, step.who)})

    def _one_way(self, step: Step) -> bool:
        return self._cut(step, {(step.who, step.whom)})

    def _cut(self, step: Step, pairs: set[tuple[str, str]]) -> bool:
        self.cluster.cut |= pairs
        self.cluster.after(step.amount * MS, lambda: self.cluster.restore(*sorted(pairs)))
        return True

    def _leave(self, step: Step) -> bool:
        """Hand over what is hosted there, and then say goodbye, whatever has become of it."""
        cluster, name = self.cluster, step.who
        others = [one for one in sorted(cluster.nodes) if one != name]
        if name not in cluster.nodes or name in cluster.paused or len(others) < 2:
            return False
        life = cluster.nodes[name]
        for number, binding in enumerate(life.owned()):
            try:
                cluster.move(binding.endpoint, others[number % len(others)])
            except ConnexError:
                continue  # it moves already, or cannot: then it ends with the node

        def goodbye() -> None:
            if cluster.nodes.get(name) is life:
                cluster.resume(name)
                cluster.do(name, lambda node: node.leave(cluster.now))
                cluster.after(20 * MS, gone)

        def gone() -> None:
            if cluster.nodes.get(name) is life:
                cluster.kill(name)
                self.oracles.killed(name)

        cluster.after(200 * MS, goodbye)
        return True

    def _strike(self, step: Step) -> bool:
        """Take a step as soon as a frame of some type is on its way."""
        verb, who, *whom = step.whom.split()
        self._strikes.append((FrameType[step.who], Step(step.at, verb, who, whom[0] if whom else "", step.amount)))
        return True

    def _watch(self, here: str, there: str, frame: Frame) -> None:
        self.oracles.frame(here, there, frame)
        for strike in [one for one in self._strikes if one[0] == frame.type]:
            self._strikes.remove(strike)
            self.cluster.after(0, self._taker(strike[1]))

    def _taker(self, step: Step) -> Callable[[], None]:
        def take() -> None:
            try:
                self._take(step)
            except ConnexError:
                self.skipped.append(step)

        return take

    def _at_sender(self, stream: int, what: Callable[[Node], None]) -> bool:
        owner = self.cluster.owner(self.oracles.routes[stream][0])
        if not owner or owner in self.cluster.paused or not self.cluster.sending(owner, stream):
            return False
        self.cluster.do(owner, what)
        return True


def play(schedule: Schedule) -> Player:
    """Play it from its beginning to its verdict; raises Violation."""
    player = Player(schedule)
    player.play()
    return player


__all__ = ["Player", "Violation", "play"]
