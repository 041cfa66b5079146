"""C1 to C3 and C6 under frames that are lost, repeated and held back, while endpoints move and nodes die."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st

from connex.core import events
from connex.core.errors import LocalProtocolError
from connex.core.handover import Phase
from connex.core.identity import TrafficClass
from connex.core.node import Node
from testbed.simulation.cluster import MS, Cluster, Weather

EXAMPLES = int(os.environ.get("CONNEX_EXAMPLES", "40"))
relaxed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=[phase for phase in HypothesisPhase if phase is not HypothesisPhase.explain],
)

weathers = st.builds(
    Weather,
    loss=st.sampled_from([0.0, 0.05, 0.2]),
    repeat=st.sampled_from([0.0, 0.1, 0.3]),
    late=st.sampled_from([0.0, 0.05, 0.2]),
)
NODES = ("a", "b", "c", "d")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(["x", "y"]), st.integers(0, 40_000)),
        st.tuples(st.just("move"), st.sampled_from(["x", "y"]), st.sampled_from(NODES)),
        st.tuples(st.just("cancel"), st.sampled_from(["x", "y"]), st.just("")),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 80)),
    ),
    min_size=5,
    max_size=60,
)


class Story:
    """A cluster in which x and y send to each other, and what must hold of it."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.cluster = Cluster(names=NODES, seed=seed)
        self.cluster.introduce()
        self.cluster.host("a", "x")
        self.cluster.host("b", "y")
        self.streams = {
            "x": [self.cluster.open("a", "x", "y"), self.cluster.open("a", "x", "y", TrafficClass.KV)],
            "y": [self.cluster.open("b", "y", "x", TrafficClass.ACTIVATION)],
        }
        self.cluster.weather = weather
        self.count = 0
        self.check()

    def send(self, endpoint: str, size: int) -> None:
        for stream in self.streams[endpoint]:
            self.count += 1
            payload = self.count.to_bytes(4, "big") * (1 + size // 4 if size else 1)
            self.cluster.send(endpoint, stream, payload[: max(size, 4)] if size != 1 else b"")

    def move(self, endpoint: str, target: str) -> None:
        try:
            if self.cluster.owner(endpoint):
                self.cluster.move(endpoint, target)
        except LocalProtocolError:
            pass  # it is there already, or still moving: a refusal by name is a right answer

    def cancel(self, endpoint: str) -> None:
        name = self.cluster.owner(endpoint)
        for handover in self.cluster.nodes[name].handovers() if name else []:
            if handover.side == "source" and handover.endpoint == endpoint:
                committing = handover.phase is Phase.COMMITTING
                with pytest.raises(LocalProtocolError, match="already on the way") if committing else nullcontext():
                    self.cluster.do(name, partial(self._cancel, handover.id))

    def _cancel(self, handover: int, node: Node) -> None:
        node.cancel(handover, "cancelled", self.cluster.now)

    def check(self) -> None:
        """What holds at every moment: delivered is a prefix of sent (C1, C2), under epochs that only rise, by one
        owner each (C3).
        """
        for stream, delivered in self.cluster.delivered.items():
            sent = self.cluster.sent[stream]
            assert [one.payload for one in delivered] == sent[: len(delivered)]
            assert [one.number for one in delivered] == list(range(len(delivered)))
            epochs = [one.endpoint_epoch for one in delivered if one.endpoint_epoch]
            assert epochs == sorted(epochs)
            assert len({(one.endpoint_epoch, one.node) for one in delivered}) == len(
                {one.endpoint_epoch for one in delivered}
            )
        hosted: dict[tuple[str, int], str] = {}
        for _, name, event in self.cluster.log:
            if isinstance(event, events.EndpointHosted):
                assert hosted.setdefault((event.endpoint, event.epoch), name) == name, "two nodes own one epoch"

    def settle(self) -> None:
        """Good weather again: everything arrives, or its stream says why not."""
        self.cluster.weather = Weather()
        self.cluster.cut.clear()

        def settled() -> bool:
            ended = {one.stream for one in self.cluster.endings}
            known = {info["stream"] for node in self.cluster.nodes.values() for info in node.streams()}
            # A stream that died with its sender before anybody heard of it has nobody left to be told.
            return all(
                stream in ended
                or stream not in known
                or len(self.cluster.delivered[stream]) == len(self.cluster.sent[stream])
                for streams in self.streams.values()
                for stream in streams
            )

        self.cluster.run_until(settled, 30_000 * MS)
        self.check()


@relaxed
@given(st.integers(0, 2**32), weathers, steps)
def test_everything_arrives_once_and_in_order_while_endpoints_move(seed: int, weather: Weather, plan: list) -> None:  # type: ignore[type-arg]
    story = Story(seed, weather)
    for what, whom, how in plan:
        if what == "send":
            story.send(whom, how)
        elif what == "move":
            story.move(whom, how)
        elif what == "cancel":
            story.cancel(whom)
        else:
            story.cluster.run(how * MS)
        story.check()
    story.settle()
    assert story.cluster.endings == [], "nobody died: no stream may end"


@relaxed
@given(
    st.integers(0, 2**32),
    weathers,
    steps,
    st.sampled_from(NODES),
    st.integers(0, 59),
    st.booleans(),
)
def test_a_death_is_never_silent(seed: int, weather: Weather, plan: list, victim: str, when: int, again: bool) -> None:  # type: ignore[type-arg]
    story = Story(seed, weather)
    for number, (what, whom, how) in enumerate(plan):
        if number == when % len(plan):
            story.cluster.kill(victim)
            if again:
                story.cluster.run(100 * MS)
                story.cluster.start(victim)
        if what == "send":
            story.send(whom, how)
        elif what == "move" and (again or how != victim):
            story.move(whom, how)
        elif what == "wait":
            story.cluster.run(how * MS)
        story.check()
    story.settle()


@relaxed
@given(st.integers(0, 2**32), steps, st.sampled_from(NODES), st.sampled_from(NODES), st.booleans())
def test_a_partition_that_heals_leaves_nothing_hanging(
    seed: int, plan: list, here: str, there: str, both: bool
) -> None:  # type: ignore[type-arg]
    story = Story(seed, Weather())
    for number, (what, whom, how) in enumerate(plan):
        if number == len(plan) // 3:
            story.cluster.cut.add((here, there))
            if both:
                story.cluster.cut.add((there, here))
        if what == "send":
            story.send(whom, how)
        elif what == "move":
            story.move(whom, how)
        elif what == "wait":
            story.cluster.run(how * MS)
        story.check()
    story.settle()


@pytest.mark.slow
def test_many_random_stories() -> None:
    for seed in range(150):
        story = Story(seed, Weather(loss=0.1, repeat=0.1, late=0.1))
        draw = story.cluster.random
        for _ in range(60):
            endpoint = draw.choice("xy")
            story.send(endpoint, draw.choice([0, 1, 10, 5000, 300_000]))
            if draw.random() < 0.3:
                story.move(endpoint, draw.choice(NODES))
            story.cluster.run(draw.randrange(1, 60) * MS)
            story.check()
        story.settle()
        assert story.cluster.endings == []
