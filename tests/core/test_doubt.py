"""A commit in doubt: what the source concludes, and that nobody is ever served by both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest

from connex.core import events
from connex.core.config import Config
from connex.core.doubt import Doubts
from connex.core.errors import LocalProtocolError
from connex.core.frames import Frame, FrameType
from connex.core.routing import Routing
from connex.core.witness import Witnesses
from testbed.simulation.cluster import MS, Cluster

NAMES = ("s", "t", "p", "q")
PROTOCOL = (
    FrameType.PREPARE,
    FrameType.PREPARED,
    FrameType.COMMIT,
    FrameType.COMMITTED,
    FrameType.RELEASE,
    FrameType.RELEASED,
    FrameType.ANNOUNCE,
    FrameType.FENCE,
)


def between(source: str, target: str) -> Callable[[str, str, Frame], bool]:
    return lambda here, there, frame: {here, there} != {source, target}


def scene(seed: int = 0) -> tuple[Cluster, int, int, int]:
    """e on s takes a stream from each of p and q, and sends one to p; its way will be to t."""
    cluster = Cluster(NAMES, seed, Config(handover_timeout=5_000 * MS))
    cluster.introduce()
    cluster.host("s", "e")
    cluster.host("p", "p1")
    cluster.host("q", "q1")
    cluster.run(20 * MS)
    from_p = cluster.open("p", "p1", "e")
    from_q = cluster.open("q", "q1", "e")
    to_p = cluster.open("s", "e", "p1")
    cluster.run(50 * MS)
    for stream, name in ((from_p, "p1"), (from_q, "q1"), (to_p, "e")):
        assert cluster.send(name, stream, b"before")
    cluster.run(50 * MS)
    return cluster, from_p, from_q, to_p


def connect(cluster: Cluster) -> None:
    """All nodes have channels with each other, as after a while of work."""
    for here, there in product(NAMES, NAMES):
        if here < there and here in cluster.nodes and there in cluster.nodes:
            cluster.connect(here, there)
    cluster.run(20 * MS)


def talk(cluster: Cluster, streams: dict[int, str], text: bytes) -> None:
    for stream, name in streams.items():
        cluster.send(name, stream, text)
    cluster.run(100 * MS)


def whole(cluster: Cluster, *streams: int) -> None:
    for stream in streams:
        assert cluster.payloads(stream) == cluster.sent[stream], f"stream {stream:016x}"


def steps(cluster: Cluster, node: str) -> list[str]:
    return [event.step for _, name, event in cluster.log if isinstance(event, events.HandoverChanged) and name == node]


def in_doubt(accepted: bool) -> tuple[Cluster, tuple[int, int, int]]:
    """t is cut off from s just before or just after it has the COMMIT; s is in doubt."""
    cluster, *streams = scene()
    connect(cluster)
    gone: list[bool] = []

    def cut(here: str, there: str, frame: Frame) -> bool:
        late = bool(gone)
        if here == "s" and frame.type == FrameType.COMMIT:
            gone.append(True)
        lost = late if accepted else bool(gone)
        # Anti-entropy or a late frame would often tell the source before it knows that it is in doubt.
        return not (lost and {here, there} == {"s", "t"}) and not (
            there == "s" and gone and frame.type in (FrameType.JOIN, FrameType.STALE)
        )

    cluster.filters.append(cut)
    cluster.move("e", "t")
    cluster.run_until(lambda: "doubt" in steps(cluster, "s"))
    return cluster, (streams[0], streams[1], streams[2])


def test_the_target_never_got_the_commit_and_the_source_goes_on_under_an_epoch_after_it() -> None:
    cluster, (from_p, from_q, to_p) = in_doubt(accepted=False)
    cluster.run(500 * MS)
    assert cluster.owner("e") == "s"
    binding = cluster.nodes["s"].binding("e")
    assert binding is not None
    assert binding.epoch == 3
    assert cluster.seen(events.EndpointResumed, endpoint="e", epoch=3)
    talk(cluster, {from_p: "p1", from_q: "q1", to_p: "e"}, b"after")
    whole(cluster, from_p, from_q, to_p)
    assert cluster.endings == []


def test_the_target_committed_and_one_peer_says_so() -> None:
    cluster, (from_p, from_q, to_p) = in_doubt(accepted=True)
    cluster.run(500 * MS)
    assert cluster.owner("e") == "t"
    assert "completed" in steps(cluster, "s")
    talk(cluster, {from_p: "p1", from_q: "q1", to_p: "e"}, b"after")
    whole(cluster, from_p, from_q, to_p)
    assert cluster.endings == []


def test_a_target_that_returns_after_the_source_went_on_steps_back() -> None:
    cluster, (from_p, from_q, to_p) = in_doubt(accepted=False)
    cluster.run(500 * MS)
    cluster.filters.clear()
    cluster.run(3000 * MS)
    talk(cluster, {from_p: "p1", from_q: "q1", to_p: "e"}, b"after")
    assert cluster.owner("e") == "s"
    assert cluster.nodes["t"].owned() == []
    assert cluster.nodes["t"].handovers() == []
    whole(cluster, from_p, from_q, to_p)


def test_a_target_that_committed_unseen_serves_nobody_and_is_fenced() -> None:
    """t accepts, but nobody hears of it: s goes on, and t has not delivered anything."""
    cluster, from_p, from_q, to_p = scene()
    connect(cluster)
    committed: list[bool] = []

    def isolate(here: str, there: str, frame: Frame) -> bool:
        lost = bool(committed) and "t" in (here, there)
        committed.extend([True] if frame.type == FrameType.COMMIT else [])
        return not lost

    cluster.filters.append(isolate)
    cluster.send("p1", from_p, b"on its way")
    cluster.move("e", "t")
    cluster.run_until(lambda: bool(cluster.seen(events.EndpointResumed)))
    assert [one.endpoint for one in cluster.nodes["t"].owned()] == ["e"]
    talk(cluster, {from_p: "p1", from_q: "q1", to_p: "e"}, b"after")
    assert {one.node for one in cluster.delivered[from_p]} == {"s"}
    cluster.filters.clear()
    cluster.run(3000 * MS)
    assert cluster.nodes["t"].owned() == []
    talk(cluster, {from_p: "p1", from_q: "q1", to_p: "e"}, b"later")
    whole(cluster, from_p, from_q, to_p)
    assert cluster.endings == []


def test_an_endpoint_without_streams_waits_at_its_target_for_the_source() -> None:
    cluster = Cluster(NAMES)
    cluster.introduce()
    cluster.host("s", "e")
    quiet = (FrameType.COMMITTED, FrameType.RELEASE, FrameType.ANNOUNCE, FrameType.JOIN)
    cluster.filters.append(lambda here, there, frame: frame.type not in quiet)
    cluster.move("e", "t")
    cluster.run(100 * MS)
    cluster.cut |= {("s", "t"), ("t", "s")}
    cluster.run_until(lambda: bool(cluster.seen(events.EndpointResumed)))
    with pytest.raises(LocalProtocolError, match="has not completed"):
        cluster.nodes["t"].begin_handover("e", "p", 0, False, cluster.now)
    cluster.cut.clear()
    cluster.filters.clear()
    cluster.run(3000 * MS)
    assert cluster.owner("e") == "s"
    assert cluster.nodes["t"].owned() == []


def test_nobody_can_say_and_the_endpoint_stays_frozen_until_somebody_returns() -> None:
    cluster, _from_p, _from_q, _to_p = scene()
    connect(cluster)
    cluster.filters.append(lambda here, there, frame: frame.type != FrameType.COMMIT)
    cluster.move("e", "t")
    cluster.run(50 * MS)
    cluster.filters[:] = [lambda here, there, frame: "s" not in (here, there)]
    cluster.run(10_000 * MS)
    assert cluster.nodes["s"].is_frozen("e")
    assert not cluster.seen(events.EndpointResumed)
    cluster.filters.clear()
    cluster.run(3000 * MS)
    assert not cluster.nodes["s"].is_frozen("e")
    assert cluster.owner("e") == "s"


def test_a_peer_that_cannot_be_asked_is_given_up_by_resetting_its_streams() -> None:
    cluster, from_p, from_q, to_p = scene()
    connect(cluster)
    cluster.filters.append(lambda here, there, frame: frame.type != FrameType.COMMIT)
    cluster.move("e", "t")
    cluster.run(50 * MS)
    cluster.kill("t")
    cluster.kill("q")
    cluster.run(3000 * MS)
    talk(cluster, {from_p: "p1", to_p: "e"}, b"after")
    assert cluster.owner("e") == "s"
    whole(cluster, from_p, to_p)
    assert [(one.stream, one.cause, one.node) for one in cluster.endings] == [(from_q, "handover-in-doubt", "s")]


def test_the_end_of_a_stream_that_moved_before_it_was_asked_for_must_promise_too() -> None:
    """p1 has gone to q, which s does not know yet: the answer of p sends s there."""
    cluster, from_p, from_q, to_p = scene()
    connect(cluster)
    cluster.filters.append(lambda here, there, frame: frame.type != FrameType.COMMIT)
    cluster.move("e", "t")
    cluster.run(20 * MS)
    cluster.filters.append(lambda here, there, frame: frame.type != FrameType.ANNOUNCE or there != "s")
    cluster.filters.append(lambda here, there, frame: {here, there} != {"q", "s"} or frame.type != FrameType.ACK)
    cluster.filters.append(between("s", "t"))
    cluster.filters[0] = lambda here, there, frame: frame.type != FrameType.COMMIT or there != "t"
    cluster.move("p1", "q")
    cluster.run_until(lambda: bool(cluster.seen(events.EndpointResumed)))
    asked = {there for _, here, there, frame in cluster.frames if here == "s" and frame.type == FrameType.FENCE}
    assert asked == {"p", "q"}
    cluster.filters.clear()
    cluster.run(1000 * MS)
    talk(cluster, {from_p: "p1", from_q: "q1", to_p: "e"}, b"after")
    whole(cluster, from_p, from_q, to_p)
    assert cluster.endings == []


def test_a_promise_goes_with_the_end_that_moves() -> None:
    """p has promised; p1 then moves to q, which must not follow the epoch in doubt either."""
    cluster, from_p, from_q, to_p = scene()
    connect(cluster)
    cluster.filters.append(between("s", "t"))
    cluster.filters.append(lambda here, there, frame: here != "q" or there != "s" or frame.type != FrameType.FENCE)
    cluster.filters[0] = lambda here, there, frame: (
        {here, there} != {"s", "t"}
        or frame.type
        not in (
            FrameType.COMMIT,
            FrameType.HEARTBEAT,
            FrameType.ABORT,
        )
    )
    cluster.move("e", "t")
    cluster.run_until(lambda: bool(cluster.seen(events.FenceChanged, endpoint="e", step="promised")))
    cluster.move("p1", "t")
    cluster.run(200 * MS)
    assert cluster.seen(events.FenceChanged, endpoint="e", source="s", step="promised")
    assert any(name == "t" for _, name, event in cluster.log if isinstance(event, events.FenceChanged))
    cluster.filters.clear()
    cluster.run(3000 * MS)
    assert not cluster.seen(events.FenceChanged, step="broken")
    talk(cluster, {from_p: "p1", from_q: "q1", to_p: "e"}, b"after")
    whole(cluster, from_p, from_q, to_p)


def test_a_peer_that_takes_the_source_for_dead_breaks_its_promise_only_with_a_reset() -> None:
    cluster, from_p, _from_q, to_p = scene()
    connect(cluster)
    committed: list[bool] = []

    def isolate(here: str, there: str, frame: Frame) -> bool:
        lost = bool(committed) and "t" in (here, there)
        committed.extend([True] if frame.type == FrameType.COMMIT else [])
        return not lost

    cluster.filters.append(isolate)
    cluster.filters.append(lambda here, there, frame: here != "q" or frame.type != FrameType.FENCE)
    cluster.move("e", "t")
    cluster.run_until(lambda: bool(cluster.seen(events.FenceChanged, step="promised")))
    cluster.kill("s")
    cluster.filters.clear()
    cluster.run(4000 * MS)
    assert {one.cause for one in cluster.endings} <= {"handover-in-doubt", "owner-died", "unknown-stream"}
    assert {one.stream for one in cluster.endings} >= {from_p, to_p}
    assert not cluster.nodes["p"].streams()
    fresh = cluster.open("p", "p1", "e")
    cluster.send("p1", fresh, b"a new stream")
    cluster.run(1000 * MS)
    assert cluster.owner("e") == "t"
    assert not cluster.payloads(fresh), "what p has seen since proves nothing: s might live, and hold its promise"
    cluster.start("s")
    cluster.join("s", cluster.nodes["p"].me.locator)
    cluster.run(2500 * MS)
    assert cluster.payloads(fresh) == [b"a new stream"], "that life of s is over"


def test_what_is_left_of_the_other_life_of_a_target_proves_nothing() -> None:
    """The target commits, is seen by nobody, dies and starts again: its new life's ignorance is no proof."""
    cluster, from_p, from_q, to_p = scene()
    connect(cluster)
    cluster.filters.append(lambda here, there, frame: here != "t" or frame.type in (FrameType.PREPARED, FrameType.ACK))
    cluster.filters.append(lambda here, there, frame: frame.type != FrameType.FENCE)
    cluster.move("e", "t")
    cluster.run_until(lambda: "committed" in steps(cluster, "t"))
    cluster.kill("t")
    cluster.run(20 * MS)
    cluster.start("t")
    del cluster.filters[0]
    cluster.run(500 * MS)
    assert cluster.nodes["s"].is_frozen("e"), "only the peers can say, and they cannot be asked"
    cluster.filters.clear()
    cluster.run(1500 * MS)
    talk(cluster, {from_p: "p1", from_q: "q1", to_p: "e"}, b"after")
    whole(cluster, from_p, from_q, to_p)


