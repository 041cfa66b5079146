"""What the network model is built from: links between ports, and switches.

A port is named ``node:interface``.
"""

from __future__ import annotations

from dataclasses import dataclass

from faults.impairment import Impairment

Port = str

A_TO_B = "a-to-b"
B_TO_A = "b-to-a"
DIRECTIONS = (A_TO_B, B_TO_A)

PERFECT = Impairment()
"""A line that takes no time and loses nothing."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """An edge of the topology, from port ``a`` to port ``b``, each direction with its own impairment."""

    name: str
    a: Port
    b: Port
    a_to_b: Impairment = PERFECT
    b_to_a: Impairment = PERFECT
    mtu: int = 1500


@dataclass(frozen=True, slots=True)
class SwitchSpec:
    """A learning switch; ``program`` names the packet program that it runs on every frame, if any."""

    name: str
    ports: tuple[Port, ...]
    program: str | None = None


@dataclass(frozen=True, slots=True)
class FabricSpec:
    """A whole network. Ports of links that belong to no switch are its edges: frames enter and leave
    there."""

    links: tuple[LinkSpec, ...]
    switches: tuple[SwitchSpec, ...] = ()
    seed: int = 0
