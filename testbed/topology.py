"""Topology files: found, read, and checked as a whole before anything is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from faults.document import Document, DocumentError, DocumentErrors, load
from faults.reading import EVERY, read, suggest
from testbed.errors import UsageError
from testbed.gpus import check_gpus, gpus_available, visible_gpus
from testbed.naming import name_problem, node_of
from testbed.network.spec import DIRECTIONS
from testbed.planning import LOCATOR_PORT, MOST_ON_SEGMENT, MOST_SEGMENTS, make_plan
from testbed.topology_model import Topology, schema

__all__ = [
    "LOCATOR_PORT",
    "Topology",
    "check_gpus",
    "find_file",
    "gpus_available",
    "load_topology",
    "make_plan",
    "name_problem",
    "read_topology",
    "schema",
    "topology_folders",
    "visible_gpus",
    "warnings",
]

BUILTIN = Path(__file__).parent / "builtin" / "topologies"
"""Where an installed testbed keeps those that come with it."""


def topology_folders() -> list[Path]:
    """Where bare names are looked up, in this order."""
    return [Path("topologies"), Path(__file__).parent.parent / "topologies", BUILTIN]


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
    raise UsageError(f"there is no {what} {str(reference)!r}" + suggest(str(reference), there))


def load_topology(reference: str | Path) -> Topology:
    """A topology by path or name. Raises UsageError if there is none, DocumentErrors with every mistake in it."""
    return read_topology(load(find_file(reference, topology_folders(), "topology")))


def read_topology(document: Document) -> Topology:
    """Check a document as a topology. Raises DocumentErrors."""
    topology = read(document, Topology, may_be_empty=[("topology", "nodes", EVERY)])
    errors = [*_link_problems(document, topology), *_node_problems(document, topology)]
    if errors:
        raise DocumentErrors(errors)
    errors = list(_segment_problems(document, topology))
    if errors:
        raise DocumentErrors(errors)
    return topology


def _link_problems(document: Document, topology: Topology) -> Iterator[DocumentError]:
    """Links to nowhere, ports used twice, names used twice."""
    used: dict[str, int] = {}
    names: set[str] = set()
    for number, link in enumerate(topology.topology.links):
        place = ("topology", "links", number)
        if link.link_name in names:
            yield document.error(place, f"a second link named {link.link_name}: give it a name of its own with `name`")
        names.add(link.link_name)
        for side, end in enumerate(link.endpoints):
            node = node_of(end)
            if node not in topology.topology.nodes:
                yield document.error(
                    (*place, "endpoints", side),
                    f"there is no node {node!r}" + suggest(node, topology.topology.nodes),
                )
            if end in used:
                yield document.error(
                    (*place, "endpoints", side), f"the port {end} is used twice; first by link {used[end] + 1}"
                )
            used.setdefault(end, number)


def _node_problems(document: Document, topology: Topology) -> Iterator[DocumentError]:
    """Nodes without links, settings without effect, names with two meanings."""
    linked = {node_of(end) for link in topology.topology.links for end in link.endpoints}
    for name, own in topology.topology.nodes.items():
        place = ("topology", "nodes", name)
        if name not in linked:
            yield document.key_error(place, f"{name} has no link")
        if topology.node(name).kind == "switch":
            yield from _without_effect(document, place, name, own.model_fields_set)
    yield from _without_effect(
        document, ("topology", "kinds", "switch"), "a switch", topology.of_kind("switch").model_fields_set
    )
    for name in topology.workers:
        spec = topology.node(name)
        for group in (spec.group, *spec.groups):
            if group in topology.topology.nodes:
                yield document.key_error(
                    ("topology", "nodes", name), f"the group {group} has the name of a node: choose another"
                )
    if not topology.workers:
        yield document.key_error(("topology", "nodes"), "there is no node of kind connex")


def _without_effect(
    document: Document, place: tuple[str, ...], what: str, said: Iterable[str]
) -> Iterator[DocumentError]:
    for key in sorted(set(said) - {"kind"}):
        yield document.key_error((*place, key), f"{what} is no node process: {key} would have no effect on it")


def _segment_problems(document: Document, topology: Topology) -> Iterator[DocumentError]:
    """Nodes that could not reach each other, or would be reached in two ways."""
    segments = topology.segments
    if len(segments) > MOST_SEGMENTS:
        yield document.key_error(("topology", "links"), f"{len(segments)} segments: at most {MOST_SEGMENTS} have room")
    for ports in segments:
        nodes = [node_of(port) for port in ports]
        for name in sorted({name for name in nodes if nodes.count(name) > 1}):
            mine = [port for port in ports if node_of(port) == name]
            yield document.key_error(
                ("topology", "nodes", name),
                f"{' and '.join(mine)} are on one segment (links joined through switches): expected one interface"
                " of a node there",
            )
        if len(ports) > MOST_ON_SEGMENT:
            yield document.key_error(
                ("topology", "links"),
                f"a segment with {len(ports)} interfaces ({ports[0]} and others): a /24 holds {MOST_ON_SEGMENT}",
            )
    common = [node_of(port) for port in segments[topology.common_segment]]
    for name in topology.workers:
        if name not in common:
            yield document.key_error(
                ("topology", "nodes", name),
                f"{name} is not on the segment (links joined through switches) of {', '.join(common)}: all nodes of"
                " kind connex must share one",
            )


def warnings(document: Document, topology: Topology) -> list[str]:
    """What is allowed and probably not meant: queues that cannot hold the line (T23), frames that fit one link only."""
    found = []
    for number, link in enumerate(topology.topology.links):
        for direction in DIRECTIONS:
            line = link.line(direction)
            if line.queue and line.in_flight > line.queue:
                found.append(
                    document.error(
                        ("topology", "links", number),
                        f"{link.link_name} {direction}: a queue of {line.queue} B is less than delay x rate ="
                        f" {line.in_flight} B; bursts will be lost",
                    )
                )
    for links in topology.links_by_segment:
        sizes = sorted({link.mtu for link in links})
        if len(sizes) > 1:
            found.append(
                document.key_error(
                    ("topology", "links"),
                    f"links joined through switches differ in MTU ({', '.join(map(str, sizes))}), such as"
                    f" {links[0].link_name} and {next(one.link_name for one in links if one.mtu != links[0].mtu)}:"
                    " frames larger than the smallest are lost on the way",
                )
            )
    return [str(warning) for warning in found]
