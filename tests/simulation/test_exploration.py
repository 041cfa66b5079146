"""Random schedules find nothing in the protocol, the same things each time, and every defect that is put into it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from connex.core.credit import ReceiveCredit
from connex.core.doubt import Doubts
from connex.core.endpoint import Inbound
from connex.core.flow import Flow
from connex.core.frames import Frame
from connex.core.moving import Moving
from connex.core.table import StreamTable
from connex.core.witness import Witnesses
from testbed.cli import status_of
from testbed.simulation.exploration import Failure, digest, explore, shrink, try_out
from testbed.simulation.schedule import draw
from testbed.simulation.transcript import tell


def failures(count: int, *, adversarial: bool, messages: int = 200) -> list[Failure]:
    """What the first so many schedules find; stops at the first that finds something."""
    for tally in explore(range(count), nodes=5, messages=messages, adversarial=adversarial):
        if tally.failures:
            return tally.failures
    return []


@pytest.mark.parametrize("adversarial", [False, True], ids=["tcp", "adversarial"])
def test_the_protocol_keeps_its_contract(adversarial: bool) -> None:
    assert failures(40, adversarial=adversarial) == []


@pytest.mark.slow
@pytest.mark.parametrize("adversarial", [False, True], ids=["tcp", "adversarial"])
def test_the_protocol_keeps_its_contract_for_long(adversarial: bool) -> None:
    for tally in explore(range(1000, 1400), nodes=5, messages=200, adversarial=adversarial):
        assert tally.failures == []
    assert tally.messages > 60_000
    assert tally.handovers > 1_500
    assert {"owner-died", "owner-restarted", "cancelled", "endpoint-ended", "handover-in-doubt"} <= set(tally.resets)


def test_the_same_seed_is_the_same_history_whatever_the_hashes_of_strings(tmp_path: Any) -> None:
    script = (
        "from testbed.simulation.exploration import digest, try_out\n"
        "from testbed.simulation.schedule import draw\n"
        "print([digest(try_out(draw(seed, adversarial=bool(seed % 2)))[0]) for seed in range(12)])\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(said) == 1
    assert digest(try_out(draw(1))[0]) != digest(try_out(draw(2))[0])


# Defects


def without_epochs(self: Flow, into: Inbound, node: str, frame: Frame, now: int) -> bool:
    return into.serving


def before_delivery(acknowledge: Callable[..., None]) -> Callable[..., None]:
    def early(self: StreamTable, into: Inbound, *flags: Any) -> None:
        receive = into.receive
        taken = receive.offset
        receive.offset = receive.received
        acknowledge(self, into, *flags)
        receive.offset = taken

    return early


def at_once(self: Doubts, handover: Any, now: int) -> None:
    self._source.resume(handover, [], "", now)


def from_the_start(adopt: Callable[..., Any]) -> Callable[..., Any]:
    def forgetful(self: Moving, endpoint: Any, moved: Any, now: int) -> Any:
        return adopt(self, endpoint, moved if moved.outbound else moved._replace(message=0, offset=0, held=[]), now)

    return forgetful


def twice(advertise: Callable[[ReceiveCredit], int]) -> Callable[[ReceiveCredit], int]:
    return lambda self: 2 * advertise(self)


def never(*_: object) -> None:
    """Not done at all."""


DEFECTS: dict[str, tuple[type, str, Any]] = {
    "frames are taken whatever their epoch": (Flow, "_reconsider", without_epochs),
    "acknowledged before it is delivered": (StreamTable, "acknowledge", before_delivery(StreamTable.acknowledge)),
    "the source goes on after COMMIT": (Doubts, "_ask", at_once),
    "the target forgets the cursor": (Moving, "adopt", from_the_start(Moving.adopt)),
    "credit is granted twice": (ReceiveCredit, "advertise", twice(ReceiveCredit.advertise)),
    "the restriction of a target is never lifted": (Witnesses, "lift", never),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_protocol_is_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken = DEFECTS[defect]
    monkeypatch.setattr(owner, name, broken)
    assert any(failures(150, adversarial=adversarial) for adversarial in (False, True))


def test_a_failure_shrinks_to_what_it_needs_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moving, "adopt", from_the_start(Moving.adopt))
    found = failures(50, adversarial=False)[0]
    small = shrink(found)
    assert small.kind == found.kind
    assert len(small.schedule.steps) <= 6 < len(found.schedule.steps)
    assert "move" in {step.verb for step in small.schedule.steps}
    told = "\n".join(tell(try_out(small.schedule)[0]))
    assert "COMMIT" in told
    assert "* move" in told


def test_the_command_says_what_it_found_and_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["explore", "--schedules", "3"]) == 0
    assert "verdict: pass" in capsys.readouterr().out
    monkeypatch.setattr(Moving, "adopt", from_the_start(Moving.adopt))
    assert status_of(["explore", "--schedules", "8", "--messages", "30"]) == 1
    said = capsys.readouterr().out
    assert "verdict: fail" in said
    again = next(line for line in said.splitlines() if line.startswith("play it again: "))
    assert status_of(again.split("testbed ")[1].split()) == 1
    assert status_of(["explore", "--schedules", "0"]) == 64
