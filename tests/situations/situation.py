"""A cluster under traffic in which one thing goes wrong, judged by the oracles of the exploration."""

from __future__ import annotations

from collections.abc import Callable

from connex.core.errors import LocalProtocolError
from connex.core.frames import Frame
from connex.core.identity import TrafficClass
from testbed.simulation.channels import Weather
from testbed.simulation.cluster import MS, Cluster
from testbed.simulation.oracles import Oracles
from testbed.simulation.player import QUIET_WITHIN, config

Keep = Callable[[str, str, Frame], bool]


class Situation:
    """Three nodes and a spare one. ``x`` on a and ``y`` on b talk to each other, ``z`` on c to both."""

    def __init__(self, *, ordered: bool = True, seed: int = 0) -> None:
        self.cluster = Cluster(("a", "b", "c", "d"), seed, config(), Weather(ordered=ordered))
        self.oracles = Oracles(self.cluster)
        self.cluster.on_frame = self.oracles.frame
        self.cluster.introduce()
        for node, endpoint in (("a", "x"), ("b", "y"), ("c", "z")):
            self.cluster.host(node, endpoint)
        self.cluster.run(50 * MS)
        self.streams = {
            self.open("a", "x", "y", TrafficClass.TOKEN): "x",
            self.open("b", "y", "x", TrafficClass.KV): "y",
            self.open("c", "z", "x", TrafficClass.ACTIVATION): "z",
            self.open("c", "z", "y", TrafficClass.TOKEN): "z",
        }
        self.talk(50)

    def open(self, node: str, sender: str, receiver: str, kind: TrafficClass) -> int:
        stream = self.cluster.open(node, sender, receiver, kind)
        self.oracles.opened(stream, sender, receiver, kind)
        return stream

    def talk(self, milliseconds: int, every: int = 5) -> None:
        """Let everybody go on sending for so long."""
        for _ in range(max(1, milliseconds // every)):
            for stream, sender in self.streams.items():
                self._send(stream, sender)
            self.cluster.run(every * MS)

    def _send(self, stream: int, sender: str) -> None:
        payload = len(self.cluster.sent[stream]).to_bytes(4, "big") * 50
        self.oracles.sent(stream, len(payload))
        taken = False
        try:
            taken = self.cluster.send(sender, stream, payload)
        except LocalProtocolError:
            taken = False  # its stream is over
        if not taken:
            self.oracles.unsent(stream)

    def lose(self, keep: Keep) -> None:
        self.cluster.filters.append(keep)

    def kill(self, node: str) -> None:
        self.cluster.kill(node)
        self.oracles.killed(node)

    def restart(self, node: str, after: int) -> None:
        """Kill it, and start it again at the same address after so many ms."""
        self.kill(node)
        self.talk(after)
        self.start(node)

    def start(self, node: str) -> None:
        self.cluster.start(node)
        for other in sorted(self.cluster.nodes):
            self.cluster.join(node, self.cluster.nodes[other].me.locator)

    def settle(self) -> None:
        """Everything heals; then nothing may be left open. Raises Violation."""
        self.cluster.filters.clear()
        self.cluster.restore()
        for node in list(self.cluster.paused):
            self.cluster.resume(node)
        until = self.cluster.now + QUIET_WITHIN
        while not self.oracles.settled() and self.cluster.now < until:
            self.cluster.run(100 * MS)
        self.oracles.judge()

    def causes(self) -> set[str]:
        """Why streams were reset."""
        return {ending.cause for ending in self.cluster.endings}

    def untouched(self, *streams: int) -> bool:
        """Whether nothing was lost on these, and they are open still."""
        ended = {ending.stream for ending in self.cluster.endings}
        return all(
            stream not in ended and len(self.cluster.delivered[stream]) == len(self.cluster.sent[stream])
            for stream in streams
        )

    def views(self) -> set[frozenset[str]]:
        """Which nodes each node takes for living."""
        return {
            frozenset(member.node for member in node.members() if member.state == 1) | {name}
            for name, node in self.cluster.nodes.items()
        }
