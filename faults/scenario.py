"""Scenario files: a timed list of faults, with the workload they disturb and what is expected of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt

from faults.declaration import Strict
from faults.document import Document
from faults.expect import Expect
from faults.fitting import Surroundings, check_scenario, warnings
from faults.reading import read
from faults.steps import Step
from faults.units import Duration
from faults.workload import ConnexSettings, Workload

__all__ = [
    "BUILTIN",
    "Scenario",
    "Surroundings",
    "check_scenario",
    "read_scenario",
    "scenario_folders",
    "schema",
    "warnings",
]

BUILTIN = Path(__file__).parent / "scenarios"


class Scenario(Strict):
    """A scenario file."""

    topology: str
    seed: Annotated[StrictInt, Field(ge=0, lt=1 << 63)] = 1
    duration: Annotated[Duration, Field(ge=1)]
    """Of the traffic. Faults that have no end of their own last until then."""
    workload: Workload = Workload()
    connex: ConnexSettings = ConnexSettings()
    capture: Literal["wire", "node", "none"] = "wire"
    lag: Annotated[Duration, Field(ge=1)] = 5_000_000
    """How late (99th percentile) frames may leave the emulated network before the verdict is unknown."""
    events: tuple[Step, ...] = ()
    expect: Expect = Expect()


def schema() -> dict[str, Any]:
    """The JSON schema of a scenario file, for editors."""
    return Scenario.model_json_schema(by_alias=True)


def scenario_folders() -> list[Path]:
    """Where bare names are looked up, in this order."""
    return [Path("faults/scenarios"), BUILTIN]


def read_scenario(document: Document) -> Scenario:
    """Check a document as a scenario, apart from what its topology must have. Raises DocumentErrors."""
    return read(document, Scenario)
