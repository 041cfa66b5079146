"""From a topology to a plan for one run: names, addresses and links, all derived."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from testbed.gpus import VARIABLE, granted, visible_gpus
from testbed.naming import kernel_name, mac_address, node_of
from testbed.network.spec import A_TO_B, B_TO_A, FabricSpec, LinkSpec, SwitchSpec
from testbed.plan import InterfacePlan, NodePlan, Plan
from testbed.topology_model import NodeSpec, Topology

LOCATOR_PORT = 7400
MOST_ON_SEGMENT = 254
"""Addresses of a /24."""
MOST_SEGMENTS = 192 * 256
"""10.64.0.0 to 10.255.255.0."""


def make_plan(topology: Topology, run_id: str, seed: int, *, gpus: Sequence[str] | None = None) -> Plan:
    """Names, addresses and links of one run.

    The same topology and seed give the same addresses (T8); ``run_id`` keeps kernel names of runs apart. ``gpus``:
    instead of those that this machine shows.
    """
    links = topology.topology.links
    mtu = {end: link.mtu for link in links for end in link.endpoints}
    visible = visible_gpus() if gpus is None else gpus
    interfaces: dict[str, list[InterfacePlan]] = {name: [] for name in topology.workers}
    macs: set[str] = set()
    names: set[str] = set()
    common = topology.common_segment
    for segment, ports in enumerate(topology.segments):
        ipv4 = ipaddress.IPv4Network(f"10.{64 + segment // 256}.{segment % 256}.0/24")
        ipv6 = ipaddress.IPv6Network(f"fd00:7e57:{segment:x}::/64")
        for number, port in enumerate(ports, 1):
            interface = InterfacePlan(
                node=node_of(port),
                name=port.partition(":")[2],
                port=port,
                kernel_name=kernel_name(run_id, port, names),
                mac=mac_address(topology.name, seed, port, macs),
                ipv4=f"{ipv4[number]}/{ipv4.prefixlen}",
                ipv6=f"{ipv6[number]}/{ipv6.prefixlen}",
                mtu=mtu[port],
            )
            mine = interfaces[interface.node]
            mine.insert(0 if segment == common else len(mine), interface)  # the first one has the locator
    nodes = {name: _node_plan(name, topology.node(name), interfaces[name], visible) for name in topology.workers}
    switches = tuple(
        SwitchSpec(name, tuple(end for link in links for end in link.endpoints if node_of(end) == name))
        for name in topology.switches
    )
    specs = tuple(
        LinkSpec(link.link_name, *link.endpoints, link.line(A_TO_B), link.line(B_TO_A), link.mtu) for link in links
    )
    return Plan(topology.name, run_id, seed, nodes, FabricSpec(specs, switches, seed))


def _node_plan(name: str, spec: NodeSpec, interfaces: list[InterfacePlan], visible: Sequence[str]) -> NodePlan:
    host = interfaces[0].ipv4.partition("/")[0]
    gpus = spec.gpus.request() if spec.gpus else None
    return NodePlan(
        name=name,
        kind="connex",
        interfaces=tuple(interfaces),
        locator=f"{host}:{LOCATOR_PORT}",
        autostart=spec.autostart is not False,
        groups=tuple(dict.fromkeys((*((spec.group,) if spec.group else ()), *spec.groups))),
        gpus=gpus,
        env={**spec.env, **({VARIABLE: ",".join(granted(gpus, visible))} if gpus else {})},
    )
