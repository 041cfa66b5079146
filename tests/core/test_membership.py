"""Who is there: what everybody learns, and what it costs when there are many."""

from __future__ import annotations

import pytest

from connex.core.frames import FrameType
from connex.core.membership import Membership
from testbed.simulation.cluster import MS, Cluster

QUIET = 5_000 * MS


def crowd(size: int) -> Cluster:
    """So many nodes, all joined at the first; every tenth hosts an endpoint."""
    cluster = Cluster(tuple(f"n{number}" for number in range(size)))
    seed = cluster.nodes["n0"].me.locator
    for name in cluster.names[1:]:
        cluster.join(name, seed)
        cluster.run(1 * MS)
    for name in cluster.names[::10]:
        cluster.host(name, f"e-{name}")
    cluster.run(QUIET)
    return cluster


def cost(cluster: Cluster) -> tuple[float, float]:
    """Bytes that a node sends in a second of quiet: on average, and at most."""
    cluster.frames.clear()
    cluster.run(QUIET)
    sent = dict.fromkeys(cluster.names, 0)
    for _, here, _, frame in cluster.frames:
        sent[here] += 56 + len(frame.payload)
    return sum(sent.values()) / len(sent) / 5, max(sent.values()) / 5


def test_everybody_knows_everybody_and_every_endpoint() -> None:
    cluster = crowd(60)
    for node in cluster.nodes.values():
        assert {member.node for member in node.members()} == set(cluster.names) - {node.me.node}
        assert all(node.binding(f"e-{name}") is not None for name in cluster.names[::10])


@pytest.mark.slow
def test_two_hundred_nodes_cost_each_what_fifty_do() -> None:
    small, large = cost(crowd(50)), cost(crowd(200))
    assert large[0] < 1.3 * small[0], "the average node"
    assert large[1] < 1.3 * 4 * small[1], "the seed answers all of them: four times as many, not more than so much"


def test_without_digests_everything_is_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wise = cost(crowd(30))[0]
    numbers = iter(range(1_000_000_000))
    monkeypatch.setattr(Membership, "_digest", lambda self: next(numbers).to_bytes(8, "big"))
    assert cost(crowd(30))[0] > 5 * wise


def test_what_was_missed_is_repaired_by_the_next_exchanges() -> None:
    cluster = crowd(5)
    cluster.filters.append(lambda here, there, frame: "n4" not in (here, there) or frame.type == FrameType.HEARTBEAT)
    cluster.host("n1", "late")
    cluster.run(100 * MS)
    assert cluster.nodes["n4"].binding("late") is None
    cluster.filters.clear()
    cluster.run(4_000 * MS)
    known = cluster.nodes["n4"].binding("late")
    assert known is not None
    assert known.node == "n1"
