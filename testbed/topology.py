"""Topology files: what nodes there are and how they are linked, and the plan that follows from it for one run."""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from faults.declaration import DirectedImpairment, ImpairmentSpec, Strict
from faults.document import Document, DocumentError, DocumentErrors, load, read
from faults.impairment import Impairment
from testbed.errors import CannotRun, UsageError
from testbed.network.spec import FabricSpec, LinkSpec, Port, SwitchSpec
from testbed.plan import GpuRequest, InterfacePlan, NodePlan, Plan

LOCATOR_PORT = 7400
KERNEL_NAME_BYTES = 15
RESERVED = frozenset(
    {"all", "any", "default", "host", "lo", "localhost", "none", "self", "spare", "testbed", "workers"}
)
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_INTERFACE = re.compile(r"[a-z][a-z0-9-]{0,14}")
BUILTIN = Path(__file__).parent / "builtin" / "topologies"


def name_problem(name: str) -> str | None:
    """Why a name cannot be that of a node, link, group or topology, with a suggestion; None if it can."""
    if name in RESERVED:
        return f"{name!r} is reserved: choose another name, such as {name + '-1'!r}"
    if len(name) > 63:
        return f"{name!r} has {len(name)} characters: at most 63 are possible"
    if not _LABEL.fullmatch(name):
        better = re.sub(r"-+", "-", re.sub(r"[^a-z0-9-]", "-", name.lower())).strip("-") or "node-1"
        return f"{name!r} is not a DNS label (lower case letters, digits, inner dashes): try {better!r}"
    return None


def _check_name(name: str) -> str:
    problem = name_problem(name)
    if problem:
        raise ValueError(problem)
    return name


Name = Annotated[str, AfterValidator(_check_name)]
Kind = Literal["connex", "switch"]


class GpuSpec(Strict):
    """GPUs that a node asks for: a count, ids, or all."""

    count: int | None = Field(default=None, ge=1)
    ids: tuple[str, ...] = ()
    all_: bool = False
    required: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum((self.count is not None, bool(self.ids), self.all_)) != 1:
            raise ValueError("gpus: say one of count, ids or all")
        return self

    def request(self) -> GpuRequest:
        return GpuRequest(self.count or 0, self.ids, self.all_, self.required)


class NodeSpec(Strict):
    """A node. What is left out is taken from ``kinds``, then from ``defaults``."""

    kind: Kind | None = None
    group: Name | None = None
    groups: tuple[Name, ...] = ()
    autostart: bool | None = None
    """false: it is started by a ``join`` of a scenario."""
    gpus: GpuSpec | None = None
    env: dict[str, str] = {}

    def over(self, other: NodeSpec) -> NodeSpec:
        """This node's own settings over those of ``other``."""
        mine = {name: getattr(self, name) for name in self.model_fields_set}
        if "env" in mine:
            mine["env"] = {**other.env, **self.env}
        return other.model_copy(update=mine)


def _sort_of_impairment(value: object) -> str:
    directed = isinstance(value, dict) and any(key in ("a-to-b", "b-to-a") for key in value)
    return "directed" if directed or isinstance(value, DirectedImpairment) else "both"


Impair = Annotated[
    Annotated[ImpairmentSpec, Tag("both")] | Annotated[DirectedImpairment, Tag("directed")],
    Discriminator(_sort_of_impairment),
]
"""One impairment for both directions, or one for each."""


