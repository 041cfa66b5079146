"""A pick chooses among those that can be there at all: what it draws has an effect (T26)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults.document import DocumentErrors, parse
from faults.scenario import check_scenario, read_scenario
from faults.schedule import draw_schedule
from tests.faults.world import AROUND

CRASH_ALL = "  - {at: 3s, pick: {group: workers, mode: all}, crash: {}}\n"
HEAD = "topology: five\nduration: 10s\nevents:\n"


def drawn(text: str) -> list[str]:
    document = parse(text, "s.yaml")
    scenario = read_scenario(document)
    check_scenario(document, scenario, AROUND)
    return [entry.parameters["node"] for entry in draw_schedule(scenario, 1, AROUND) if entry.kind == "crash"]


def test_a_node_that_never_runs_is_never_picked() -> None:
    assert drawn(HEAD + CRASH_ALL) == ["w0", "w1", "w2", "w3", "w4"]
    assert drawn(HEAD + "  - {at: 1s, join: w5}\n" + CRASH_ALL) == ["w0", "w1", "w2", "w3", "w4", "w5"]


@pytest.mark.parametrize(
    ("pick", "error"),
    [
        ("{group: late}", "s.yaml:4:28: no node of this group runs from the start, and no step lets one join"),
        ("{group: workers, mode: fixed, value: 6}", "there are only 5 to pick from"),
        ("{group: nobody}", "there is no group 'nobody'"),
    ],
)
def test_a_pick_that_could_choose_nobody_is_refused(pick: str, error: str) -> None:
    document = parse(HEAD + f"  - {{at: 3s, pick: {pick}, crash: {{}}}}\n", "s.yaml")
    around = replace(AROUND, groups={**AROUND.groups, "late": ["w5"]})
    with pytest.raises(DocumentErrors) as raised:
        check_scenario(document, read_scenario(document), around)
    assert len(raised.value.errors) == 1, "one mistake, told once"
    assert error in str(raised.value)
