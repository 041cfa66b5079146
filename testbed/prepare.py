"""Everything about a run that can be known, and refused, before anything is made."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from faults.document import Document, DocumentErrors, load
from faults.scenario import Scenario, Surroundings, check_scenario, read_scenario, scenario_folders
from faults.scenario import warnings as scenario_warnings
from testbed.backends.netns import NetnsBackend
from testbed.errors import CannotRun, UsageError
from testbed.network.line import merged
from testbed.network.spec import A_TO_B, B_TO_A
from testbed.plan import Plan
from testbed.registry import boot_id
from testbed.run_folder import DNS_LABEL, new_run_id
from testbed.topology import (
    Topology,
    check_gpus,
    find_file,
    make_plan,
    read_topology,
    topology_folders,
    warnings,
)
from testbed.workload import Pipeline, Workload, place

BACKENDS = ("netns",)
NEEDS: Mapping[str, frozenset[str]] = {
    "impair": frozenset({"impair"}),
    "partition": frozenset({"block"}),
    "crash": frozenset({"signal", "restart"}),
    "pause": frozenset({"signal"}),
    "restart": frozenset({"signal", "restart"}),
}
"""Verb of a scenario -> what the backend must be capable of."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line. None: as the scenario says."""

    scenario: str
    topology: str | None = None
    seed: int | None = None
    backend: str = "netns"
    capture: str | None = None
    name: str | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run, resolved."""

    request: Request
    name: str
    path: Path
    """The scenario's file."""
    scenario: Scenario
    topology: Topology
    plan: Plan
    workload: Workload
    seed: int
    capture: str
    warnings: tuple[str, ...]

    @property
    def keep(self) -> bool:
        return self.request.keep

    @property
    def duration(self) -> int:
        """Of the traffic, in ns."""
        return self.scenario.duration

    @property
    def per_frame(self) -> bool:
        """Whether some link may treat frames one by one, so that offloaded super-frames must not occur (T34)."""
        declared = (line for link in self.plan.fabric.links for line in (link.a_to_b, link.b_to_a))
        asked = (step.impair.changes() for step in self.scenario.events if step.impair is not None)
        return any(line.per_frame for line in declared) or any(
            changes.get(name) for changes in asked for name in ("loss", "duplicate", "reorder", "corrupt")
        )

    def resolved(self, started: str) -> dict[str, Any]:
        """The content of ``resolved.json``."""
        return {
            "run_id": self.plan.run_id,
            "name": self.name,
            "kind": "run",
            "started": started,
            "seed": self.seed,
            "backend": self.request.backend,
            "shaper": "wire",
            "replay": {
                "scenario": str(self.path),
                "topology": self.request.topology,
                "capture": self.request.capture,
            },
            "workload": {
                "adapter": self.workload.adapter,
                "connex": dict(self.workload.connex or {}),
                "pipeline": asdict(self.workload.pipeline) if self.workload.pipeline else None,
                "placement": self.workload.placement,
            },
            "scenario": self.scenario.model_dump(mode="json", by_alias=True),
            "topology": {"name": self.topology.name, **self.topology.model_dump(mode="json", by_alias=True)},
            "plan": {
                "nodes": {
                    node.name: {
                        "locator": node.locator,
                        "autostart": node.autostart,
                        "interfaces": [asdict(interface) for interface in node.interfaces],
                    }
                    for node in self.plan.nodes.values()
                },
                "links": [asdict(link) for link in self.plan.fabric.links],
            },
            "lag_budget_ns": self.scenario.lag,
            "versions": {"testbed": version("connex-testbed"), "python": platform.python_version()},
            "machine": {"boot_id": boot_id(), "kernel": platform.release(), "cpus": os.cpu_count()},
            "capture": {
                "point": self.capture,
                "files": {
                    port: f"captures/{interface.node}.{interface.name}.pcapng"
                    for port, interface in self.plan.interfaces.items()
                    if self.capture != "none"
                },
            },
        }