def test_a_node_that_leaves_in_doubt_leaves_the_endpoint_to_its_target() -> None:
    cluster, (from_p, from_q, to_p) = in_doubt(accepted=True)
    cluster.run(300 * MS)
    cluster.do("s", lambda node: node.leave(cluster.now))
    cluster.run(500 * MS)
    talk(cluster, {from_p: "p1", from_q: "q1", to_p: "e"}, b"after")
    assert cluster.owner("e") == "t"
    whole(cluster, from_p, from_q, to_p)


# Every message of the protocol, every fault


def faults() -> Iterator[tuple[FrameType, int, str]]:
    for kind in PROTOCOL:
        for count in (1, 2):
            for what in (
                *(f"kill {name}" for name in NAMES),
                *(f"cut {pair}" for pair in ("s-t", "t-s", "s-p", "t-p", "p-s", "p-t")),
                *(f"part {pair}" for pair in ("s-t", "s-p", "t-p")),
                "pause s",
                "pause t",
                "restart s",
                "restart t",
            ):
                yield kind, count, what


def strike(cluster: Cluster, what: str) -> None:
    verb, whom = what.split()
    if verb in ("kill", "restart"):
        cluster.after(0, lambda: cluster.kill(whom))
        if verb == "restart":
            cluster.after(30 * MS, lambda: cluster.start(whom) and None)  # type: ignore[func-returns-value]
    elif verb == "pause":
        cluster.after(0, lambda: cluster.stopped.add(whom))
        cluster.after(2500 * MS, lambda: cluster.stopped.discard(whom))
    else:
        here, there = whom.split("-")
        pairs = {(here, there)} | ({(there, here)} if verb == "part" else set())
        cluster.after(0, lambda: cluster.cut.update(pairs))
        cluster.after(4000 * MS, lambda: cluster.restore(*pairs))