class LinkEntry(Strict):
    """A link between two ports ``node:interface``; the first is ``a``."""

    endpoints: tuple[str, str]
    name: Name | None = None
    impair: Impair = ImpairmentSpec()
    mtu: int = Field(default=1500, ge=1280, le=9000)

    @model_validator(mode="after")
    def _ports(self) -> Self:
        for end in self.endpoints:
            node, colon, interface = end.partition(":")
            if not colon or not node or not _INTERFACE.fullmatch(interface):
                raise ValueError(
                    f"{end!r} is not a port: expected node:interface, the interface a letter followed by"
                    " at most 14 letters, digits or dashes"
                )
            if interface == "lo":
                raise ValueError(f"{end!r}: lo is the loopback interface; choose another name, such as eth1")
        return self

    @property
    def link_name(self) -> str:
        a, b = (end.partition(":")[0] for end in self.endpoints)
        return self.name or f"{a}--{b}"

    def line(self, direction: str) -> Impairment:
        """What one direction does: ``a_to_b`` or ``b_to_a``."""
        spec = self.impair if isinstance(self.impair, ImpairmentSpec) else getattr(self.impair, direction)
        return Impairment().merge(spec.changes())


class Graph(Strict):
    """The part under ``topology``."""

    defaults: NodeSpec = NodeSpec()
    kinds: dict[Kind, NodeSpec] = {}
    nodes: dict[Name, NodeSpec | None]
    links: tuple[LinkEntry, ...] = ()


class Topology(Strict):
    """A topology file."""

    name: Name
    topology: Graph

    def node(self, name: str) -> NodeSpec:
        """A node with everything that applies to it."""
        own = self.topology.nodes[name] or NodeSpec()
        kind = own.kind or self.topology.defaults.kind or "connex"
        base = self.topology.kinds.get(kind, NodeSpec()).over(self.topology.defaults)
        return own.over(base).model_copy(update={"kind": kind})

    @property
    def switches(self) -> list[str]:
        return [name for name in self.topology.nodes if self.node(name).kind == "switch"]

    @property
    def workers(self) -> list[str]:
        return [name for name in self.topology.nodes if self.node(name).kind == "connex"]

    @property
    def links(self) -> dict[str, LinkEntry]:
        return {link.link_name: link for link in self.topology.links}


def schema() -> dict[str, Any]:
    """The JSON schema of a topology file, for editors."""
    return Topology.model_json_schema(by_alias=True)


def find_file(reference: str | Path, folders: Iterable[Path], what: str) -> Path:
    """The file meant by a path or by a bare name in one of ``folders``. Raises UsageError, naming what there is."""
    path = Path(reference)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if path.is_file():
            return path
        raise UsageError(f"there is no {what} file {path}")
    there: set[str] = set()
    for folder in folders:
        for suffix in (".yaml", ".yml"):
            candidate = folder / f"{reference}{suffix}"
            if candidate.is_file():
                return candidate
            there |= {one.stem for one in folder.glob(f"*{suffix}")}
    near = difflib.get_close_matches(str(reference), there, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(there)) or 'none'}"
    raise UsageError(f"there is no {what} {str(reference)!r}: {hint}")


def topology_folders() -> list[Path]:
    return [Path("topologies"), Path(__file__).parent.parent / "topologies", BUILTIN]


def load_topology(reference: str | Path) -> Topology:
    """A topology by path or name. Raises UsageError if there is none, DocumentErrors with every mistake in it."""
    return read_topology(load(find_file(reference, topology_folders(), "topology")))


def read_topology(document: Document) -> Topology:
    """Check a document as a topology. Raises DocumentErrors."""
    topology = read(_known_kinds(document), Topology)
    errors = list(_problems(document, topology))
    if errors:
        raise DocumentErrors(errors)
    return topology


def _known_kinds(document: Document) -> Document:
    """Name the kinds that come later, rather than only say which are possible."""
    nodes = ((document.value or {}).get("topology") or {}).get("nodes") if isinstance(document.value, dict) else None
    errors = [
        document.error(
            ("topology", "nodes", name, "kind"), f"kind {spec['kind']!r} is not supported: expected connex or switch"
        )
        for name, spec in (nodes.items() if isinstance(nodes, dict) else ())
        if isinstance(spec, dict) and isinstance(spec.get("kind"), str) and spec["kind"] not in ("connex", "switch")
    ]
    if errors:
        raise DocumentErrors(errors)
    return document


