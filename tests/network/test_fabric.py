"""Whole networks in virtual time."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, TCP

from faults.impairment import Impairment
from testbed.network import vnet
from testbed.network.fabric import Departure, Fabric
from testbed.network.line import NEVER
from testbed.network.spec import A_TO_B, B_TO_A, FabricSpec, LinkSpec, SwitchSpec
from tests.network.frames import checksums_are_right, ethernet, super_frame

MS = 1_000_000
SECOND = 1_000_000_000


def star(nodes: int, impairment: Impairment | None = None, program: str | None = None, **options: int) -> FabricSpec:
    side = impairment or Impairment()
    links = tuple(LinkSpec(f"n{n}--s", f"n{n}:eth1", f"s:p{n}", side, side) for n in range(1, nodes + 1))
    return FabricSpec(links, (SwitchSpec("s", tuple(f"s:p{n}" for n in range(1, nodes + 1)), program),), **options)


def run(fabric: Fabric) -> list[Departure]:
    """Everything that is still under way, to its end."""
    departures: list[Departure] = []
    while (time := fabric.next_time()) != NEVER:
        departures += fabric.advance(time)
    return departures + fabric.advance(NEVER)


def send(fabric: Fabric, source: int, destination: int, now: int, payload: bytes = b"") -> list[tuple[int, str]]:
    fabric.transmit(f"n{source}:eth1", ethernet(source, destination, payload), now)
    return [(departure.time, departure.port) for departure in run(fabric)]


def introduce(fabric: Fabric, nodes: int) -> None:
    """Let every node say something, so that the switches know it."""
    for node in range(1, nodes + 1):
        fabric.transmit(f"n{node}:eth1", ethernet(node, 0, broadcast=True), 0)
    run(fabric)


def test_a_frame_takes_the_delays_of_all_its_links() -> None:
    fabric = Fabric(star(3, Impairment(delay=2 * MS)))
    introduce(fabric, 3)
    assert send(fabric, 1, 2, SECOND) == [(SECOND + 4 * MS, "n2:eth1")]


def test_bytes_arrive_as_they_were_sent() -> None:
    fabric = Fabric(star(2))
    frame = ethernet(1, 2, bytes(range(256)) * 4)
    fabric.transmit("n1:eth1", frame, 5)
    assert run(fabric) == [Departure(5, "n2:eth1", frame)]


def test_flooding_reaches_every_other_node_once() -> None:
    fabric = Fabric(star(5))
    fabric.transmit("n1:eth1", ethernet(1, 0, broadcast=True), 0)
    assert sorted(departure.port for departure in run(fabric)) == [f"n{n}:eth1" for n in range(2, 6)]


def test_a_link_between_two_nodes_needs_no_switch() -> None:
    link = LinkSpec("l", "n1:eth1", "n2:eth1", Impairment(delay=MS), Impairment(delay=9 * MS))
    fabric = Fabric(FabricSpec((link,)))
    assert send(fabric, 1, 2, 0) == [(MS, "n2:eth1")]
    assert send(fabric, 2, 1, 0) == [(9 * MS, "n1:eth1")]


def test_directions_are_their_own_and_other_links_untouched() -> None:
    """T22: 40 ms there, 10 ms back, and nothing for C and D."""
    fabric = Fabric(star(4))
    introduce(fabric, 4)
    fabric.impair("n1--s", A_TO_B, {"delay": 40 * MS}, SECOND)
    fabric.impair("n1--s", B_TO_A, {"delay": 10 * MS}, SECOND)
    assert send(fabric, 1, 2, SECOND) == [(SECOND + 40 * MS, "n2:eth1")]
    assert send(fabric, 2, 1, 2 * SECOND) == [(2 * SECOND + 10 * MS, "n1:eth1")]
    assert send(fabric, 3, 4, 3 * SECOND) == [(3 * SECOND, "n4:eth1")]
    assert send(fabric, 4, 3, 3 * SECOND) == [(3 * SECOND, "n3:eth1")]


def test_frames_from_a_slow_link_do_not_hold_up_others_at_a_shared_one() -> None:
    """A line far away must not be reserved before the frame is there."""
    links = [
        LinkSpec("n1--s", "n1:eth1", "s:p1", Impairment(delay=100 * MS)),
        LinkSpec("n2--s", "n2:eth1", "s:p2"),
        LinkSpec("n3--s", "n3:eth1", "s:p3", b_to_a=Impairment(rate=8_000_000)),
    ]
    fabric = Fabric(FabricSpec(tuple(links), (SwitchSpec("s", ("s:p1", "s:p2", "s:p3")),)))
    introduce(fabric, 3)
    fabric.transmit("n1:eth1", ethernet(1, 3, bytes(986)), SECOND)
    fabric.transmit("n2:eth1", ethernet(2, 3, bytes(986)), SECOND + MS)
    assert [departure.time for departure in run(fabric)] == [SECOND + 2 * MS, SECOND + 101 * MS]


def test_flows_share_the_rate_of_a_line() -> None:
    spec = star(3, Impairment(rate=8_000_000))
    fabric = Fabric(spec)
    introduce(fabric, 3)
    for number in range(10):
        fabric.transmit("n1:eth1", ethernet(1, 3, bytes(986)), SECOND + number)
        fabric.transmit("n2:eth1", ethernet(2, 3, bytes(986)), SECOND + number)
    times = [departure.time for departure in run(fabric)]
    assert len(times) == 20
    assert times[-1] == pytest.approx(SECOND + 21 * MS, abs=100)


def test_impair_merges_and_restore_gives_the_declared_values_back() -> None:
    """T25"""
    fabric = Fabric(star(2, Impairment(delay=MS, rate=1_000_000_000)))
    fabric.impair("n1--s", A_TO_B, {"loss": 0.5}, 0)
    fabric.impair("n1--s", A_TO_B, {"delay": 5 * MS}, 0)
    assert fabric.impairment("n1--s", A_TO_B) == Impairment(delay=5 * MS, rate=1_000_000_000, loss=0.5)
    fabric.restore("n1--s", A_TO_B, ["delay"], 0)
    assert fabric.impairment("n1--s", A_TO_B) == Impairment(delay=MS, rate=1_000_000_000, loss=0.5)
    fabric.impair("n1--s", A_TO_B, {"loss": 0.0}, 0)
    assert fabric.impairment("n1--s", A_TO_B) == Impairment(delay=MS, rate=1_000_000_000)
    assert fabric.impairment("n1--s", B_TO_A) == Impairment(delay=MS, rate=1_000_000_000)


def test_a_refused_change_changes_nothing() -> None:
    fabric = Fabric(star(2))
    with pytest.raises(ValueError, match="loss"):
        fabric.impair("n1--s", A_TO_B, {"delay": MS, "loss": 2.0}, 0)
    assert fabric.impairment("n1--s", A_TO_B) == Impairment()


def test_a_block_is_one_way_and_hits_frames_under_way() -> None:
    fabric = Fabric(star(3, Impairment(delay=10 * MS)))
    introduce(fabric, 3)
    fabric.transmit("n1:eth1", ethernet(1, 2), SECOND)
    fabric.block("cut", [("n1:eth1", "n2:eth1")], SECOND + MS)
    assert run(fabric) == []
    assert fabric.blocked_frames == 1
    assert send(fabric, 2, 1, 2 * SECOND) == [(2 * SECOND + 20 * MS, "n1:eth1")]
    assert send(fabric, 1, 3, 3 * SECOND) == [(3 * SECOND + 20 * MS, "n3:eth1")]
    fabric.unblock("cut", 4 * SECOND)
    assert send(fabric, 1, 2, 4 * SECOND) == [(4 * SECOND + 20 * MS, "n2:eth1")]


def test_blocks_overlap() -> None:
    fabric = Fabric(star(2))
    pair = [("n1:eth1", "n2:eth1")]
    fabric.block("one", pair, 0)
    fabric.block("two", pair, 0)
    fabric.unblock("one", 0)
    assert send(fabric, 1, 2, 0) == []
    fabric.unblock("two", 0)
    assert send(fabric, 1, 2, 0) == [(0, "n2:eth1")]


def test_broadcasts_pass_a_block_to_those_it_does_not_concern() -> None:
    fabric = Fabric(star(3))
    fabric.block("cut", [("n1:eth1", "n2:eth1")], 0)
    fabric.transmit("n1:eth1", ethernet(1, 0, broadcast=True), 0)
    assert [departure.port for departure in run(fabric)] == ["n3:eth1"]


def test_a_link_that_went_down_is_forgotten_by_its_switch() -> None:
    fabric = Fabric(star(3))
    introduce(fabric, 3)
    assert send(fabric, 1, 2, 0) == [(0, "n2:eth1")]
    fabric.impair("n2--s", B_TO_A, {"down": True}, MS)
    assert send(fabric, 1, 2, MS) == [(MS, "n3:eth1")]
    fabric.restore("n2--s", B_TO_A, ["down"], 2 * MS)
    assert sorted(send(fabric, 1, 2, 2 * MS)) == [(2 * MS, "n2:eth1"), (2 * MS, "n3:eth1")]


def triangle() -> FabricSpec:
    links = [LinkSpec(f"n{n}--s{n}", f"n{n}:eth1", f"s{n}:node") for n in (1, 2, 3)]
    links += [LinkSpec(f"s{a}--s{b}", f"s{a}:to{b}", f"s{b}:to{a}") for a, b in ((1, 2), (2, 3), (3, 1))]
    ports = {1: ("to2", "to3"), 2: ("to1", "to3"), 3: ("to1", "to2")}
    switches = [SwitchSpec(f"s{n}", (f"s{n}:node", *(f"s{n}:{port}" for port in ports[n]))) for n in (1, 2, 3)]
    return FabricSpec(tuple(links), tuple(switches))


def test_switches_in_a_ring_do_not_flood_for_ever() -> None:
    fabric = Fabric(triangle())
    fabric.transmit("n1:eth1", ethernet(1, 0, broadcast=True), 0)
    assert sorted(departure.port for departure in run(fabric)) == ["n2:eth1", "n3:eth1"]


def test_when_a_link_of_the_ring_fails_the_spare_one_takes_over() -> None:
    fabric = Fabric(triangle())
    introduce(fabric, 3)
    fabric.impair("s1--s2", A_TO_B, {"down": True}, MS)
    introduce(fabric, 3)
    assert send(fabric, 1, 2, 2 * MS) == [(2 * MS, "n2:eth1")]
    assert fabric.counters()["s3--s1/b-to-a"].frames > 0


def test_a_packet_program_runs_where_frames_wait() -> None:
    spec = star(2, Impairment(rate=8_000_000), program="trim:2000B")
    fabric = Fabric(spec)
    introduce(fabric, 2)
    frame = bytes(super_frame(IP(src="10.0.0.1", dst="10.0.0.2"), TCP(), bytes(946), 0)[10:])
    fabric.impair("n1--s", A_TO_B, {"rate": 0}, 0)
    for _ in range(6):
        fabric.transmit("n1:eth1", frame, SECOND)
    assert [len(departure.frame) for departure in run(fabric)] == [1000, 1000, 1000, 64, 64, 64]


def test_a_super_frame_takes_the_time_of_all_its_segments() -> None:
    link = LinkSpec("l", "n1:eth1", "n2:eth1", Impairment(rate=1_000_000_000))
    frame = super_frame(IP(src="10.0.0.1", dst="10.0.0.2"), TCP(), bytes(44 * 1460), 1460)
    fabric = Fabric(FabricSpec((link,)), offloads=True)
    fabric.transmit("n1:eth1", frame, 0)
    assert run(fabric) == [Departure(44 * 1514 * 8, "n2:eth1", frame)]
    assert fabric.counters()["l/a-to-b"].bytes == 44 * 1514


def test_where_frames_are_lost_one_by_one_a_super_frame_is_cut_first() -> None:
    """T34"""
    link = LinkSpec("l", "n1:eth1", "n2:eth1", Impairment(loss=0.01))
    frame = super_frame(IP(src="10.0.0.1", dst="10.0.0.2"), TCP(), bytes(44 * 1460), 1460)
    fabric = Fabric(FabricSpec((link,), seed=3), offloads=True)
    for number in range(200):
        fabric.transmit("n1:eth1", frame, number)
    departures = run(fabric)
    counters = fabric.counters()["l/a-to-b"]
    assert counters.frames == 8800
    assert len(departures) == 8800 - counters.lost
    assert counters.lost == pytest.approx(88, rel=0.3)
    assert all(not vnet.is_super(departure.frame) for departure in departures)


def test_a_full_queue_takes_the_segments_of_a_super_frame_that_fit() -> None:
    link = LinkSpec("l", "n1:eth1", "n2:eth1", Impairment(rate=1_000_000_000, queue=50_000))
    frame = super_frame(IP(src="10.0.0.1", dst="10.0.0.2"), TCP(), bytes(20 * 1460), 1460)
    fabric = Fabric(FabricSpec((link,)), offloads=True)
    for _ in range(3):
        fabric.transmit("n1:eth1", frame, 0)
    departures = run(fabric)
    assert sum(vnet.wire_bytes(departure.frame) for departure in departures) == (20 + 50_000 // 1514) * 1514
    assert fabric.counters()["l/a-to-b"].overflowed == 60 - 20 - 33


def test_damage_is_one_bit_and_a_checksum_can_tell() -> None:
    link = LinkSpec("l", "n1:eth1", "n2:eth1", Impairment(corrupt=1.0))
    frame = super_frame(IP(src="10.0.0.1", dst="10.0.0.2"), TCP(), bytes(1000), 0)
    good = vnet.finish_checksum(frame)
    fabric = Fabric(FabricSpec((link,)), offloads=True)
    for number in range(50):
        fabric.transmit("n1:eth1", frame, number)
    for departure in run(fabric):
        difference = int.from_bytes(departure.frame, "big") ^ int.from_bytes(good, "big")
        assert difference.bit_count() == 1
        if difference.bit_length() <= (len(good) - vnet.HEADER_BYTES - 14) * 8:
            assert not checksums_are_right(departure.frame[vnet.HEADER_BYTES :])


def test_frames_above_the_mtu_of_a_link_do_not_pass() -> None:
    fabric = Fabric(star(2))
    assert send(fabric, 1, 2, 0, bytes(1500)) == [(0, "n2:eth1")]
    assert send(fabric, 1, 2, 0, bytes(1505)) == []
    assert fabric.counters()["n1--s/a-to-b"].oversized == 1


def test_two_runs_with_one_seed_are_the_same() -> None:
    def once(seed: int) -> list[Departure]:
        fabric = Fabric(star(3, Impairment(loss=0.2, jitter=MS, duplicate=0.2, corrupt=0.1), seed=seed))
        for number in range(300):
            fabric.transmit(f"n{number % 3 + 1}:eth1", ethernet(number % 3 + 1, (number + 1) % 3 + 1), number * MS)
        return run(fabric)

    assert once(1) == once(1)
    assert once(1) != once(2)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (FabricSpec((LinkSpec("l", "a:1", "b:1"), LinkSpec("l", "c:1", "d:1"))), "same name"),
        (FabricSpec((LinkSpec("l", "a:1", "b:1"), LinkSpec("m", "a:1", "d:1"))), "'a:1' is an end of l and of m"),
        (FabricSpec((), (SwitchSpec("s", ("p",)), SwitchSpec("t", ("p",)))), "'p' belongs to s and to t"),
        (FabricSpec((LinkSpec("l", "a:1", "b:1", Impairment(loss=7)),)), "link l, a-to-b: loss"),
        (FabricSpec((), (SwitchSpec("s", ("p",), "teleport"),)), "packet program 'teleport'"),
    ],
)
def test_a_network_that_cannot_be_is_refused(spec: FabricSpec, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Fabric(spec)


def test_unknown_names_are_refused_with_what_there_is() -> None:
    fabric = Fabric(star(2))
    with pytest.raises(ValueError, match="links are n1--s, n2--s"):
        fabric.impair("n9--s", A_TO_B, {}, 0)
    with pytest.raises(ValueError, match="expected a-to-b or b-to-a"):
        fabric.impair("n1--s", "both", {}, 0)
    with pytest.raises(ValueError, match="its edges are n1:eth1, n2:eth1"):
        fabric.transmit("s:p1", ethernet(1, 2), 0)
    with pytest.raises(ValueError, match="is not an edge"):
        fabric.block("b", [("n1:eth1", "s:p1")], 0)
    with pytest.raises(ValueError, match="nothing is blocked under the name 'b'"):
        fabric.unblock("b", 0)
    with pytest.raises(ValueError, match="unknown parameter colour"):
        fabric.restore("n1--s", A_TO_B, ["colour"], 0)
