"""What things may be called, and the names and addresses that are derived from that.

People's names are DNS labels. The kernel's have 15 bytes and are unique on the machine, so they are derived; the
readable name becomes the interface's alias.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from testbed.network.spec import Port

KERNEL_NAME_BYTES = 15
LABEL_BYTES = 63
LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
INTERFACE = r"[a-z][a-z0-9-]{0,14}"
RESERVED = frozenset(
    {"all", "any", "default", "host", "lo", "localhost", "none", "self", "spare", "testbed", "workers"}
)
"""Words with a meaning of their own on the command line, in scenarios or in other tools."""
RESERVED_INTERFACES = frozenset({"all", "default", "lo"})
"""Names that the kernel gives a meaning of their own."""


def name_problem(name: str) -> str | None:
    """Why a name cannot be that of a node, link, group or topology, with a suggestion; None if it can."""
    if name in RESERVED:
        return f"{name!r} is reserved: choose another name, such as {_usable(name)!r}"
    if len(name) > LABEL_BYTES:
        return f"{name!r} has {len(name)} characters: at most {LABEL_BYTES} are possible"
    if not re.fullmatch(LABEL, name):
        return (
            f"{name!r} is not a DNS label (lower case letters, digits, inner dashes, at most {LABEL_BYTES}):"
            f" try {_usable(name)!r}"
        )
    return None


def _usable(name: str) -> str:
    label = re.sub(r"-+", "-", re.sub(r"[^a-z0-9-]", "-", name.lower())).strip("-")[:LABEL_BYTES].rstrip("-")
    return f"{label}-1" if label in RESERVED else label or "node-1"


def _check_name(name: str) -> str:
    problem = name_problem(name)
    if problem:
        raise ValueError(problem)
    return name


Name = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "pattern": f"^{LABEL}$", "not": {"enum": sorted(RESERVED)}}),
]


def port_problem(port: str) -> str | None:
    """Why a text cannot be an end of a link (``node:interface``); None if it can."""
    node, colon, interface = port.partition(":")
    if not colon or not node or not re.fullmatch(INTERFACE, interface):
        return (
            f"{port!r} is not a port: expected node:interface, the interface a lower case letter followed by at most"
            f" {KERNEL_NAME_BYTES - 1} lower case letters, digits or dashes"
        )
    if interface in RESERVED_INTERFACES:
        return f"{port!r}: the kernel gives {interface} a meaning of its own; choose another name, such as eth1"
    return None


def _check_port(port: str) -> str:
    problem = port_problem(port)
    if problem:
        raise ValueError(problem)
    return port


PortName = Annotated[
    str, AfterValidator(_check_port), WithJsonSchema({"type": "string", "pattern": f"^{LABEL}:{INTERFACE}$"})
]


def node_of(port: Port) -> str:
    return port.partition(":")[0]


def mac_address(topology: str, seed: int, port: Port, taken: set[str]) -> str:
    """A locally administered unicast address, the same for the same topology, seed and port; added to ``taken``."""

    def draw(attempt: int) -> str:
        digest = hashlib.blake2b(f"{topology}/{seed}/{port}/{attempt}".encode(), digest_size=6).digest()
        return bytes([digest[0] & 0xFC | 0x02, *digest[1:]]).hex(":")

    return _unused(draw, taken)


def kernel_name(run_id: str, port: Port, taken: set[str]) -> str:
    """A name of 15 bytes, other for each run and port; added to ``taken``."""

    def draw(attempt: int) -> str:
        digest = hashlib.blake2b(f"{run_id}/{port}/{attempt}".encode(), digest_size=6).hexdigest()
        return f"t{run_id[:2]}{digest}"[:KERNEL_NAME_BYTES]

    return _unused(draw, taken)


def _unused(draw: Callable[[int], str], taken: set[str]) -> str:
    attempt = 0
    while (found := draw(attempt)) in taken:
        attempt += 1
    taken.add(found)
    return found