def prepare(request: Request) -> Prepared:
    """Read and check everything. Raises DocumentErrors with all mistakes in the files, UsageError for those on the
    command line, CannotRun where the backend or the machine cannot do it.
    """
    path = find_file(request.scenario, scenario_folders(), "scenario")
    document = load(path)
    scenario = read_scenario(document)
    topology, about_topology = topology_of(document, scenario, request.topology)
    seed = scenario.seed if request.seed is None else request.seed
    plan = make_plan(topology, new_run_id(), seed)
    around = surroundings(plan)
    check_scenario(document, scenario, around)
    name = request.name or path.stem
    if not DNS_LABEL.fullmatch(name):
        raise UsageError(f"the name of the run is {name!r}: expected small letters, digits and hyphens; say --name")
    check_capabilities(request.backend, scenario, request.capture or scenario.capture)
    workload = _workload(plan, scenario)
    place(pipeline_of(scenario), plan)
    return Prepared(
        request=request,
        name=name,
        path=path,
        scenario=scenario,
        topology=topology,
        plan=plan,
        workload=workload,
        seed=seed,
        capture=request.capture or scenario.capture,
        warnings=(*about_topology, *scenario_warnings(document, scenario, around), *check_gpus(plan)),
    )


def topology_of(document: Document, scenario: Scenario, instead: str | None = None) -> tuple[Topology, list[str]]:
    """The topology that a scenario names (a name, or a file, also one beside the scenario's own), or the one given
    ``instead``; and what is to be said about it. Raises DocumentErrors.
    """
    reference: str | Path = instead or scenario.topology
    beside = Path(document.path).parent / str(reference)
    if instead is None and beside.is_file():
        reference = beside
    try:
        found = load(find_file(reference, topology_folders(), "topology"))
    except UsageError as error:
        if instead is not None:
            raise
        raise DocumentErrors([document.error(("topology",), str(error))]) from error
    topology = read_topology(found)
    return topology, warnings(found, topology)


def surroundings(plan: Plan) -> Surroundings:
    """What a scenario may refer to."""
    groups: dict[str, list[str]] = {}
    for node in plan.nodes.values():
        for group in node.groups:
            groups.setdefault(group, []).append(node.name)
    return Surroundings(
        workers=list(plan.nodes),
        autostart=[node.name for node in plan.nodes.values() if node.autostart],
        links={link.name: (link.a.partition(":")[0], link.b.partition(":")[0]) for link in plan.fabric.links},
        groups=groups,
        lines={
            (link.name, direction): line
            for link in plan.fabric.links
            for direction, line in ((A_TO_B, link.a_to_b), (B_TO_A, link.b_to_a))
        },
        merged=merged,
    )


def check_capabilities(backend: str, scenario: Scenario, capture: str) -> None:
    """Refuse what the backend cannot do: a scenario is never silently weakened. Raises CannotRun."""
    if backend not in BACKENDS:
        raise CannotRun(f"there is no backend {backend!r}; there is {', '.join(BACKENDS)}")
    needed = {} if capture == "none" else {f"capture-{capture}": "the capture"}
    for number, step in enumerate(scenario.events, 1):
        for capability in NEEDS.get(step.verb, ()):
            needed.setdefault(capability, f"event {number} ({step.verb})")
    missing = {name: why for name, why in needed.items() if name not in NetnsBackend.capabilities}
    if missing:
        raise CannotRun(
            f"the backend {backend} cannot do what the scenario asks for: "
            + "; ".join(f"{why} needs {name}" for name, why in missing.items())
        )


def pipeline_of(scenario: Scenario) -> Pipeline:
    """The scenario's workload in the units of ``node.json``. It issues requests as long as the scenario lasts."""
    asked = scenario.workload
    return Pipeline(
        stages=asked.stages,
        requests_per_s=asked.requests,
        requests=max(1, round(asked.requests * scenario.duration / 1_000_000_000)),
        tokens=asked.tokens,
        activation_bytes=asked.activation,
        token_bytes=asked.token,
        kv_bytes=asked.kv,
        kv_dirty_bytes=asked.kv_dirty,
        compute_ns=asked.compute,
        concurrency=asked.concurrency,
    )


def _workload(plan: Plan, scenario: Scenario) -> Workload:
    return Workload(
        plan=plan,
        secret=secrets.token_hex(16),
        pipeline=pipeline_of(scenario),
        adapter=scenario.workload.adapter,
        connex=scenario.connex.overrides(),
    )
