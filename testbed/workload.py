"""The application under test, placed on the nodes of a topology: the content of each node's ``node.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from testbed.errors import UsageError
from testbed.plan import Plan

SECOND = 1_000_000_000
SEEDS = 3
"""Nodes that every node asks for the others. Any node can be one; more than one, so that none is needed."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """An inference pipeline under open load. Sizes in bytes, times in ns."""

    stages: int = 3
    requests_per_s: float = 50.0
    requests: int = 500
    """The source stops after this many; a run issues rate x duration."""
    tokens: int = 8
    """Tokens that each request brings forth."""
    activation_bytes: int = 8192
    token_bytes: int = 64
    kv_bytes: int = 1024 * 1024
    """State that moves with a stage."""
    kv_dirty_bytes: int = 4096
    """State that each request changes."""
    compute_ns: int = 500_000
    """Of a stage for one step."""
    concurrency: int = 64
    """Requests in flight at most."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        return ("source", *(f"stage-{number}" for number in range(1, self.stages + 1)), "sink")


def workers(plan: Plan) -> list[str]:
    """The nodes that run Connex from the start, in the order of the topology."""
    return [node.name for node in plan.nodes.values() if node.kind == "connex" and node.autostart]


def place(pipeline: Pipeline, plan: Plan) -> dict[str, str]:
    """Endpoint -> node: source and sink on the first worker, the stages one by one on those that follow.

    The last workers stay empty, for what is moved. Raises UsageError where there are not enough workers.
    """
    names = workers(plan)
    if len(names) < 2:
        raise UsageError(
            f"topology {plan.topology}: a pipeline needs at least two nodes of kind connex that start by "
            f"themselves, but there {'is only ' + names[0] if names else 'are none'}"
        )
    first, rest = names[0], names[1:]
    placement = {"source": first, "sink": first}
    for number in range(pipeline.stages):
        placement[f"stage-{number + 1}"] = rest[number % len(rest)]
    return placement


@dataclass(frozen=True, slots=True)
class Workload:
    """What the node processes of one run are told."""

    plan: Plan
    secret: str
    """Shared by the nodes of this run, in hex."""
    pipeline: Pipeline | None = None
    """None: idle nodes."""
    adapter: str = "connex"
    connex: Mapping[str, Any] | None = None
    """Overrides of Connex's own configuration, by field name."""

    @property
    def placement(self) -> dict[str, str]:
        return place(self.pipeline, self.plan) if self.pipeline else {}

    def configure(self, node: str, taken: Mapping[str, str]) -> dict[str, Any]:
        """The content of ``node.json``. Endpoints ``taken`` by another node are not hosted here."""
        placement = self.placement
        locators = {name: planned.locator for name, planned in self.plan.nodes.items()}
        return {
            "name": node,
            "cluster": self.plan.run_id,
            "bind": locators[node],
            "locator": locators[node],
            "secret": self.secret,
            "seeds": [locators[name] for name in workers(self.plan)[:SEEDS]],
            "control": "control.sock",
            "journal": ".",
            "connex": dict(self.connex or {}),
            "adapter": self.adapter,
            "seed": self.plan.seed,
            "endpoints": [
                endpoint for endpoint, home in placement.items() if home == node and taken.get(endpoint, node) == node
            ],
            "static": {endpoint: locators[home] for endpoint, home in placement.items()},
            "pipeline": asdict(self.pipeline) if self.pipeline else None,
        }
