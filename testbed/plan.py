"""A topology made concrete for one run: names, addresses and links, all derived, nothing left to chance."""

from __future__ import annotations

from dataclasses import dataclass, field

from testbed.network.spec import FabricSpec, Port


@dataclass(frozen=True, slots=True)
class InterfacePlan:
    """One network interface of a node."""

    node: str
    name: str
    """The name people wrote, such as ``eth1``; legal as a kernel name inside the node."""
    port: Port
    kernel_name: str
    """Name of its other end in the testbed's own namespace: at most 15 bytes, unique in the run."""
    mac: str
    ipv4: str
    """With prefix length."""
    ipv6: str
    mtu: int = 1500


@dataclass(frozen=True, slots=True)
class GpuRequest:
    count: int = 0
    ids: tuple[str, ...] = ()
    all: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node process and how it is reached."""

    name: str
    kind: str
    interfaces: tuple[InterfacePlan, ...]
    locator: str
    """``host:port`` on its first interface."""
    autostart: bool = True
    groups: tuple[str, ...] = ()
    gpus: GpuRequest | None = None
    env: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a backend needs to know to make the network."""

    topology: str
    run_id: str
    seed: int
    nodes: dict[str, NodePlan]
    fabric: FabricSpec

    @property
    def interfaces(self) -> dict[Port, InterfacePlan]:
        return {interface.port: interface for node in self.nodes.values() for interface in node.interfaces}
