"""Learning, flooding, forgetting."""

from __future__ import annotations

import pytest

from testbed.network.switch import AGE, TABLE_LIMIT, Switch
from testbed.network.tree import closed_ports

A, B, C = (bytes([2, 0, 0, 0, 0, number]) for number in (1, 2, 3))
BROADCAST = b"\xff" * 6


@pytest.fixture
def switch() -> Switch:
    return Switch("s", ("p1", "p2", "p3"))


def test_an_unknown_address_is_flooded_and_the_source_learned(switch: Switch) -> None:
    assert switch.forward("p1", B, A, 0) == ("p2", "p3")
    assert switch.addresses == {A: "p1"}
    assert switch.forward("p2", A, B, 1) == ("p1",)
    assert switch.forward("p1", B, A, 2) == ("p2",)


def test_broadcast_and_multicast_are_always_flooded(switch: Switch) -> None:
    switch.forward("p2", A, B, 0)
    assert switch.forward("p1", BROADCAST, A, 1) == ("p2", "p3")
    assert switch.forward("p1", bytes.fromhex("333300000001"), A, 1) == ("p2", "p3")


def test_link_local_groups_are_not_forwarded(switch: Switch) -> None:
    assert switch.forward("p1", bytes.fromhex("0180c2000000"), A, 1) == ()
    assert switch.forward("p1", bytes.fromhex("0180c2000010"), A, 1) == ("p2", "p3")


def test_a_frame_does_not_go_back_where_it_came_from(switch: Switch) -> None:
    switch.forward("p1", B, A, 0)
    assert switch.forward("p1", A, C, 1) == ()


def test_a_group_address_is_never_learned_as_a_source(switch: Switch) -> None:
    switch.forward("p1", B, BROADCAST, 0)
    assert switch.addresses == {}


def test_an_address_that_moves_is_followed(switch: Switch) -> None:
    switch.forward("p1", B, A, 0)
    switch.forward("p3", B, A, 1)
    assert switch.forward("p2", A, B, 2) == ("p3",)


def test_addresses_age(switch: Switch) -> None:
    switch.forward("p1", B, A, 0)
    assert switch.forward("p2", A, B, AGE) == ("p1",)
    assert switch.forward("p2", A, B, AGE + 1) == ("p1", "p3")


def test_a_port_that_goes_down_is_forgotten(switch: Switch) -> None:
    switch.forward("p1", B, A, 0)
    switch.forward("p2", A, B, 0)
    switch.forget("p1")
    assert switch.addresses == {B: "p2"}


def test_the_table_has_a_limit(switch: Switch) -> None:
    for number in range(TABLE_LIMIT + 100):
        switch.forward("p1", B, b"\x02" + number.to_bytes(5, "big"), number)
    assert len(switch.addresses) == TABLE_LIMIT
    assert b"\x02" + (TABLE_LIMIT + 99).to_bytes(5, "big") in switch.addresses
    assert b"\x02" + (0).to_bytes(5, "big") not in switch.addresses


def test_a_closed_port_carries_nothing(switch: Switch) -> None:
    switch.close(["p2"])
    assert switch.forward("p1", BROADCAST, A, 0) == ("p3",)
    assert switch.forward("p2", BROADCAST, B, 0) == ()
    assert switch.addresses == {A: "p1"}


def test_loops_between_switches_are_cut_at_the_last_link() -> None:
    switch_of = {"s:1": "s", "s:2": "s", "t:1": "t", "t:2": "t", "u:1": "u", "u:2": "u"}
    edges = [("s:1", "t:1"), ("t:2", "u:1"), ("u:2", "s:2")]
    assert closed_ports(edges, switch_of) == {"u:2", "s:2"}
    assert closed_ports(edges[:2], switch_of) == set()
