"""One real run, judged again and again: as it was, with its evidence doctored, and drawn a second time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from testbed.checkers import check
from tests.checkers.doctor import DOCTORINGS, NotThere, doctor
from tests.cli.testbed_process import Testbed

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.needs("raw-sockets")]

SCENARIO = """\
topology: five
seed: 7
duration: 3s
workload: {kind: pipeline, stages: 2, requests: 20/s, activation: 1KiB, kv: 256KiB, kv-dirty: 1KiB}
events:
  - {every: 1s, between: [500ms, 3s], jitter: 100ms, pick: {endpoints: [stage-1, stage-2]}, migrate: {to: spare}}
  - {at: 1s, for: 500ms, impair: {node: w0, delay: 1ms}}
expect:
  delivery: {ordered: true, exactly-once: true}
  cutover: {p99: 1s}
  goodput: {min: 100%}
"""


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Testbed:
    home = tmp_path_factory.mktemp("evidence")
    (home / "evidence.yaml").write_text(SCENARIO)
    return Testbed(home)


@pytest.fixture(scope="module")
def good(testbed: Testbed) -> Path:
    for _ in range(3):  # on a busy machine the emulation may lose time, which proves nothing either way
        done = testbed.do("run", "evidence.yaml")
        if done.status != 2:
            break
    assert done.status == 0, str(done)
    return (testbed.runs / "evidence" / "latest").resolve()


def test_it_is_judged_again_with_the_same_verdict(testbed: Testbed, good: Path) -> None:
    before = json.loads((good / "result.json").read_text())
    done = testbed.do("check", "evidence", "--format", "json")
    assert done.status == 0, str(done)
    assert json.loads(done.out) == before


@pytest.mark.parametrize("kind", DOCTORINGS)
def test_doctored_evidence_of_a_real_run_is_noticed(good: Path, tmp_path: Path, kind: str) -> None:
    """T48: a checker that never goes red on what a real run leaves would prove nothing."""
    folder = tmp_path / "run"
    shutil.copytree(good, folder)
    try:
        doctoring = doctor(folder, kind)
    except NotThere as error:
        pytest.fail(f"the run has nothing to doctor in this way: {error}")
    result = check(folder)
    assert {one.name: one.verdict for one in result.checks}[doctoring.check] == doctoring.verdict
    assert result.verdict in ("fail", "unknown")


def test_the_same_seed_draws_the_same_schedule_and_another_another(testbed: Testbed, good: Path) -> None:
    """T47."""
    schedules = {}
    for name, seed in (("again", "7"), ("other", "8")):
        done = testbed.do("run", "evidence.yaml", "--seed", seed, "--name", name, "--capture", "none")
        assert f"--seed {seed}" in done.out, str(done)
        schedules[name] = json.loads((testbed.runs / name / "latest" / "schedule.json").read_text())
    assert schedules["again"] == json.loads((good / "schedule.json").read_text())
    assert schedules["other"] != schedules["again"]


def test_the_independent_capture_judges_alike(testbed: Testbed) -> None:
    done = testbed.do("run", "evidence.yaml", "--capture", "node", "--name", "independent", "--format", "json")
    result = json.loads(done.out)
    assert done.status in (0, 2), str(done)
    counters = json.loads((testbed.runs / "independent" / "latest" / "captures" / "counters.json").read_text())
    assert {counted["point"] for counted in counters.values()} == {"node"}
    agreeing = {one["name"]: one["verdict"] for one in result["checks"]}
    assert agreeing["capture-against-history"] == "pass", str(done)


def test_without_captures_nothing_is_proven_by_them(testbed: Testbed) -> None:
    done = testbed.do("run", "evidence.yaml", "--capture", "none", "--name", "blind", "--format", "json")
    verdicts = {one["name"]: one["verdict"] for one in json.loads(done.out)["checks"]}
    assert verdicts["delivery"] == "pass", str(done)
    assert verdicts["capture-against-history"] != "pass"


def test_strict_counts_warnings(testbed: Testbed, good: Path) -> None:
    warned = bool(json.loads((good / "result.json").read_text())["warnings"])
    assert testbed.do("check", str(good), "--strict").status == (3 if warned else 0)