def tried(kind: FrameType, count: int, what: str) -> Cluster:
    """Strike when the count-th frame of that type is on its way, go on talking, and let everything heal."""
    cluster, from_p, from_q, to_p = scene()
    connect(cluster)
    seen = [0]

    def watch(here: str, there: str, frame: Frame) -> bool:
        if frame.type == kind:
            seen[0] += 1
            if seen[0] == count:
                strike(cluster, what)
        return True

    if kind is FrameType.FENCE:
        cluster.filters.append(lambda here, there, frame: frame.type != FrameType.COMMIT or cluster.now > until)
    until = cluster.now + 2000 * MS
    cluster.filters.append(watch)
    cluster.move("e", "t")
    names = {from_p: "p1", from_q: "q1", to_p: "e"}
    for number in range(60):
        for stream, name in names.items():
            cluster.send(name, stream, b"%d" % number)
        cluster.run((5 if number < 30 else 200) * MS)
    cluster.run(6000 * MS)
    return cluster


def judge(cluster: Cluster) -> None:
    """C1, C2 and C6: a prefix in order, once, on one line of owners; the whole, or an explicit end at the living."""
    names = {
        (event.stream, side): name
        for _, _, event in cluster.log
        if isinstance(event, events.StreamOpened)
        for side, name in (("sender", event.sender), ("receiver", event.receiver))
    }
    abandoned = {
        (name, event.endpoint, event.epoch)
        for _, name, event in cluster.log
        if isinstance(event, events.EndpointReleased) and event.cause == "fenced"
    }
    left = {one[:2] for one in abandoned}
    for stream, sent in cluster.sent.items():
        receiver = names[stream, "receiver"]
        line = [one for one in cluster.delivered[stream] if (one.node, receiver, one.endpoint_epoch) not in abandoned]
        got = [one.payload for one in line]
        ended = {
            one.side
            for one in cluster.endings
            if one.stream == stream and (one.node, names[stream, one.side]) not in left
        }
        assert got == sent[: len(got)], f"stream {stream:016x}: order or number"
        assert ended or len(line) == len(cluster.delivered[stream]), f"stream {stream:016x}: served twice"
        if not ended:
            assert got == sent, f"stream {stream:016x}: silently short"
        for name, node in cluster.nodes.items():
            for info in node.streams():
                if info["stream"] == stream:
                    other = "sender" if info["side"] == "receiver" else "receiver"
                    assert other not in ended or info["side"] in ended, f"{name} still has half of {stream:016x}"
    owners = [(name, one.endpoint) for name, node in cluster.nodes.items() for one in node.owned()]
    endpoints = [endpoint for _, endpoint in owners]
    assert len(endpoints) == len(set(endpoints)), f"two owners: {owners}"
    for name, node in cluster.nodes.items():
        assert node.handovers() == [], f"{name} has not finished a handover"
        assert not any(node.is_frozen(endpoint) for _, endpoint in owners)


