"""A small network for the wire's own tests and benchmark: nodes that are nothing but network namespaces.

The namespaces have no name and live as long as their descriptors, so there is nothing to clean up and nothing
to clash. Sockets and processes made ``inside`` a namespace stay in it; the test itself goes on where it was.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType

from pyroute2 import IPRoute

from faults.impairment import Impairment
from testbed.backends.offload import set_offloads
from testbed.backends.wire import Wire
from testbed.backends.wire_linux import enter_network_namespace
from testbed.network.spec import FabricSpec, LinkSpec, Port, SwitchSpec

StartWire = Callable[..., AbstractAsyncContextManager[Wire]]

_CLONE_NEWNET = 0x40000000
_WITHOUT_DAD = 2
_HERE = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)


def new_namespace() -> int:
    """A network namespace without a name, as a descriptor."""
    home = os.open(_HERE, os.O_RDONLY)
    try:
        if _libc.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot make a network namespace")
        return os.open(_HERE, os.O_RDONLY)
    finally:
        enter_network_namespace(home)
        os.close(home)


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Work in a namespace for a moment. Nothing in here may wait: other tasks of the loop would find
    themselves there."""
    home = os.open(_HERE, os.O_RDONLY)
    enter_network_namespace(namespace)
    try:
        yield
    finally:
        enter_network_namespace(home)
        os.close(home)


class Lab:
    """Nodes with one interface ``eth1`` each, whose other ends are in the fabric's namespace."""

    def __init__(self, nodes: Sequence[str], mtu: int = 1500) -> None:
        self.fabric = new_namespace()
        self.nodes = {name: new_namespace() for name in nodes}
        self.attachments: dict[Port, str] = {}
        self.mtu = mtu
        for number, name in enumerate(nodes, 1):
            self._attach(number, name)

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for fd in [self.fabric, *self.nodes.values()]:
            os.close(fd)

    def ipv4(self, node: str) -> str:
        return f"10.77.0.{list(self.nodes).index(node) + 1}"

    def ipv6(self, node: str) -> str:
        return f"fd77::{list(self.nodes).index(node) + 1}"

    def mac(self, node: str) -> bytes:
        return bytes([2, 0, 0, 0, 0, list(self.nodes).index(node) + 1])

    def star(self, impairment: Impairment, program: str | None = None) -> FabricSpec:
        """All nodes on one switch, by links called ``a--s`` and so on."""
        links = tuple(
            LinkSpec(f"{node}--s", f"{node}:eth1", f"s:{node}", impairment, impairment, self.mtu) for node in self.nodes
        )
        return FabricSpec(links, (SwitchSpec("s", tuple(f"s:{node}" for node in self.nodes), program),), seed=11)

    def switch_off_offloads(self) -> None:
        """Have all nodes send frames as they would be on a wire."""
        for node in self.nodes.values():
            with inside(node):
                set_offloads("eth1", False)

    def set_state(self, node: str, state: str) -> None:
        """Set the fabric's end of a node's interface ``up`` or ``down``. Not for the thread that runs an event loop."""
        with inside(self.fabric), IPRoute() as ip:
            ip.link("set", ifname=self.attachments[f"{node}:eth1"], state=state)

    def _attach(self, number: int, name: str) -> None:
        other = f"fab{number}"
        with inside(self.fabric), IPRoute() as ip:
            peer = {"ifname": "eth1", "net_ns_fd": self.nodes[name]}
            ip.link("add", ifname=other, kind="veth", mtu=self.mtu, peer=peer)
            ip.link("set", ifname=other, state="up")
        with inside(self.nodes[name]), IPRoute() as ip:
            address = self.mac(name).hex(":")
            ip.link("set", ifname="lo", state="up")
            ip.link("set", ifname="eth1", address=address, mtu=self.mtu, state="up")
            index = ip.link_lookup(ifname="eth1")[0]
            ip.addr("add", index=index, address=self.ipv4(name), prefixlen=24)
            ip.addr("add", index=index, address=self.ipv6(name), prefixlen=64, flags=_WITHOUT_DAD)
        self.attachments[f"{name}:eth1"] = other
