"""Scenarios: the shipped ones are right, and mistakes are found before anything starts."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connex.core.config import Config
from connex.core.errors import ResetCause
from faults.document import DocumentErrors, load, parse
from faults.expect import CAUSES
from faults.impairment import Impairment
from faults.observed import EVENTS
from faults.scenario import BUILTIN, Scenario, check_scenario, read_scenario, schema, warnings
from faults.verbs import DEADLY
from faults.workload import ConnexSettings
from testbed.network.line import merged
from testbed.prepare import surroundings
from testbed.topology import load_topology, make_plan
from tests.faults.world import AROUND, LINKS
from tests.files.json_schema import complaints

LINE = Impairment(delay=100_000)
WITH_LINES = replace(AROUND, lines={(link, way): LINE for link in LINKS for way in ("a-to-b", "b-to-a")}, merged=merged)


def scenario(*events: str, more: str = "") -> str:
    return "topology: five\nduration: 10s\n" + more + "events:\n" + "".join(f"  - {event}\n" for event in events)


def good(text: str) -> Scenario:
    document = parse(text, "s.yaml")
    read = read_scenario(document)
    check_scenario(document, read, WITH_LINES)
    return read


def problems(text: str) -> str:
    with pytest.raises(DocumentErrors) as raised:
        good(text)
    return str(raised.value)


SHIPPED = sorted(BUILTIN.glob("*.yaml"))


def test_there_are_enough_of_them() -> None:
    assert len(SHIPPED) >= 10


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_scenarios_fit_their_topologies(path: Path) -> None:
    document = load(path)
    read = read_scenario(document)
    around = surroundings(make_plan(load_topology(read.topology), "cafe0001", 1))
    check_scenario(document, read, around)
    assert warnings(document, read, around) == []
    assert complaints(schema(), document.value) == []


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ("{at: 1s}", "s.yaml:4:5: expected exactly one of migrate, join, leave"),
        ("{at: 1s, join: w5, leave: w1}", "not join and leave"),
        ("{crash: w1}", "s.yaml:4:5: expected exactly one of at, every, on"),
        ("{at: 1s, on: {event: peer.dead}, crash: w1}", "expected exactly one of at, every, on"),
        ("{at: 1, crash: w1}", "s.yaml:4:10: 1 has no unit: expected a number and one of the units ns"),
        ("{at: 1s, delay: 5ms, crash: w1}", "s.yaml:4:14: unknown key 'delay'; there are after, at, between, crash"),
        ("{at: 1s, migrate: {endpont: stage-1, to: w1}}", "s.yaml:4:24: unknown key 'endpont': did you mean"),
        ("{at: 1s, migrate: {endpoint: stage-9, to: w1}}", "s.yaml:4:34: there is no endpoint 'stage-9': did you mean"),
        ("{at: 1s, migrate: {endpoint: stage-1, to: w9}}", "s.yaml:4:47: there is no node 'w9'; there are w0, w1"),
        ("{at: 1s, migrate: {endpoint: stage-1, to: w5}}", "w5 does not run from the start, and no step lets it join"),
        ("{at: 1s, migrate: {to: w1}}", "s.yaml:4:23: migrate needs an endpoint"),
        ("{at: 1s, migrate: {endpoint: stage-1}}", "s.yaml:4:23: the key 'to' is missing"),
        ("{at: 20s, join: w5}", "s.yaml:4:10: this is after the end of the scenario (10 s)"),
        ("{at: 10s, join: w5}", "this is after the end of the scenario (10 s)"),
        ("{at: 9s, jitter: 2s, crash: w1}", "s.yaml:4:10: this is after the end of the scenario"),
        ("{at: 9s, for: 2s, impair: {link: w0--s0, delay: 1ms}}", "s.yaml:4:19: this lasts longer than the scenario"),
        ("{at: 9s, pause: {node: w1, for: 2s}}", "s.yaml:4:37: this lasts longer than the scenario"),
        ("{every: 1s, between: [5s, 11s], crash: w1}", "s.yaml:4:26: this is after the end of the scenario"),
        ("{at: 1s, join: w1}", "s.yaml:4:20: w1 runs from the start: only a node with autostart: false can join"),
        ("{at: 1s, crash: w5}", "s.yaml:4:21: w5 does not run from the start"),
        ("{at: 1s, impair: {link: w0--s1, delay: 1ms}}", "s.yaml:4:29: there is no link 'w0--s1': did you mean"),
        ("{at: 1s, impair: {link: w0--s0}}", "nothing is changed"),
        ("{at: 1s, impair: {delay: 1ms}}", "say which link, or which node"),
        ("{at: 1s, impair: {node: w0, direction: a-to-b, delay: 1ms}}", "a direction goes with a link"),
        ("{at: 1s, impair: {link: w0--s0, direction: up, delay: 1ms}}", "s.yaml:4:48: expected 'a-to-b', 'b-to-a' or"),
        ("{at: 1s, impair: {link: w0--s0, delay: 5}}", "s.yaml:4:44: 5 has no unit"),
        ("{at: 1s, impair: {link: w0--s0, queue: 64KiB}}", "s.yaml:4:22: w0--s0 a-to-b: queue: has no effect without"),
        ("{at: 1s, impair: {node: w0, reorder: 1%}}", "w0--s0 b-to-a: reorder: has no effect without reorder-by"),
        ("{at: 1s, impair: {node: w0, loss: 0.00000001%}}", "no run would show it"),
        ("{at: 1s, pause: {node: w1}}", "pause needs for"),
        ("{at: 1s, for: 0s, pause: {node: w1}}", "s.yaml:4:19: for: 0 would have no effect"),
        ("{at: 1s, for: 1s, pause: {node: w1, for: 2s}}", "s.yaml:4:19: how long is said twice"),
        ("{at: 1s, for: 1s, migrate: {endpoint: stage-1, to: w1}}", "s.yaml:4:19: for goes with faults that last"),
        ("{at: 1s, crash: {}}", "crash needs node or owner-of"),
        ("{at: 1s, crash: {node: w1, owner-of: stage-1}}", "say node or owner-of, not both"),
        ("{at: 1s, crash: {node: w1, signal: BANG}}", "s.yaml:4:40: 'BANG' is not a signal that ends a process"),
        ("{at: 1s, crash: {node: w1, signal: STOP}}", "'STOP' is not a signal that ends a process: expected one of"),
        ("{every: 1s, crash: {node: w1}}", "s.yaml:4:13: every needs between: [from, until]"),
        ("{every: 1s, between: [5s, 2s], crash: {node: w1}}", "from before until"),
        ("{every: 0s, between: [1s, 2s], crash: {node: w1}}", "s.yaml:4:13: a period of 0 has no end"),
        ("{every: 1ns, between: [1s, 9s], crash: {node: w1}}", "this would happen more than 10000 times"),
        ("{at: 1s, between: [1s, 2s], crash: {node: w1}}", "s.yaml:4:23: between goes with every"),
        ("{at: 1s, after: 1s, crash: {node: w1}}", "s.yaml:4:21: after goes with on"),
        ("{on: {event: handover.prepard}, crash: w1}", "s.yaml:4:18: there is no event 'handover.prepard': did you"),
        ("{on: {event: peer.dead, endpoint: stage-1}, crash: w1}", "peer.dead has no field 'endpoint'; there are"),
        ("{on: {event: peer.dead, peer: w9}, crash: w1}", "s.yaml:4:35: there is no node 'w9'"),
        ("{on: {event: endpoint.hosted, endpoint: s}, crash: w1}", "there is no endpoint 's'"),
        ("{on: {event: endpoint.hosted, epoch: [1]}, crash: w1}", "expected one value that the field must have"),
        ("{on: {event: endpoint.hosted, count: 0}, crash: w1}", "greater than or equal to 1"),
        ("{at: 1s, partition: {between: [[w1], [w1, w2]]}}", "w1 on both sides: expected lists that have no node in"),
        ("{at: 1s, partition: {between: [[w0], [left]]}}", "w0 on both sides"),
        ("{at: 1s, partition: {between: [[w1], [w9]]}}", "s.yaml:4:43: there is no node or group 'w9'"),
        ("{at: 1s, partition: {between: [[w1], []]}}", "s.yaml:4:42: "),
        ("{at: 1s, partition: {from: [w1]}}", "expected between: [[…], […]], or from: […] and to: […]"),
        ("{at: 1s, partition: {from: [w1], to: [w2], one-way: true}}", "one-way goes with between"),
        ("{at: 1s, pick: {group: up}, crash: {}}", "s.yaml:4:28: there is no group 'up'; there are left, right"),
        ("{at: 1s, pick: {group: left}, crash: {node: w1}}", "the node is picked"),
        ("{at: 1s, pick: {group: left}, join: w5}", "s.yaml:4:20: pick goes with migrate, leave, crash, pause"),
        ("{at: 1s, pick: {group: left}, migrate: {to: any}}", "migrate moves endpoints: pick endpoints"),
        ("{at: 1s, pick: {group: left, mode: fixed}, crash: {}}", "fixed needs value: how many"),
        ("{at: 1s, pick: {group: left, mode: fixed, value: 3}, crash: {}}", "s.yaml:4:54: there are only 2 to pick"),
        ("{at: 1s, pick: {group: left, value: 3}, crash: {}}", "s.yaml:4:41: value goes with fixed"),
        ("{at: 1s, pick: {group: left, mode: fixed-percent, value: 3}, crash: {}}", "s.yaml:4:62: 3 has no unit"),
        ("{at: 1s, pick: {group: left, mode: random-max-percent, value: 0%}, crash: {}}", "0% would pick nobody"),
        ("{at: 1s, pick: {endpoints: [sink, sink]}, migrate: {to: any}}", "an endpoint stands here twice"),
        ("{at: 1s, pick: {endpoints: [stage-9]}, migrate: {to: any}}", "s.yaml:4:33: there is no endpoint 'stage-9'"),
    ],
)  # fmt: skip
def test_mistakes_have_their_place_and_what_was_expected(event: str, error: str) -> None:
    assert error in problems(scenario(event)), problems(scenario(event))


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("duration: 5s\n", "s.yaml:3:1: the key 'duration' stands here a second time; the first is in line 2"),
        ("seed: 010\n", "s.yaml:3:7: 010 is ambiguous"),
        ('seed: "7"\n', "s.yaml:3:7: expected a whole number, not '7'"),
        ("seed: 1.5\n", "s.yaml:3:7: expected a whole number, not 1.5"),
        ("lag: 0s\n", "greater than or equal to 1"),
        ("capture: no\n", "s.yaml:3:10: no is ambiguous (old YAML reads it as true or false)"),
        ("capture: both\n", "s.yaml:3:10: expected 'wire', 'node' or 'none', not 'both'"),
        ("workload: {requests: 50}\n", "s.yaml:3:22: 50 has no unit"),
        ("workload: {kv: 64KiB}\n", "s.yaml:3:16: a request changes 4096 B (kv-dirty) of its part"),
        ("workload: {activation: 0B}\n", "greater than or equal to 1"),
        ("workload: {stages: 0}\n", "greater than or equal to 1"),
        ("connex: {leese: 200ms}\n", "s.yaml:3:10: unknown key 'leese': did you mean 'lease'?"),
        ("connex: {lease: 200}\n", "s.yaml:3:17: 200 has no unit"),
        ("connex: {lease: 1MiB}\n", "s.yaml:3:17: '1MiB' has the unknown unit 'MiB'"),
        ("connex: {dead_after: 2s}\n", "unknown key 'dead_after': did you mean 'dead-after'?"),
        ("connex: {streams: 0}\n", "greater than or equal to 1"),
        ("expect: {resets: some}\n", "s.yaml:3:18: 'some': expected none, allowed, a list of causes"),
        ("expect: {resets: [owner-dyed]}\n", "s.yaml:3:19: expected 'endpoint-unknown'"),
        ("expect: {resets: {min: 2, max: 1}}\n", "min is more than max"),
        ("expect: {cutover: {}}\n", "s.yaml:3:19: nothing is expected: say p50, p99 or max"),
        ("expect: {goodput: {min: 1}}\n", "s.yaml:3:25: 1 has no unit"),
        ("expect: {delivery: {ordered: false}}\n", "ordered and exactly-once are judged together"),
        ("expect: {faults: perhaps}\n", "expected 'fired' or 'may-fail', not 'perhaps'"),
        ("expect: {staleness: 1s}\n", "unknown key 'staleness'; there are cutover, delivery, faults, goodput"),
        ("expect:\n", "s.yaml:3:1: the key 'expect' has no value"),
    ],
)
def test_mistakes_around_the_events(more: str, error: str) -> None:
    assert error in problems(scenario("{at: 1s, crash: w1}", more=more))


def test_all_mistakes_are_told_at_once() -> None:
    found = problems(
        scenario("{at: 1s, join: w9}", "{at: 20s, crash: w7}", "{at: 1s, impair: {node: w0, queue: 1MiB}}")
    )
    assert [line.split(":")[1] for line in found.splitlines()] == ["4", "5", "5", "6", "6"]
    shapes = problems(scenario("{at: 1s}", "{at: 1, crash: w1}", "{every: 1s, after: 1s, jitter: 0s, crash: w1}"))
    assert [line.split(":")[1] for line in shapes.splitlines()] == ["4", "5", "6", "6"]


def test_static_addresses_cannot_move_and_settings_of_connex_mean_nothing_there() -> None:
    text = scenario(
        "{at: 1s, migrate: {endpoint: stage-1, to: w4}}", more="workload: {adapter: tcp}\nconnex: {lease: 1s}\n"
    )
    assert "s.yaml:6:14: the adapter tcp cannot migrate" in problems(text)
    assert "s.yaml:4:1: with the adapter tcp these settings have no effect" in problems(text)


def test_a_queue_that_cannot_hold_the_line_is_a_warning() -> None:
    """T23."""
    text = scenario("{at: 1s, impair: {link: w0--s0, direction: a-to-b, delay: 10ms, rate: 1Gbit, queue: 64KiB}}")
    document = parse(text, "s.yaml")
    (found,) = warnings(document, read_scenario(document), WITH_LINES)
    assert found.startswith("s.yaml:4:22: w0--s0 a-to-b: a queue of 65536 B is less than delay x rate = 1250000 B")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("none", {"min": None, "max": 0, "causes": None}),
        ("allowed", {"min": None, "max": None, "causes": None}),
        ("[owner-died]", {"min": None, "max": None, "causes": ["owner-died"]}),
        ("{min: 1, max: 5}", {"min": 1, "max": 5, "causes": None}),
    ],
)
def test_resets_are_expected_in_short_or_at_length(written: str, read: dict[str, Any]) -> None:
    text = f"topology: five\nduration: 1s\nexpect: {{resets: {written}}}\n"
    assert good(text).expect.resets.model_dump(mode="json", by_alias=True) == read
    assert complaints(schema(), parse(text, "s.yaml").value) == []


# What is written in several places says the same


def test_settings_of_connex_are_those_that_it_has() -> None:
    have = {field.name for field in fields(Config)}
    settable = set(ConnexSettings.model_fields)
    assert settable <= have
    assert have - settable == {"classes", "name"}, "the rest is no single number that a scenario could set"
    overrides = good(scenario("{at: 1s, crash: w1}", more="connex: {dead-after: 2s, send-buffer: 1MiB, streams: 9}\n"))
    assert overrides.connex.overrides() == {"dead_after": 2_000_000_000, "send_buffer": 1 << 20, "streams": 9}
    replace(Config(), **cast(Any, overrides.connex.overrides()))


def test_causes_of_resets_are_those_of_connex() -> None:
    assert list(CAUSES) == [cause.label for cause in ResetCause]


def test_events_are_those_that_nodes_write() -> None:
    table = [line for line in (Path(__file__).parents[2] / "docs/history.md").read_text().splitlines() if "| `" in line]
    for line in table:
        _, names, described, _ = line.split("|")
        words = [word.strip("` ") for word in names.split(",")]
        group = words[0].partition(".")[0]
        for word in words:
            name = group + word if word.startswith(".") else word
            assert name in EVENTS, name
            plain = described.split("(")[0].split(":")[0].replace("`", "").split(",")
            assert {field.strip() for field in plain if field.strip().isidentifier()} <= EVENTS[name], name
    assert len(table) > 15


# Schemas and surprises


def test_editors_get_a_schema_that_takes_and_refuses_what_the_code_does() -> None:
    every_verb = scenario(
        "{at: 1s, jitter: 1s, migrate: {endpoint: stage-1, to: spare}}",
        "{at: 1s, join: w5}",
        "{at: 1s, leave: w1}",
        "{at: 1s, for: 1s, crash: {owner-of: stage-1, signal: TERM}}",
        "{at: 1s, pick: {group: left, mode: random-max-percent, value: 50%}, restart: {after: 1s}}",
        "{at: 1s, pause: {node: w1, for: 1s}}",
        "{every: 1s, between: [1s, 2s], impair: {node: w1, down: true}}",
        "{on: {event: handover.prepared, endpoint: stage-2, count: 2}, partition: {from: [w1], to: [right]}}",
        more="connex: {lease: 100ms}\nexpect: {resets: [fenced], cutover: {max: 1s}, goodput: {min: 99.9%}}\n",
    )
    good(every_verb)
    assert complaints(schema(), parse(every_verb, "s.yaml").value) == []
    for change in (
        ("signal: TERM", "signal: 15"),
        ("to: spare", "too: spare"),
        ("value: 50%", "value: half"),
        ("down: true", "down: 1"),
        ("lease: 100ms", "lease: 100"),
        ("[fenced]", "[fencd]"),
        ("min: 99.9%", "min: 0.999"),
        ("at: 1s, join", "at: soon, join"),
    ):
        assert change[0] in every_verb
        text = every_verb.replace(*change)
        assert problems(text)
        assert complaints(schema(), parse(text, "s.yaml").value), change


WORDS = st.sampled_from(
    [*"{}[],:", ": ", ", ", "\n", "  ", "- ", "at", "every", "on", "event", "pick", "mode", "value", "crash", "pause",
     "for", "1s", "5", "50%", "w1", "stage-1", "null", "node", "owner-of", "partition", "between", "impair", "loss",
     "peer.dead", "true", "no", *DEADLY]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, max_size=30).map("".join))
def test_whatever_stands_in_an_event_is_taken_or_refused_as_a_mistake_in_the_file(event: str) -> None:
    refused = []
    try:
        good(scenario(event))
    except DocumentErrors as errors:
        refused = errors.errors
    assert all(error.path == "s.yaml" and error.message for error in refused)
