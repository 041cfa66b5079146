"""The namespaces of a network: without names, alive as long as their descriptors, and all of it gone with them.

Veth pairs are made between the fabric's namespace and the nodes', never in the host's, so that nothing of the
host is touched and nothing remains there whatever happens to the process that holds the descriptors.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyroute2 import IPRoute

from testbed.backends.offload import set_offloads
from testbed.backends.wire_linux import enter_network_namespace
from testbed.errors import CannotRun
from testbed.plan import InterfacePlan, NodePlan, Plan

_CLONE_NEWNET = 0x40000000
WITHOUT_DAD = 2
"""IFA_F_NODAD: an IPv6 address that can be bound at once."""
_HERE = "/proc/thread-self/ns/net"
_NO_IPV6 = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
_libc = ctypes.CDLL(None, use_errno=True)


def new_namespace() -> int:
    """A network namespace, as a descriptor. Raises CannotRun where this user may not make one."""
    home = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.unshare(_CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise CannotRun(f"cannot make a network namespace: {os.strerror(number)}; testbed doctor says why")
        return os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        enter_network_namespace(home)
        os.close(home)


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Work in a namespace for a moment, in this thread. Nothing in here may wait for the event loop."""
    home = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
    enter_network_namespace(namespace)
    try:
        yield
    finally:
        enter_network_namespace(home)
        os.close(home)


class Namespaces:
    """The network namespaces of one plan, with their interfaces and addresses."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.fabric = -1
        self.nodes: dict[str, int] = {}

    def make(self, offloads: bool) -> None:
        """Make everything. Blocks (a few ms per node): call it in a thread. ``close`` undoes any part of it."""
        self.fabric = new_namespace()
        for name in self._plan.nodes:
            self.nodes[name] = new_namespace()
        with inside(self.fabric):
            # The fabric's own kernel has nothing to say on the emulated network.
            _NO_IPV6.write_text("1", encoding="ascii")
            with IPRoute() as ip:
                ip.link("set", ifname="lo", state="up")
                for node in self._plan.nodes.values():
                    for interface in node.interfaces:
                        self._connect(ip, interface)
            for interface in self._plan.interfaces.values():
                set_offloads(interface.kernel_name, offloads)
        for node in self._plan.nodes.values():
            with inside(self.nodes[node.name]):
                self._configure(node, offloads)

    def _connect(self, ip: IPRoute, interface: InterfacePlan) -> None:
        mark = f"testbed {self._plan.run_id} {interface.port}"
        peer = {
            "ifname": interface.name,
            "net_ns_fd": self.nodes[interface.node],
            "address": interface.mac,
            "mtu": interface.mtu,
        }
        ip.link("add", ifname=interface.kernel_name, kind="veth", mtu=interface.mtu, peer=peer)
        ip.link("set", ifname=interface.kernel_name, ifalias=mark, state="up")

    def _configure(self, node: NodePlan, offloads: bool) -> None:
        with IPRoute() as ip:
            ip.link("set", ifname="lo", state="up")
            for interface in node.interfaces:
                index = ip.link_lookup(ifname=interface.name)[0]
                mark = f"testbed {self._plan.run_id} {interface.port}"
                ip.link("set", index=index, ifalias=mark)
                for address, flags in ((interface.ipv4, 0), (interface.ipv6, WITHOUT_DAD)):
                    host, _, length = address.partition("/")
                    ip.addr("add", index=index, address=host, prefixlen=int(length), flags=flags)
                ip.link("set", index=index, state="up")
        for interface in node.interfaces:
            set_offloads(interface.name, offloads)

    def close(self) -> None:
        """Let go of the namespaces: the kernel removes them with their interfaces once no process is left inside."""
        for fd in (*self.nodes.values(), self.fabric):
            if fd >= 0:
                os.close(fd)
        self.nodes.clear()
        self.fabric = -1