def _problems(document: Document, topology: Topology) -> Iterator[DocumentError]:
    """What no single value shows: links to nowhere, ports used twice, nodes that cannot reach each other."""
    used: dict[str, int] = {}
    names: set[str] = set()
    for number, link in enumerate(topology.topology.links):
        place = ("topology", "links", number)
        if link.link_name in names:
            yield document.error(place, f"a second link named {link.link_name}: give it a name of its own with `name`")
        names.add(link.link_name)
        for side, end in enumerate(link.endpoints):
            node = end.partition(":")[0]
            if node not in topology.topology.nodes:
                near = difflib.get_close_matches(node, topology.topology.nodes, 1)
                hint = f": did you mean {near[0]!r}?" if near else ""
                yield document.error((*place, "endpoints", side), f"there is no node {node!r}{hint}")
            if end in used:
                yield document.error(
                    (*place, "endpoints", side), f"the port {end} is used twice; first by link {used[end] + 1}"
                )
            used.setdefault(end, number)
    for name in topology.switches:
        spec = topology.node(name)
        if spec.gpus or spec.env:
            yield document.error(("topology", "nodes", name), f"{name} is a switch: gpus and env mean nothing to it")
    if not topology.workers:
        yield document.error(("topology", "nodes"), "there is no node of kind connex")
        return
    segments = _segments(topology)
    home = {
        segment
        for segment, ports in segments.items()
        for port in ports
        if port.partition(":")[0] == topology.workers[0]
    }
    for name in topology.workers:
        mine = {segment for segment, ports in segments.items() for port in ports if port.partition(":")[0] == name}
        if not mine:
            yield document.error(("topology", "nodes", name), f"{name} has no link")
        elif not mine & home:
            yield document.error(
                ("topology", "nodes", name),
                f"{name} and {topology.workers[0]} share no segment (links joined through switches):"
                " they could not reach each other",
            )


def warnings(document: Document, topology: Topology) -> list[str]:
    """What is allowed and probably not meant (T23)."""
    found = []
    for number, link in enumerate(topology.topology.links):
        for direction in ("a_to_b", "b_to_a"):
            line = link.line(direction)
            needed = line.delay * line.rate // 8 // 1_000_000_000
            if line.rate and line.queue and needed > line.queue:
                found.append(
                    str(
                        document.error(
                            ("topology", "links", number),
                            f"{link.link_name} {direction.replace('_', '-')}: a queue of {line.queue} B is less than"
                            f" delay x rate = {needed} B; bursts will be lost",
                        )
                    )
                )
    return found


def _segments(topology: Topology) -> dict[int, list[Port]]:
    """Ports of nodes by the segment that they are on: links joined through switches."""
    parent: dict[str, str] = {}

    def root(item: str) -> str:
        while parent.setdefault(item, item) != item:
            item = parent[item]
        return item

    switches = set(topology.switches)

    def vertex(port: Port) -> str:
        node = port.partition(":")[0]
        return node if node in switches else port

    for link in topology.topology.links:
        a, b = map(vertex, link.endpoints)
        parent[root(a)] = root(b)
    numbers: dict[str, int] = {}
    result: dict[int, list[Port]] = {}
    for link in topology.topology.links:
        for port in link.endpoints:
            if port.partition(":")[0] not in switches:
                number = numbers.setdefault(root(vertex(port)), len(numbers))
                result.setdefault(number, []).append(port)
    return result


