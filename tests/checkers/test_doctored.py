"""Negative controls: a checker that stays green on doctored evidence proves nothing (case T48)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from testbed.checkers import check
from tests.checkers.doctor import DOCTORINGS, doctor
from tests.checkers.story import usual


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return usual().write(tmp_path_factory.mktemp("good") / "run")


def test_a_good_run_passes_every_check(good: Path) -> None:
    result = check(good)
    assert {one.name: (one.verdict, one.violations) for one in result.checks if one.verdict != "pass"} == {}
    assert result.verdict == "pass"


def test_what_tcp_sends_again_and_what_is_seen_twice_is_no_second_delivery(good: Path) -> None:
    """Case T45: every packet is in two captures, one is sent twice and one arrives twice."""
    found = {one.name: one for one in check(good).checks}
    assert found["emulation"].measurements["tcp_retransmissions"] >= 2
    assert found["delivery"].measurements["sent"] == found["delivery"].measurements["delivered"] == 30
    assert found["delivery"].verdict == found["capture-against-history"].verdict == "pass"


@pytest.mark.parametrize("kind", DOCTORINGS)
def test_doctored_evidence_is_noticed(good: Path, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(good, folder)
    doctoring = doctor(folder, kind)
    result = check(folder)
    assert {one.name: one.verdict for one in result.checks}[doctoring.check] == doctoring.verdict
    assert result.verdict in ("fail", "unknown")
    if doctoring.verdict == "unknown":
        said = next(one for one in result.checks if one.name == doctoring.check)
        assert said.violations, "an unknown says what keeps it from knowing"
