"""Situations that break communication systems in practice, each with its neighbours: a step earlier and later, the
other side, twice.
"""

from __future__ import annotations

import pytest
from situation import Situation

from connex.core import events
from connex.core.errors import LocalProtocolError
from connex.core.frames import Frame, FrameType
from connex.core.identity import TrafficClass
from testbed.simulation.cluster import MS

SHARES = (0, 25, 50, 99, 100)


def data_of(frame: Frame, stream: int) -> bool:
    return frame.type == FrameType.DATA and frame.stream == stream


# M1: a worker dies in the middle of a large transfer


@pytest.mark.parametrize("victim", ["sender", "receiver"])
@pytest.mark.parametrize("share", SHARES)
def test_m1_a_death_in_the_middle_of_a_transfer(victim: str, share: int) -> None:
    situation = Situation()
    cluster = situation.cluster
    cluster.host("d", "sink")
    stream = situation.open("c", "z", "sink", TrafficClass.KV)
    cluster.run(30 * MS)
    size = 8 << 20
    moved = [0]

    def watch(here: str, there: str, frame: Frame) -> bool:
        if data_of(frame, stream):
            moved[0] += len(frame.payload)
            if moved[0] >= size * share // 100 and "d" in cluster.nodes and "c" in cluster.nodes:
                cluster.after(0, lambda: "d" in cluster.nodes and "c" in cluster.nodes and situation.kill(dead))  # type: ignore[func-returns-value]
        return True

    dead = "c" if victim == "sender" else "d"
    situation.lose(watch)
    situation.oracles.sent(stream, size)
    assert cluster.send("z", stream, bytes(size))
    situation.talk(100)
    situation.settle()
    assert not cluster.delivered[stream] or len(cluster.delivered[stream][0].payload) == size, "no half message"
    assert any(ending.stream == stream for ending in cluster.endings) or cluster.delivered[stream]
    others = [one for one, sender in situation.streams.items() if sender in ("x", "y")]
    assert situation.untouched(*others)


# M3, M26: late frames meet a new owner; old data overtakes the commit


@pytest.mark.parametrize("late", [1, 20, 100, 290])
@pytest.mark.parametrize(
    "kind", [FrameType.DATA, FrameType.ACK, FrameType.COMMIT, FrameType.COMMITTED, FrameType.RELEASE]
)
def test_m3_m26_frames_that_are_held_beyond_the_cutover(kind: FrameType, late: int) -> None:
    situation = Situation(ordered=False)
    cluster = situation.cluster
    cluster.channels.fates.append(lambda here, there, frame: [late * MS] if frame.type == kind else [0])
    cluster.move("y", "d")
    situation.talk(60)
    cluster.move("x", "b")
    situation.talk(400, every=20)
    cluster.channels.fates.clear()
    situation.settle()
    assert situation.untouched(*situation.streams)


# M4: acknowledgements are lost at the cutover


@pytest.mark.parametrize("direction", [("b", "a"), ("d", "a"), ("b", "c"), ("a", "b")])
def test_m4_acknowledgements_lost_at_the_cutover(direction: tuple[str, str]) -> None:
    situation = Situation(ordered=False)
    situation.lose(lambda here, there, frame: (here, there) != direction or frame.type != FrameType.ACK)
    situation.cluster.move("y", "d")
    situation.talk(300)
    situation.settle()
    assert situation.untouched(*situation.streams)


# M5: a worker restarts on the same address


@pytest.mark.parametrize("after", [5, 100, 400, 900])
@pytest.mark.parametrize("times", [1, 2])
def test_m5_a_restart_on_the_same_address(after: int, times: int) -> None:
    situation = Situation()
    for _ in range(times):
        situation.restart("b", after)
        situation.talk(200)
    situation.settle()
    assert situation.causes() <= {"owner-restarted", "owner-died", "unknown-stream", "endpoint-unknown"}
    others = [
        stream for stream, sender in situation.streams.items() if situation.oracles.routes[stream][1] == "x" != sender
    ]
    assert situation.untouched(*[stream for stream in others if situation.streams[stream] == "z"])
    situation.cluster.host("b", "y2")
    situation.cluster.run(50 * MS)
    fresh = situation.open("a", "x", "y2", TrafficClass.TOKEN)
    situation.streams = {fresh: "x"}
    situation.talk(50)
    situation.settle()
    assert situation.untouched(fresh), "peers go on without a restart of their own"


# M10, M11, M12: half-open, partial and one-way


@pytest.mark.parametrize("traffic", [True, False], ids=["in flight", "idle"])
def test_m10_a_peer_that_vanishes_without_a_word(traffic: bool) -> None:
    situation = Situation()
    cluster = situation.cluster
    cluster.cut |= {(other, "b") for other in "acd"} | {("b", other) for other in "acd"}
    begun = cluster.now
    if traffic:
        situation.talk(100)
    cluster.run_until(lambda: bool(cluster.seen(events.PeerChanged, state="dead")), 3_000 * MS)
    assert cluster.now - begun <= 2 * cluster.config.dead_after
    situation.talk(1_000, every=50)
    situation.settle()