def make_plan(topology: Topology, run_id: str, seed: int) -> Plan:
    """Names, addresses and links of one run. The same topology and seed give the same addresses; ``run_id`` keeps
    kernel names apart.
    """
    links = topology.topology.links
    mtu = {end: link.mtu for link in links for end in link.endpoints}
    interfaces: dict[str, list[InterfacePlan]] = {name: [] for name in topology.workers}
    macs: set[str] = set()
    for segment, ports in _segments(topology).items():
        ipv4 = ipaddress.IPv4Network(f"10.{64 + segment // 256}.{segment % 256}.0/24")
        ipv6 = ipaddress.IPv6Network(f"fd00:7e57:{segment:x}::/64")
        if len(ports) > ipv4.num_addresses - 2:
            raise CannotRun(f"segment {segment} has {len(ports)} interfaces: a /24 holds {ipv4.num_addresses - 2}")
        for number, port in enumerate(ports, 1):
            node, _, name = port.partition(":")
            mac = _mac(f"{topology.name}/{seed}/{port}", macs)
            interfaces[node].append(
                InterfacePlan(
                    node,
                    name,
                    port,
                    _kernel_name(run_id, port),
                    mac,
                    f"{ipv4[number]}/{ipv4.prefixlen}",
                    f"{ipv6[number]}/{ipv6.prefixlen}",
                    mtu[port],
                )
            )
    nodes = {name: _node_plan(name, topology.node(name), interfaces[name]) for name in topology.workers}
    kernel_names = [interface.kernel_name for node in nodes.values() for interface in node.interfaces]
    assert len(set(kernel_names)) == len(kernel_names)
    switches = tuple(
        SwitchSpec(name, tuple(end for link in links for end in link.endpoints if end.partition(":")[0] == name))
        for name in topology.switches
    )
    specs = tuple(
        LinkSpec(link.link_name, *link.endpoints, link.line("a_to_b"), link.line("b_to_a"), link.mtu) for link in links
    )
    return Plan(topology.name, run_id, seed, nodes, FabricSpec(specs, switches, seed))


def _node_plan(name: str, spec: NodeSpec, interfaces: list[InterfacePlan]) -> NodePlan:
    host = interfaces[0].ipv4.partition("/")[0]
    return NodePlan(
        name=name,
        kind="connex",
        interfaces=tuple(interfaces),
        locator=f"{host}:{LOCATOR_PORT}",
        autostart=spec.autostart is not False,
        groups=tuple(dict.fromkeys((*((spec.group,) if spec.group else ()), *spec.groups))),
        gpus=spec.gpus.request() if spec.gpus else None,
        env=dict(spec.env),
    )


def _mac(what: str, taken: set[str]) -> str:
    """A locally administered unicast address, drawn from ``what``, unlike all that are taken."""
    for attempt in range(1000):
        digest = hashlib.blake2b(f"{what}/{attempt}".encode(), digest_size=6).digest()
        mac = bytes([digest[0] & 0xFC | 0x02, *digest[1:]]).hex(":")
        if mac not in taken:
            taken.add(mac)
            return mac
    raise AssertionError("a thousand addresses drawn, all taken")


def _kernel_name(run_id: str, port: Port) -> str:
    """At most 15 bytes, other for each run and port; the readable name is the interface's alias."""
    digest = hashlib.blake2b(f"{run_id}/{port}".encode(), digest_size=6).hexdigest()
    return f"t{run_id[:2]}{digest}"[:KERNEL_NAME_BYTES]


def gpus_available() -> int:
    """How many GPUs this machine shows, without asking any library."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def check_gpus(plan: Plan, available: int | None = None) -> list[str]:
    """What is said where fewer GPUs are here than asked for. Raises CannotRun where one is required (T49)."""
    there = gpus_available() if available is None else available
    said = []
    for node in plan.nodes.values():
        if node.gpus is None:
            continue
        wanted = node.gpus.count or len(node.gpus.ids) or 1
        if wanted <= there:
            continue
        if node.gpus.required:
            raise CannotRun(
                f"{node.name} requires {wanted} GPU{'s' * (wanted > 1)}, and this machine has {there};"
                " say required: false to run on the CPU"
            )
        said.append(
            f"{node.name} asks for {wanted} GPU{'s' * (wanted > 1)}, and this machine has {there}: it runs on the CPU"
        )
    return said
