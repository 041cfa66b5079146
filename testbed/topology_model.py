"""What a topology file may say. Keys follow containerlab's where it has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from faults.declaration import Count, DirectedImpairment, Flag, ImpairmentSpec, Strict, mistakes
from faults.impairment import Impairment
from testbed.gpus import VARIABLE
from testbed.naming import Name, PortName, node_of
from testbed.network.line import merged
from testbed.network.spec import A_TO_B, Port
from testbed.plan import GpuRequest

KINDS = ("connex", "switch")


def _supported(value: object) -> object:
    if isinstance(value, str) and value not in KINDS:
        raise ValueError(f"{value!r} is not a kind that is supported: expected {' or '.join(KINDS)}")
    return value


Kind = Annotated[Literal["connex", "switch"], BeforeValidator(_supported)]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class GpuSpec(Strict):
    """GPUs that a node asks for: a count, ids, or all."""

    count: Annotated[Count, Field(le=64)] | None = None
    ids: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    all_: Flag | None = None
    required: Flag = False
    """true: without them nothing starts. false: the node then runs on the CPU."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(one is not None for one in (self.count, self.ids, self.all_)) != 1 or self.all_ is False:
            raise ValueError("gpus: say one of count, ids or all: true")
        return self

    def request(self) -> GpuRequest:
        return GpuRequest(self.count or 0, self.ids or (), self.all_ is True, self.required)


class NodeSpec(Strict):
    """A node. What is left out is taken from ``kinds``, then from ``defaults``."""

    kind: Kind | None = None
    group: Name | None = None
    groups: tuple[Name, ...] = ()
    autostart: Flag | None = None
    """false: it is started by a ``join`` of a scenario."""
    gpus: GpuSpec | None = None
    env: dict[_Variable, str] = {}

    @model_validator(mode="after")
    def _gpus_by_one_word(self) -> Self:
        if self.gpus and VARIABLE in self.env:
            mistakes([(("env", VARIABLE), f"gpus says which GPUs the node sees: leave {VARIABLE} out")])
        return self

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

    endpoints: tuple[PortName, PortName]
    name: Name | None = None
    impair: Impair = ImpairmentSpec()
    mtu: Annotated[int, Field(strict=True, ge=1280, le=9000)] = 1500

    @model_validator(mode="after")
    def _possible(self) -> Self:
        found: list[tuple[tuple[str | int, ...], str]] = []
        both = isinstance(self.impair, ImpairmentSpec)
        for direction in ("a-to-b",) if both else ("a-to-b", "b-to-a"):
            try:
                self.line(direction)
            except ValueError as error:
                place = ("impair",) if both else ("impair", direction)
                found.append((place, str(error).replace("_", "-")))
        a, b = map(node_of, self.endpoints)
        if a == b:
            found.append((("endpoints",), f"both ends are at {a}: expected two nodes"))
        mistakes(found)
        return self

    @property
    def link_name(self) -> str:
        return self.name or "--".join(map(node_of, self.endpoints))

    def line(self, direction: str) -> Impairment:
        """What one direction does. Raises ValueError if no line could."""
        if isinstance(self.impair, ImpairmentSpec):
            spec = self.impair
        else:
            spec = self.impair.a_to_b if direction == A_TO_B else self.impair.b_to_a
        return merged(Impairment(), spec.changes())


def _nothing_said(value: object) -> object:
    return {} if value is None else value


class Graph(Strict):
    """The part under ``topology``."""

    defaults: NodeSpec = NodeSpec()
    kinds: dict[Kind, NodeSpec] = {}
    nodes: Annotated[
        dict[Name, Annotated[NodeSpec, BeforeValidator(_nothing_said)]],
        Field(json_schema_extra={"additionalProperties": False}),
    ]
    links: tuple[LinkEntry, ...] = ()

    @model_validator(mode="after")
    def _kinds_are_kinds(self) -> Self:
        mistakes(
            (("kinds", kind, "kind"), f"this stands under {kind} already: leave it out")
            for kind, spec in self.kinds.items()
            if spec.kind is not None
        )
        return self


class Topology(Strict):
    """A topology file."""

    name: Name
    topology: Graph

    def node(self, name: str) -> NodeSpec:
        """A node with everything that applies to it."""
        own = self.topology.nodes[name]
        kind = own.kind or self.topology.defaults.kind or "connex"
        base = self.of_kind(kind).over(self.topology.defaults)
        return own.over(base).model_copy(update={"kind": kind})

    def of_kind(self, kind: str) -> NodeSpec:
        return next((spec for name, spec in self.topology.kinds.items() if name == kind), NodeSpec())

    @property
    def switches(self) -> list[str]:
        return [name for name in self.topology.nodes if self.node(name).kind == "switch"]

    @property
    def workers(self) -> list[str]:
        return [name for name in self.topology.nodes if self.node(name).kind == "connex"]

    @property
    def links(self) -> dict[str, LinkEntry]:
        return {link.link_name: link for link in self.topology.links}

    @property
    def segments(self) -> list[list[Port]]:
        """Links joined through switches: of each segment the ports of nodes on it, in the order of the links."""
        switches = set(self.switches)
        return [
            [port for link in links for port in link.endpoints if node_of(port) not in switches]
            for links in self.links_by_segment
        ]

    @property
    def links_by_segment(self) -> list[list[LinkEntry]]:
        """The links of each segment that reaches any node."""
        switches = set(self.switches)
        root: dict[str, str] = {}

        def find(item: str) -> str:
            while root.setdefault(item, item) != item:
                item = root[item]
            return item

        def vertex(port: Port) -> str:
            return node_of(port) if node_of(port) in switches else port

        for link in self.topology.links:
            a, b = map(vertex, link.endpoints)
            root[find(a)] = find(b)
        found: dict[str, list[LinkEntry]] = {}
        for link in self.topology.links:
            found.setdefault(find(vertex(link.endpoints[0])), []).append(link)
        return [
            links
            for links in found.values()
            if any(node_of(port) not in switches for link in links for port in link.endpoints)
        ]

    @property
    def common_segment(self) -> int:
        """The segment on which most workers are: the first of those that have equally many."""
        counts = [len({node_of(port) for port in ports}) for ports in self.segments]
        return counts.index(max(counts)) if counts else 0


def schema() -> dict[str, Any]:
    """The JSON schema of a topology file, for editors."""
    return Topology.model_json_schema(by_alias=True)
