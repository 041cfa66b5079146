"""T46: on a machine that is too busy for the emulation, what took too long is unknown; what is wrong stays wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.checkers import check
from tests.checkers.doctor import doctor
from tests.checkers.story import usual


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return usual().write(tmp_path / "run")


def make_late(folder: Path) -> None:
    path = folder / "resolved.json"
    resolved = json.loads(path.read_text())
    path.write_text(json.dumps({**resolved, "lag_budget_ns": 1}))


@pytest.mark.parametrize(
    ("kind", "in_time", "late"),
    [
        ("cutover-late", "fail", "unknown"),
        ("old-epoch-on-the-wire", "fail", "unknown"),
        ("stream-reset", "fail", "unknown"),
        ("message-removed", "fail", "fail"),
        ("message-changed", "fail", "fail"),
        ("two-owners", "fail", "fail"),
        ("payload-changed", "fail", "fail"),
    ],
)
def test_only_what_is_measured_in_time_becomes_unknown(run: Path, kind: str, in_time: str, late: str) -> None:
    doctoring = doctor(run, kind)
    assert {one.name: one.verdict for one in check(run).checks}[doctoring.check] == in_time
    make_late(run)
    assert {one.name: one.verdict for one in check(run).checks}[doctoring.check] == late