@pytest.mark.parametrize("lasts", [100, 400, 600, 3_000])
@pytest.mark.parametrize("cut", ["both", "a to b", "b to a"])
def test_m11_m12_two_nodes_that_do_not_see_each_other_while_both_see_the_rest(cut: str, lasts: int) -> None:
    situation = Situation()
    cluster = situation.cluster
    cluster.cut |= {"both": {("a", "b"), ("b", "a")}, "a to b": {("a", "b")}, "b to a": {("b", "a")}}[cut]
    situation.talk(lasts, every=20)
    assert cluster.peer_states("c") == {"a": "alive", "b": "alive"}, "whoever sees both does not flap"
    situation.settle()
    owners = [binding.endpoint for node in cluster.nodes.values() for binding in node.owned()]
    assert sorted(owners) == ["x", "y", "z"], "never two owners"


# M13: a paused owner wakes up after everybody has given it up


@pytest.mark.parametrize("lasts", [150, 450, 600, 2_000])
@pytest.mark.parametrize("times", [1, 2])
def test_m13_an_owner_that_sleeps(lasts: int, times: int) -> None:
    situation = Situation()
    for _ in range(times):
        situation.cluster.pause("b")
        situation.talk(lasts, every=20)
        situation.cluster.resume("b")
        situation.talk(200)
    situation.settle()
    if lasts < 450:
        assert situation.untouched(*situation.streams), "a short sleep costs nothing"


# M16: the consumer closes during a handover


@pytest.mark.parametrize("at", list(range(0, 40, 2)))
@pytest.mark.parametrize("who", ["sender", "receiver"])
@pytest.mark.parametrize("moves", ["x", "y"])
def test_m16_a_stream_is_ended_while_an_end_of_it_moves(at: int, who: str, moves: str) -> None:
    situation = Situation()
    cluster = situation.cluster
    stream = next(one for one, sender in situation.streams.items() if sender == "x")
    cluster.move(moves, "d")
    cluster.run(at * MS // 20)
    owner = cluster.owner("x" if who == "sender" else "y")
    try:
        if who == "sender":
            cluster.do(owner, lambda node: node.close(stream, cluster.now))
        else:
            cluster.do(owner, lambda node: node.reset(stream, "enough", cluster.now))
    except LocalProtocolError:
        pass  # a handover holds the endpoint: said by name, to be tried again
    situation.talk(200)
    situation.settle()
    assert not [one for one in situation.cluster.nodes.values() if one.handovers()]
    others = [one for one in situation.streams if one != stream]
    assert situation.untouched(*others)


# M18: crossing moves and ping-pong


@pytest.mark.parametrize("times", [1, 2, 20])
def test_m18_crossing_moves_and_ping_pong(times: int) -> None:
    situation = Situation()
    cluster = situation.cluster
    epochs = []
    for turn in range(times):
        cluster.move("x", "b" if turn % 2 == 0 else "a")
        cluster.move("y", "a" if turn % 2 == 0 else "b")
        situation.talk(40)
        epochs += [
            binding.epoch for node in cluster.nodes.values() for binding in node.owned() if binding.endpoint == "x"
        ]
    situation.settle()
    assert epochs == sorted(set(epochs))
    assert situation.untouched(*situation.streams)


# M19, M20: joins and leaves within a moment; a joiner that dies


@pytest.mark.parametrize("seed", range(5))
def test_m19_join_and_leave_within_ten_milliseconds(seed: int) -> None:
    situation = Situation(seed=seed)
    cluster = situation.cluster
    draw = cluster.random
    for _ in range(20):
        cluster.do("d", lambda node: node.leave(cluster.now))
        cluster.run(draw.randrange(10) * MS + 1)
        situation.kill("d")
        cluster.run(draw.randrange(10) * MS + 1)
        situation.start("d")
        cluster.run(draw.randrange(10) * MS + 1)
    situation.talk(100)
    situation.settle()
    cluster.run(3_000 * MS)
    assert situation.views() == {frozenset("abcd")}, "one view"
    assert situation.untouched(*situation.streams)


@pytest.mark.parametrize("at", range(8))
def test_m20_a_joiner_that_dies_in_its_first_exchange(at: int) -> None:
    situation = Situation()
    situation.kill("d")
    situation.talk(50)
    situation.start("d")
    situation.cluster.run(at * situation.cluster.weather.delay)
    situation.kill("d")
    situation.talk(100)
    situation.settle()
    assert situation.untouched(*situation.streams)


# M31: no path that fails looks like success: the oracles compare every byte in each of the above
