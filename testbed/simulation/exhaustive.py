"""All orders of one handover, as far as a bound goes: every frame of it lost, late, doubled, or met by a fault.

The bound is on deviations, not on length (delay-bounded scheduling; Emmi, Qadeer and Rakamaric, POPL 2011): a run in
which every frame arrives at once and in order is one schedule, and every schedule that deviates from it at no more than
so many frames is played. What a frame can meet is the table ``DEVIATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from connex.core.errors import LocalProtocolError
from connex.core.frames import Frame, FrameType
from connex.core.identity import TrafficClass
from testbed.simulation.channels import MS, Weather
from testbed.simulation.cluster import Cluster
from testbed.simulation.oracles import Oracles
from testbed.simulation.player import QUIET_WITHIN, config

SOURCE, TARGET, PEERS = "s", "t", ("p", "q")
NODES = (SOURCE, TARGET, *PEERS)
_DULL = {FrameType.HEARTBEAT, FrameType.JOIN, FrameType.LEAVE}
_LONG = 1_500 * MS
"""Longer than it takes to be declared dead."""


class Deviation(NamedTuple):
    """At the ``frame``-th frame since the handover began, counted over the whole run, this happens."""

    frame: int
    what: str


def _kill(cluster: Cluster, node: str) -> None:
    if node in cluster.nodes:
        cluster.kill(node)


def _restart(cluster: Cluster, node: str) -> None:
    if node in cluster.nodes:
        cluster.kill(node)
        cluster.after(30 * MS, lambda: _start(cluster, node))


def _start(cluster: Cluster, node: str) -> None:
    if node not in cluster.nodes:
        cluster.start(node)
        for other in sorted(cluster.nodes):
            cluster.join(node, cluster.nodes[other].me.locator)


def _pause(cluster: Cluster, node: str) -> None:
    cluster.pause(node)
    cluster.after(_LONG, lambda: cluster.resume(node))


def _part(cluster: Cluster, *pairs: tuple[str, str]) -> None:
    cluster.cut.update(pairs)
    cluster.after(_LONG, lambda: cluster.restore(*pairs))


FAULTS: dict[str, Callable[[Cluster], None]] = {
    **{f"kill {node}": lambda cluster, node=node: _kill(cluster, node) for node in NODES},  # type: ignore[misc]
    **{f"restart {node}": lambda cluster, node=node: _restart(cluster, node) for node in NODES},  # type: ignore[misc]
    **{f"pause {node}": lambda cluster, node=node: _pause(cluster, node) for node in NODES},  # type: ignore[misc]
    "cut s-t": lambda cluster: _part(cluster, ("s", "t"), ("t", "s")),
    "cut s-p": lambda cluster: _part(cluster, ("s", "p"), ("p", "s")),
    "cut t-p": lambda cluster: _part(cluster, ("t", "p"), ("p", "t")),
    "cut s>t": lambda cluster: _part(cluster, ("s", "t")),
    "cut t>s": lambda cluster: _part(cluster, ("t", "s")),
}
LATE = {"late 1 ms": MS, "late 300 ms": 300 * MS, "late 1500 ms": _LONG}
DEVIATIONS = ("lost", *LATE, "twice", *FAULTS)


@dataclass
class Tried:
    """One schedule: what was done, how many frames there were to deviate at, and what it broke."""

    deviations: tuple[Deviation, ...]
    frames: int
    broken: str


class _Run:
    def __init__(self, deviations: tuple[Deviation, ...], kinds: frozenset[int]) -> None:
        self._deviations = {one.frame: one.what for one in deviations}
        self._kinds = kinds
        self.cluster = Cluster(NODES, 1, config())
        self.oracles = Oracles(self.cluster)
        self.frames = -1
        """Frames since the handover began; -1 before it."""

    def play(self) -> None:
        cluster = self.cluster
        cluster.introduce()
        for node, endpoint in ((SOURCE, "e"), ("p", "p1"), ("q", "q1")):
            cluster.host(node, endpoint)
        cluster.run(30 * MS)
        streams = {
            self._open("p", "p1", "e", TrafficClass.TOKEN): "p1",
            self._open("q", "q1", "e", TrafficClass.ACTIVATION): "q1",
            self._open(SOURCE, "e", "p1", TrafficClass.TOKEN): "e",
        }
        cluster.run(30 * MS)
        self._send(streams)
        cluster.run(20 * MS)
        cluster.reading = False
        self._send(streams)  # those for e are not taken: they go along in STATE
        cluster.run(5 * MS)
        cluster.reading = True
        for stream, sender in streams.items():
            if sender == "e":
                cluster.read("p", stream)
        cluster.on_frame = self.oracles.frame
        cluster.channels.fates.append(self._fate)
        self.frames = 0
        cluster.move("e", TARGET)
        for _ in range(4):
            cluster.run(MS // 2)
            self._send(streams)
        for _ in range(6):
            cluster.run(400 * MS)
            self._send(streams)
        self._settle()

    def _open(self, node: str, sender: str, receiver: str, kind: TrafficClass) -> int:
        stream = self.cluster.open(node, sender, receiver, kind)
        self.oracles.opened(stream, sender, receiver, kind)
        return stream

    def _send(self, streams: dict[int, str]) -> None:
        for stream, sender in streams.items():
            payload = len(self.cluster.sent[stream]).to_bytes(4, "big") * 10
            self.oracles.sent(stream, len(payload))
            taken = False
            try:
                taken = self.cluster.send(sender, stream, payload)
            except LocalProtocolError:
                taken = False  # its stream is over
            if not taken:
                self.oracles.unsent(stream)

    def _fate(self, here: str, there: str, frame: Frame) -> list[int]:
        """Extra delays of the copies that arrive; none if the frame is lost."""
        if frame.type in _DULL or (self._kinds and frame.type not in self._kinds):
            return [0]
        what = self._deviations.get(self.frames)
        self.frames += 1
        if what is None:
            return [0]
        if what == "lost":
            return []
        if what == "twice":
            return [0, 300 * MS]
        if what in LATE:
            return [LATE[what]]
        self.cluster.after(0, lambda: self._strike(what))
        return [0]

    def _strike(self, what: str) -> None:
        before = set(self.cluster.nodes)
        FAULTS[what](self.cluster)
        for node in before - set(self.cluster.nodes):
            self.oracles.killed(node)

    def _settle(self) -> None:
        cluster = self.cluster
        cluster.channels.fates.clear()
        cluster.restore()
        for node in list(cluster.paused):
            cluster.resume(node)
        until = cluster.now + QUIET_WITHIN
        while not self.oracles.settled() and cluster.now < until:
            cluster.run(200 * MS)
        self.oracles.judge()


def handovers(
    depth: int, *, ordered: bool, what: tuple[str, ...] = DEVIATIONS, kinds: frozenset[int] = frozenset()
) -> Iterator[Tried]:
    """Every schedule of the handover that deviates at up to ``depth`` frames, of these types if any are named."""
    yield from _deeper((), depth, ordered, what, kinds)


def _deeper(
    deviations: tuple[Deviation, ...], depth: int, ordered: bool, what: tuple[str, ...], kinds: frozenset[int]
) -> Iterator[Tried]:
    tried = try_handover(deviations, ordered=ordered, kinds=kinds)
    yield tried
    if not depth:
        return
    begin = deviations[-1].frame + 1 if deviations else 0
    for frame in range(begin, tried.frames):
        for one in what:
            yield from _deeper((*deviations, Deviation(frame, one)), depth - 1, ordered, what, kinds)


def try_handover(deviations: tuple[Deviation, ...], *, ordered: bool, kinds: frozenset[int] = frozenset()) -> Tried:
    """Play one schedule."""
    run = _Run(deviations, kinds)
    run.cluster.weather = Weather(ordered=ordered)
    broken = ""
    try:
        run.play()
    except Exception as error:  # noqa: BLE001 - whatever the core raises here is what is looked for
        broken = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    return Tried(deviations, max(0, run.frames), broken)
