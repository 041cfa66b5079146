"""Scenarios: the shipped ones are right, and mistakes are found before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.document import DocumentErrors, load, parse
from faults.scenario import BUILTIN, Surroundings, check_scenario, read_scenario, schema
from faults.schedule import draw_schedule
from testbed.topology import load_topology

FIVE = ["w0", "w1", "w2", "w3", "w4"]
AROUND = Surroundings(
    workers=[*FIVE, "w5"],
    autostart=FIVE,
    links={f"{name}--s0": (name, "s0") for name in [*FIVE, "w5"]},
    groups={"rack-a": ["w0", "w1"]},
)


def scenario(*events: str, more: str = "") -> str:
    return "topology: five\nduration: 10s\n" + more + "events:\n" + "".join(f"  - {event}\n" for event in events)


def problems(text: str) -> str:
    document = parse(text, "s.yaml")
    with pytest.raises(DocumentErrors) as raised:
        check_scenario(document, read_scenario(document), AROUND)
    return str(raised.value)


SHIPPED = sorted(BUILTIN.glob("*.yaml"))


def test_there_are_enough_of_them() -> None:
    assert len(SHIPPED) >= 8


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_scenarios_fit_their_topologies(path: Path) -> None:
    document = load(path)
    read = read_scenario(document)
    topology = load_topology(read.topology)
    links = {name: tuple(end.partition(":")[0] for end in link.endpoints) for name, link in topology.links.items()}
    autostart = [name for name in topology.workers if topology.node(name).autostart is not False]
    check_scenario(document, read, Surroundings(topology.workers, autostart, links, {}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ("{at: 1s}", "s.yaml:4:5: expected exactly one of migrate, join, leave"),
        ("{at: 1s, join: w5, leave: w1}", "not join and leave"),
        ("{migrate: {endpoint: stage-1, to: w1}}", "expected exactly one of at, every, on"),
        (
            "{at: 1s, migrate: {endpoint: stage-9, to: w1}}",
            "s.yaml:4:24: there is no endpoint 'stage-9'; there are sink, source, stage-1",
        ),
        ("{at: 1s, migrate: {endpoint: stage-1, to: w9}}", "there is no node 'w9'; there are w0, w1"),
        ("{at: 1s, migrate: {to: w1}}", "migrate needs an endpoint"),
        ("{at: 20s, join: w5}", "s.yaml:4:6: this is after the end of the scenario"),
        ("{at: 9s, for: 2s, impair: {link: w0--s0, delay: 1ms}}", "s.yaml:4:14: this lasts longer than the scenario"),
        ("{at: 1s, join: w1}", "w1 runs from the start: only a node with autostart: false can join"),
        ("{at: 1s, impair: {link: w0--s1, delay: 1ms}}", "there is no link 'w0--s1'"),
        ("{at: 1s, impair: {link: w0--s0}}", "nothing is changed"),
        ("{at: 1s, impair: {delay: 1ms}}", "say which link, or which node"),
        ("{at: 1s, impair: {node: w0, direction: a-to-b, delay: 1ms}}", "a direction goes with a link"),
        ("{at: 1s, impair: {link: w0--s0, delay: 5}}", "5 has no unit"),
        ("{at: 1s, pause: {node: w1}}", "pause needs for"),
        ("{at: 1s, for: 0s, pause: {node: w1}}", "for: 0 would have no effect"),
        ("{at: 1s, for: 1s, migrate: {endpoint: stage-1, to: w1}}", "for goes with faults that last"),
        ("{at: 1s, crash: {}}", "crash needs node or owner-of"),
        ("{at: 1s, crash: {node: w1, owner-of: stage-1}}", "say node or owner-of, not both"),
        ("{at: 1s, crash: {node: w1, signal: BANG}}", "'BANG' is not a signal"),
        ("{every: 1s, crash: {node: w1}}", "every needs a period and between"),
        ("{every: 1s, between: [5s, 2s], crash: {node: w1}}", "from before until"),
        ("{at: 1s, after: 1s, crash: {node: w1}}", "after goes with on"),
        ("{at: 1s, partition: {between: [[w1], [w1, w2]]}}", "two lists of nodes that have none in common"),
        ("{at: 1s, pick: {group: rack-b}, crash: {}}", "there is no group 'rack-b'"),
        ("{at: 1s, pick: {group: rack-a}, crash: {node: w1}}", "the node is picked"),
        ("{at: 1s, pick: {endpoints: [stage-1]}, crash: {}}", "pick endpoints goes with migrate"),
        ("{at: 1s, migrate: {endpont: stage-1, to: w1}}", "unknown key 'endpont': did you mean 'endpoint'?"),
    ],
)
def test_mistakes_have_their_place_and_what_was_expected(event: str, error: str) -> None:
    assert error in problems(scenario(event)), problems(scenario(event))


def test_all_mistakes_are_told_at_once() -> None:
    found = problems(scenario("{at: 1s, join: w9}", "{at: 20s, join: w5}"))
    assert len(found.splitlines()) == 2


def test_static_addresses_cannot_move() -> None:
    text = scenario("{at: 1s, migrate: {endpoint: stage-1, to: w4}}", more="workload: {adapter: tcp}\n")
    assert "the adapter tcp cannot migrate" in problems(text)


def test_the_same_seed_gives_the_same_schedule_and_another_a_different_one() -> None:
    text = scenario(
        "{every: 1s, between: [1s, 9s], jitter: 500ms, pick: {group: rack-a}, pause: {for: 100ms}}",
        "{every: 1s, between: [1s, 9s], pick: {endpoints: [stage-1, stage-2]}, migrate: {to: spare}}",
    )
    read = read_scenario(parse(text, "s.yaml"))
    one, two, other = (draw_schedule(read, seed, AROUND.groups) for seed in (1, 1, 2))
    assert one == two
    assert one != other
    assert len(one) == 16
    assert all(1_000_000_000 <= (entry.at or 0) <= 9_000_000_000 for entry in one)
    assert {entry.parameters["node"] for entry in one if entry.kind == "pause"} == {"w0", "w1"}


def test_picking_all_gives_one_fault_for_each() -> None:
    read = read_scenario(parse(scenario("{at: 1s, pick: {group: rack-a, mode: all}, crash: {}}"), "s.yaml"))
    assert [entry.parameters["node"] for entry in draw_schedule(read, 1, AROUND.groups)] == ["w0", "w1"]


def test_editors_get_a_schema_with_the_keys_as_they_are_written() -> None:
    properties = schema()["$defs"]["Step"]["properties"]
    assert {"at", "for", "every", "between", "on", "pick", "migrate"} <= set(properties)
