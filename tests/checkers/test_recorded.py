"""The negative controls once more, on evidence of a real run: real nodes, real frames, real captures."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.checkers import check
from tests.checkers.doctor import DOCTORINGS, doctor

SCENARIO = """
topology: five
seed: 3
duration: 4s
workload: {kind: pipeline, stages: 2, requests: 15/s, tokens: 3, activation: 2KiB, kv: 64KiB, concurrency: 8}
events:
  - {at: 1s, migrate: {endpoint: stage-1, to: w4}}
  - {at: 2500ms, migrate: {endpoint: stage-1, to: w1}}
expect:
  delivery: {ordered: true, exactly-once: true}
  goodput: {min: 100%}
"""

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.needs("raw-sockets")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "doctored.yaml").write_text(SCENARIO)
    command = [
        sys.executable,
        "-m",
        "testbed.cli",
        "run",
        str(folder / "doctored.yaml"),
        "--runs",
        str(folder / "runs"),
    ]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    run = folder / "runs" / "doctored" / "latest"
    assert run.is_dir(), said.stdout + said.stderr
    return run.resolve()


def test_the_recorded_run_is_whole_and_in_order(recorded: Path) -> None:
    """Busy machines may be late; then the emulation is in doubt, but never the order."""
    found = {one.name: (one.verdict, one.violations) for one in check(recorded).checks}
    assert {name: said for name, said in found.items() if said[0] == "fail"} == {}
    for name in ("delivery", "ownership", "capture-against-history", "goodput", "resets", "faults"):
        assert found[name][0] == "pass", found[name]


@pytest.mark.parametrize("kind", DOCTORINGS)
def test_doctored_records_are_noticed(recorded: Path, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(recorded, folder, ignore=shutil.ignore_patterns("*.sock"))  # left by a node that was killed
    doctoring = doctor(folder, kind)
    assert {one.name: one.verdict for one in check(folder).checks}[doctoring.check] == doctoring.verdict
