"""Cutting loops between switches: which ports must carry nothing so that flooding ends."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.network.spec import Port

Edge = tuple[Port, Port]


def closed_ports(edges: Iterable[Edge], switch_of: dict[Port, str]) -> set[Port]:
    """Ports to close so that the switches, joined by ``edges`` (links between two of them), form a forest.

    Links are taken in the order given, so that the same network always gives the same tree.
    """
    group = {switch: switch for switch in switch_of.values()}

    def root(switch: str) -> str:
        while group[switch] != switch:
            switch = group[switch]
        return switch

    closed: set[Port] = set()
    for a, b in edges:
        left, right = root(switch_of[a]), root(switch_of[b])
        if left == right:
            closed |= {a, b}
        else:
            group[right] = left
    return closed
