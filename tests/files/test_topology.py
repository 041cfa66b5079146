"""Topologies: names, addresses, and mistakes found before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.document import DocumentErrors, parse
from testbed.errors import CannotRun, UsageError
from testbed.topology import check_gpus, load_topology, make_plan, name_problem, read_topology, schema, warnings

GOOD = """
name: lab
topology:
  defaults: {kind: connex}
  kinds:
    connex: {env: {A: one, B: two}}
  nodes:
    a: {group: left}
    b: {env: {A: three}}
    s: {kind: switch}
  links:
    - {endpoints: [a:eth1, s:p1], impair: {delay: 5ms}}
    - endpoints: [b:eth1, s:p2]
      impair: {a-to-b: {delay: 40ms}, b-to-a: {delay: 10ms, loss: 1%}}
      name: slow
      mtu: 9000
"""


def problems(text: str) -> str:
    with pytest.raises(DocumentErrors) as raised:
        read_topology(parse(text, "t.yaml"))
    return str(raised.value)


def test_a_topology_becomes_a_plan() -> None:
    plan = make_plan(read_topology(parse(GOOD, "t.yaml")), "cafe0001", 1)
    assert [(node.name, node.locator, dict(node.env), node.groups) for node in plan.nodes.values()] == [
        ("a", "10.64.0.1:7400", {"A": "one", "B": "two"}, ("left",)),
        ("b", "10.64.0.2:7400", {"A": "three", "B": "two"}, ()),
    ]
    links = {link.name: link for link in plan.fabric.links}
    assert (links["a--s"].a_to_b.delay, links["a--s"].b_to_a.delay) == (5_000_000, 5_000_000)
    assert (links["slow"].a_to_b.delay, links["slow"].b_to_a.delay) == (40_000_000, 10_000_000)
    assert (links["slow"].a_to_b.loss, links["slow"].b_to_a.loss) == (0.0, 0.01)
    assert plan.interfaces["b:eth1"].mtu == 9000
    assert plan.fabric.switches[0].ports == ("s:p1", "s:p2")


def test_the_same_seed_gives_the_same_addresses_and_another_run_other_kernel_names() -> None:
    topology = read_topology(parse(GOOD, "t.yaml"))
    one, two, other = (
        make_plan(topology, "aa000001", 1),
        make_plan(topology, "bb000002", 1),
        make_plan(topology, "aa000001", 2),
    )
    macs = [[interface.mac for interface in plan.interfaces.values()] for plan in (one, two, other)]
    assert macs[0] == macs[1] != macs[2]
    names = [{interface.kernel_name for interface in plan.interfaces.values()} for plan in (one, two)]
    assert not names[0] & names[1]


@given(
    st.lists(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True), min_size=2, max_size=12, unique=True)
)
def test_every_legal_name_works(names: list[str]) -> None:
    names = [name for name in names if name_problem(name) is None]
    text = (
        "name: lab\ntopology:\n  nodes: {s-0: {kind: switch}, "
        + ", ".join(f'"{name}": {{}}' for name in names if name != "s-0")
        + "}\n"
    )
    workers = [name for name in names if name != "s-0"]
    if not workers:
        return
    text += "  links:\n" + "".join(
        f'    - {{endpoints: ["{name}:eth1", "s-0:p{at}"]}}\n' for at, name in enumerate(workers)
    )
    plan = make_plan(read_topology(parse(text, "t.yaml")), "cafe0001", 1)
    kernel = [interface.kernel_name for interface in plan.interfaces.values()]
    macs = [interface.mac for interface in plan.interfaces.values()]
    assert all(len(name) <= 15 for name in kernel)
    assert len(set(kernel)) == len(set(macs)) == len(workers)
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs), "locally administered, unicast"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            ("a: {group: left}", "a_1: {}"),
            "t.yaml:8:5: 'a_1' is not a DNS label (lower case letters, digits, inner dashes): try 'a-1'",
        ),
        (("a: {group: left}", "host: {}"), "'host' is reserved: choose another name, such as 'host-1'"),
        (("a: {group: left}", "a: {gruop: left}"), "t.yaml:8:9: unknown key 'gruop': did you mean 'group'?"),
        (("delay: 5ms", "delay: 5"), "t.yaml:12:44: 5 has no unit: expected a number and one of the units ns"),
        (("delay: 5ms", "loss: 300%"), "t.yaml:12:44: '300%' is more than 100%"),
        (("delay: 5ms", "reorder: 1%"), "reorder needs reorder-by"),
        (("kind: switch", "kind: router"), "t.yaml:10:9: kind 'router' is not supported: expected connex or switch"),
        (("[a:eth1, s:p1]", "[a:eth1, t:p1]"), "t.yaml:12:28: there is no node 't'"),
        (("[a:eth1, s:p1]", "[a:eth1, s:p2]"), "the port s:p2 is used twice; first by link 1"),
        (("[a:eth1, s:p1]", "[a, s:p1]"), "'a' is not a port: expected node:interface"),
        (("[a:eth1, s:p1]", "[a:lo, s:p1]"), "lo is the loopback interface"),
        (("[a:eth1, s:p1]", "[a:averyverylonginterface, s:p1]"), "is not a port"),
        (("    a: {group: left}", "    a: {}\n    c: {}"), "t.yaml:9:5: c has no link"),
        (("name: lab", "nmae: lab"), "unknown key 'nmae': did you mean 'name'?"),
        (("name: lab\n", ""), "the key 'name' is missing"),
        (("mtu: 9000", "mtu: 100"), "greater than or equal to 1280"),
        (
            ("s: {kind: switch}", "s: {kind: switch, gpus: {all: true}}"),
            "s is a switch: gpus and env mean nothing to it",
        ),
    ],
)
def test_mistakes_have_their_place_and_what_was_expected(change: tuple[str, str], error: str) -> None:
    assert change[0] in GOOD
    assert error in problems(GOOD.replace(*change)), problems(GOOD.replace(*change))


def test_nodes_that_could_not_reach_each_other_are_named() -> None:
    nodes = "name: lab\ntopology:\n  nodes: {a: {}, b: {}, c: {}, d: {}}\n"
    text = nodes + "  links:\n    - {endpoints: [a:e1, b:e1]}\n    - {endpoints: [c:e1, d:e1]}\n"
    assert "c and a share no segment" in problems(text)
    assert "d and a share no segment" in problems(text)


def test_a_queue_that_cannot_hold_the_line_is_a_warning() -> None:
    document = parse(GOOD.replace("delay: 5ms", "delay: 5ms, rate: 1Gbit, queue: 64KiB"), "t.yaml")
    found = warnings(document, read_topology(document))
    assert len(found) == 2
    assert "a queue of 65536 B is less than delay x rate = 625000 B" in found[0]


def test_gpus_that_are_not_there() -> None:
    text = GOOD.replace("a: {group: left}", "a: {gpus: {count: 2, required: REQUIRED}}")
    optional = make_plan(read_topology(parse(text.replace("REQUIRED", "false"), "t.yaml")), "cafe0001", 1)
    required = make_plan(read_topology(parse(text.replace("REQUIRED", "true"), "t.yaml")), "cafe0001", 1)
    assert check_gpus(optional, 0) == ["a asks for 2 GPUs, and this machine has 0: it runs on the CPU"]
    assert check_gpus(required, 2) == []
    with pytest.raises(CannotRun, match="a requires 2 GPUs, and this machine has 1"):
        check_gpus(required, 1)


def test_a_topology_is_found_by_name_or_path_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_topology("five").name == "five"
    (tmp_path / "mine.yaml").write_text(GOOD)
    assert load_topology(tmp_path / "mine.yaml").name == load_topology("mine.yaml").name == "lab"
    with pytest.raises(UsageError, match="there is no topology 'fve': did you mean five"):
        load_topology("fve")


@pytest.mark.parametrize("name", ["pair", "five", "ten-two-racks"])
def test_the_shipped_topologies_are_right(name: str) -> None:
    plan = make_plan(load_topology(name), "cafe0001", 1)
    assert len(plan.nodes) == {"pair": 2, "five": 6, "ten-two-racks": 10}[name]


def test_editors_get_a_schema_with_the_keys_as_they_are_written() -> None:
    text = str(schema())
    assert "a-to-b" in text
    assert "a_to_b" not in text.replace("'title'", "")
