"""Plans made by hand, small and in full view."""

from __future__ import annotations

import os
from collections.abc import Sequence

from faults.impairment import Impairment
from testbed.network.spec import FabricSpec, LinkSpec, SwitchSpec
from testbed.plan import InterfacePlan, NodePlan, Plan

RUN_ID = f"{os.getpid():08x}"
"""A run that no other test on this machine makes at the same time."""


def star(names: Sequence[str], *, run_id: str = RUN_ID, delay: int = 0) -> Plan:
    """Nodes with one interface each, on one switch."""
    nodes, links = {}, []
    for number, name in enumerate(names, 1):
        interface = InterfacePlan(
            node=name,
            name="eth1",
            port=f"{name}:eth1",
            kernel_name=f"x{run_id[:6]}{number}",
            mac=f"02:00:00:00:00:{number:02x}",
            ipv4=f"10.9.0.{number}/24",
            ipv6=f"fd09::{number}/64",
        )
        nodes[name] = NodePlan(name, "connex", (interface,), f"10.9.0.{number}:7400")
        line = Impairment(delay=delay)
        links.append(LinkSpec(f"{name}--s0", f"{name}:eth1", f"s0:p{number}", line, line))
    switch = SwitchSpec("s0", tuple(f"s0:p{number}" for number in range(1, len(names) + 1)))
    return Plan("star", run_id, 1, nodes, FabricSpec(tuple(links), (switch,), 1))