@pytest.mark.parametrize("kind", PROTOCOL, ids=lambda kind: kind.name)
def test_a_fault_at_every_message_of_the_protocol(kind: FrameType) -> None:
    for message, count, what in faults():
        if message is kind:
            try:
                judge(tried(kind, count, what))
            except AssertionError as error:
                raise AssertionError(f"{what} at the {count}. {kind.name}: {error}") from error


# Broken protocols are noticed


def found() -> bool:
    """Whether the judge sees red for any of the faults that leave a commit in doubt."""
    for kind, what in product((FrameType.COMMIT, FrameType.COMMITTED, FrameType.FENCE), ("part s-t", "cut t-s")):
        try:
            judge(tried(kind, 1, what))
        except AssertionError:
            return True
    return False


def test_the_sound_protocol_is_not_called_broken() -> None:
    assert not found()


def unread() -> Cluster:
    """Messages wait at s and go with e to t, which is cut off from all as soon as it has accepted."""
    cluster, from_p, *_ = scene()
    connect(cluster)
    cluster.reading = False
    for number in range(3):
        cluster.send("p1", from_p, b"%d" % number)
    cluster.run(50 * MS)
    committed: list[bool] = []

    def isolate(here: str, there: str, frame: Frame) -> bool:
        lost = bool(committed) and "t" in (here, there)
        if frame.type == FrameType.COMMIT:
            committed.append(True)
            cluster.reading = True
        return not lost

    cluster.filters.append(isolate)
    cluster.move("e", "t")
    cluster.run(3000 * MS)
    cluster.filters.clear()
    cluster.run(3000 * MS)
    return cluster


