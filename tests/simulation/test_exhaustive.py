"""Every frame of a handover lost, late, doubled or met by a fault, alone and in pairs."""

from __future__ import annotations

import pytest

from connex.core.doubt import Doubts
from connex.core.frames import FrameType
from testbed.simulation.exhaustive import DEVIATIONS, Deviation, handovers, try_handover

PROTOCOL = frozenset({*range(FrameType.PREPARE, FrameType.FENCE + 1), int(FrameType.ANNOUNCE)})
HARD = ("lost", "late 300 ms", "kill s", "kill t", "kill p", "pause t", "cut s-t", "cut t>s")
MODES = pytest.mark.parametrize("ordered", [True, False], ids=["tcp", "single frames"])


@MODES
def test_hard_faults_at_every_frame_of_the_protocol(ordered: bool) -> None:
    tried = list(handovers(1, ordered=ordered, what=HARD, kinds=PROTOCOL))
    assert len(tried) > 100
    assert [one for one in tried if one.broken] == []


@pytest.mark.slow
def test_everything_at_every_frame() -> None:
    tried = list(handovers(1, ordered=True))
    assert len(tried) > 70 * len(DEVIATIONS)
    assert [one for one in tried if one.broken] == []


@pytest.mark.slow
def test_two_hard_faults_at_any_two_frames_of_the_protocol() -> None:
    tried = 0
    for one in handovers(2, ordered=False, what=("lost", "kill s", "cut s-t"), kinds=PROTOCOL):
        tried += 1
        assert not one.broken, one
    assert tried > 1_000


def test_a_source_that_never_concludes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Doubts, "_conclude", lambda *_: None)
    broken = [one for one in handovers(1, ordered=True, what=("kill t",), kinds=PROTOCOL) if one.broken]
    assert broken
    assert "C6" in broken[0].broken


def test_a_schedule_repeats_exactly() -> None:
    deviations = (Deviation(4, "cut s-t"), Deviation(9, "lost"))
    assert try_handover(deviations, ordered=True) == try_handover(deviations, ordered=True)
