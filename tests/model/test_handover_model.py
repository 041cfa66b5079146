"""spin proves the model of the handover and finds every defect put into it; its names are those of the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from connex.core import arrival, departure, doubt, endpoint, fence, moving, routing
from connex.core.handover import Phase

MODEL = Path(__file__).parents[2] / "docs" / "model"
DEFECTS = re.findall(r"^\| ([A-Z_]{9,}) \|", (MODEL / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
CLASSES = {
    "Arrivals": arrival.Arrivals,
    "Departures": departure.Departures,
    "Doubts": doubt.Doubts,
    "Fences": fence.Fences,
    "Moving": moving.Moving,
    "Phase": Phase,
}

pytestmark = [pytest.mark.slow, pytest.mark.needs("spin", "gcc")]


def verify(folder: Path, *defines: str) -> tuple[int, int, str]:
    """Errors, states, and all that the verifier says."""
    options = [f"-D{one}" for one in defines]
    subprocess.run(["spin", *options, "-a", str(MODEL / "handover.pml")], cwd=folder, check=True, capture_output=True)
    subprocess.run(["gcc", "-O1", "-w", "-DSAFETY", "-o", "pan", "pan.c"], cwd=folder, check=True)
    said = subprocess.run(["./pan", "-m1000000"], cwd=folder, check=True, capture_output=True, text=True).stdout
    errors, states = re.search(r"errors: (\d+)", said), re.search(r"(\d+) states, stored", said)
    assert errors is not None, said
    assert states is not None, said
    assert "max search depth too small" not in said
    return int(errors[1]), int(states[1]), said


@pytest.mark.parametrize("peers", [1, 2])
@pytest.mark.parametrize("crashes", [0, 1, 2])
def test_the_handover_is_proven_over_all_orders(tmp_path: Path, peers: int, crashes: int) -> None:
    errors, states, said = verify(tmp_path, f"N={peers}", f"CRASHES={crashes}")
    assert errors == 0
    assert states > 500
    if not crashes:
        assert "assert" not in said.split("unreached in proctype Watch")[1].split("unreached in")[0], (
            "the end is judged"
        )


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_handover_is_found(tmp_path: Path, defect: str) -> None:
    assert verify(tmp_path, defect)[0] == 1


def test_there_are_the_defects_that_the_page_promises() -> None:
    written = set(re.findall(r"^#ifdef ([A-Z_]+)$", (MODEL / "handover.pml").read_text(encoding="utf-8"), re.MULTILINE))
    assert written == set(DEFECTS)
    assert len(DEFECTS) == 7


def test_what_the_model_names_is_in_the_code() -> None:
    page = (MODEL / "README.md").read_text(encoding="utf-8")
    names = re.findall(r"`([A-Z][A-Za-z]+)\.([A-Za-z_]+)`", page)
    assert len(names) > 15
    slots = {"Endpoint": endpoint.Endpoint.__slots__, "Restriction": endpoint.Restriction.__slots__}
    for owner, name in names:
        if owner in slots:
            assert name in slots[owner], f"{owner}.{name}"
        elif owner == "Routing":
            assert f"self.{name}:" in Path(routing.__file__).read_text(encoding="utf-8"), f"{owner}.{name}"
        else:
            assert hasattr(CLASSES[owner], name), f"{owner}.{name}"