def test_messages_that_went_with_a_lost_handover_are_delivered_once() -> None:
    judge(unread())


def test_a_target_that_serves_before_anybody_has_seen_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Witnesses, "restrict", lambda self, endpoint, *_: self._moving.serve(endpoint, 0))
    with pytest.raises(AssertionError, match="served twice"):
        judge(unread())


def between_promises() -> Cluster:
    """t has committed and is heard again after p has promised, but before q has: s goes on nevertheless."""
    cluster, from_p, *_ = scene()
    connect(cluster)
    committed: list[bool] = []

    def isolate(here: str, there: str, frame: Frame) -> bool:
        lost = bool(committed) and ({here, there} == {"s", "t"} or (here == "t" and frame.type != FrameType.HEARTBEAT))
        committed.extend([True] if frame.type == FrameType.COMMIT else [])
        return not lost

    cluster.filters.append(isolate)
    cluster.filters.append(lambda here, there, frame: here != "q" or frame.type != FrameType.FENCE)
    cluster.move("e", "t")
    cluster.run_until(lambda: bool(cluster.seen(events.FenceChanged, step="promised")))
    cluster.filters[0] = lambda here, there, frame: {here, there} not in ({"s", "t"}, {"q", "t"})
    for number in range(5):
        cluster.send("p1", from_p, b"%d" % number)
        cluster.run(60 * MS)
    del cluster.filters[1]
    cluster.run(3000 * MS)
    cluster.filters.clear()
    cluster.run(3000 * MS)
    return cluster


def test_a_target_that_is_heard_between_two_promises_comes_too_late() -> None:
    judge(between_promises())


def test_peers_that_forget_their_promise_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Routing, "_held_to_promise", lambda *_: False)
    with pytest.raises(AssertionError):
        judge(between_promises())


def test_a_source_that_does_not_wait_for_promises_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: Doubts, handover: object, now: int) -> None:
        self._source.resume(handover, [], "", now)  # type: ignore[arg-type]

    monkeypatch.setattr(Doubts, "_ask", at_once)
    assert found()
