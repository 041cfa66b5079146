"""Topologies: names, addresses, and mistakes found before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.document import DocumentErrors, load, parse
from testbed.errors import UsageError
from testbed.naming import RESERVED
from testbed.topology import load_topology, make_plan, name_problem, read_topology, schema, warnings
from tests.files.json_schema import complaints

GOOD = """
name: lab
topology:
  defaults: {kind: connex, env: {C: four}}
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
        ("a", "10.64.0.1:7400", {"A": "one", "B": "two", "C": "four"}, ("left",)),
        ("b", "10.64.0.2:7400", {"A": "three", "B": "two", "C": "four"}, ()),
    ]
    links = {link.name: link for link in plan.fabric.links}
    assert (links["a--s"].a_to_b.delay, links["a--s"].b_to_a.delay) == (5_000_000, 5_000_000)
    assert (links["slow"].a_to_b.delay, links["slow"].b_to_a.delay) == (40_000_000, 10_000_000)
    assert (links["slow"].a_to_b.loss, links["slow"].b_to_a.loss) == (0.0, 0.01)
    assert plan.interfaces["b:eth1"].mtu == 9000
    assert plan.fabric.switches[0].ports == ("s:p1", "s:p2")


def test_the_same_seed_gives_the_same_addresses_and_another_run_other_kernel_names() -> None:
    """T8, T14."""
    topology = read_topology(parse(GOOD, "t.yaml"))
    one, two, other = (
        make_plan(topology, "aa000001", 1),
        make_plan(topology, "bb000002", 1),
        make_plan(topology, "aa000001", 2),
    )
    macs = [[interface.mac for interface in plan.interfaces.values()] for plan in (one, two, other)]
    assert macs[0] == macs[1]
    assert not set(macs[0]) & set(macs[2])
    names = [{interface.kernel_name for interface in plan.interfaces.values()} for plan in (one, two)]
    assert not names[0] & names[1]


LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True).filter(lambda name: name not in RESERVED)


@settings(max_examples=40, deadline=None)
@given(st.lists(LABEL, min_size=2, max_size=12, unique=True))
def test_every_legal_name_works(names: list[str]) -> None:
    """T1."""
    switch, *workers = names
    text = "name: lab\ntopology:\n  nodes:\n" + f"    {switch}: {{kind: switch}}\n"
    text += "".join(f"    {name}:\n" for name in workers) + "  links:\n"
    text += "".join(f"    - {{endpoints: ['{name}:eth1', '{switch}:p{at}']}}\n" for at, name in enumerate(workers))
    document = parse(text, "t.yaml")
    plan = make_plan(read_topology(document), "cafe0001", 1)
    kernel = [interface.kernel_name for interface in plan.interfaces.values()]
    macs = [interface.mac for interface in plan.interfaces.values()]
    assert all(len(name) <= 15 for name in kernel)
    assert len(set(kernel)) == len(set(macs)) == len(workers)
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs), "locally administered, unicast"


@settings(deadline=None)
@given(st.text(max_size=80))
def test_what_is_suggested_instead_of_a_name_is_possible(name: str) -> None:
    """T2, T3."""
    problem = name_problem(name) or ""
    for before in ("try ", "such as "):
        _, found, suggested = problem.rpartition(before)
        assert not found or name_problem(suggested.strip("'")) is None


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_reserved_names_are_refused_by_schema_and_code_alike(name: str) -> None:
    text = GOOD.replace("    a: {group", f"    {name}: {{group").replace("a:eth1", f"{name}:eth1")
    assert f"{name!r} is reserved: choose another name, such as '{name}-1'" in problems(text)
    assert complaints(schema(), parse(text, "t.yaml").value)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            ("a: {group: left}", "a_1: {}"),
            "t.yaml:8:5: 'a_1' is not a DNS label (lower case letters, digits, inner dashes, at most 63): try 'a-1'",
        ),
        (("a: {group: left}", "Host: {}"), "try 'host-1'"),
        (("a: {group: left}", f"{'a' * 64}: {{}}"), "has 64 characters: at most 63"),
        (("a: {group: left}", "a: {gruop: left}"), "t.yaml:8:9: unknown key 'gruop': did you mean 'group'?"),
        (("a: {group: left}", "a: {delay: 5ms}"), "t.yaml:8:9: unknown key 'delay'; there are autostart, env, gpus"),
        (("a: {group: left}", "a: {group: }"), "t.yaml:8:9: the key 'group' has no value: give it one or leave it out"),
        (("a: {group: left}", "a: {group: 5}"), "t.yaml:8:16: expected text; what looks like a number needs quotes"),
        (("a: {group: left}", "a: {group: b}"), "t.yaml:8:5: the group b has the name of a node"),
        (("a: {group: left}", 'a: {autostart: "false"}'), "t.yaml:8:20: expected true or false, not 'false'"),
        (("a: {group: left}", "a: left"), "t.yaml:8:8: expected keys and values, not 'left'"),
        (("A: three", "A: 3"), "t.yaml:9:18: expected text; what looks like a number needs quotes to be text, not 3"),
        (("A: three", "A=: three"), "t.yaml:9:15: "),
        (("delay: 5ms", "delay: 5"), "t.yaml:12:51: 5 has no unit: expected a number and one of the units ns"),
        (("delay: 5ms", "rate: 1e9"), "t.yaml:12:50: 1e9 has no unit"),
        (("delay: 5ms", "loss: 300%"), "t.yaml:12:50: '300%' is more than 100%"),
        (("delay: 5ms", "reorder: 1%"), "t.yaml:12:43: reorder: has no effect without reorder-by"),
        (("delay: 5ms", "queue: 64KiB"), "t.yaml:12:43: queue: has no effect without a rate"),
        (("delay: 5ms", "queue: 0B, rate: 1Mbit"), "t.yaml:12:51: input should be greater than or equal to 1"),
        (("delay: 5ms", "loss: 50%, loss-burst: 0.5"), "greater than or equal to 1"),
        (("delay: 5ms", "loss-burst: 3"), "loss-burst: has no effect without loss"),
        (("loss: 1%", "loss: 90%, loss-burst: 2"), "t.yaml:14:47: loss-burst: a loss of 0.9 needs a mean burst"),
        (("kind: switch", "kind: container"), "t.yaml:10:15: 'container' is not a kind that is supported: expected"),
        (("connex: {env", "container: {env"), "t.yaml:6:5: 'container' is not a kind that is supported"),
        (("connex: {env", "connex: {kind: switch, env"), "t.yaml:6:20: this stands under connex already"),
        (("[a:eth1, s:p1]", "[a:eth1, t:p1]"), "t.yaml:12:28: there is no node 't'; there are a, b, s"),
        (("[a:eth1, s:p1]", "[a:eth1, s:p2]"), "t.yaml:13:27: the port s:p2 is used twice; first by link 1"),
        (("[a:eth1, s:p1]", "[a, s:p1]"), "t.yaml:12:20: 'a' is not a port: expected node:interface"),
        (("[a:eth1, s:p1]", "[a:eth1]"), "t.yaml:12:19: expected 2 items at least"),
        (("[a:eth1, s:p1]", "[a:eth1, s:p1, s:p3]"), "t.yaml:12:19: "),
        (("[a:eth1, s:p1]", "[a:eth1, a:eth2]"), "t.yaml:12:19: both ends are at a: expected two nodes"),
        (("[a:eth1, s:p1]", "[a:lo, s:p1]"), "the kernel gives lo a meaning of its own"),
        (("[a:eth1, s:p1]", "[a:all, s:p1]"), "the kernel gives all a meaning of its own"),
        (("[a:eth1, s:p1]", "[a:averyverylonginterface, s:p1]"), "is not a port"),
        (("    - endpoints: [b", "    - {endpoints: [a:e2, s:p9]}\n    - endpoints: [b"), "a second link named a--s"),
        (("    - endpoints: [b", "    - {endpoints: [a:e2, s:p9], name: x}\n    - endpoints: [b"),
         "t.yaml:8:5: a:eth1 and a:e2 are on one segment"),
        (("    a: {group: left}", "    a: {}\n    c: {}"), "t.yaml:9:5: c has no link"),
        (("    a: {group: left}", "    a: {}\n    t: {kind: switch}"), "t.yaml:9:5: t has no link"),
        (("name: lab", "nmae: lab"), "t.yaml:2:1: unknown key 'nmae': did you mean 'name'?"),
        (("name: lab\n", ""), "the key 'name' is missing"),
        (("mtu: 9000", "mtu: 100"), "t.yaml:16:12: input should be greater than or equal to 1280"),
        (("mtu: 9000", 'mtu: "9000"'), "t.yaml:16:12: expected a whole number, not '9000'"),
        (("s: {kind: switch}", "s: {kind: switch, gpus: {all: true}}"), "t.yaml:10:23: s is no node process: gpus"),
        (("s: {kind: switch}", "s: {kind: switch, autostart: false}"), "autostart would have no effect on it"),
        (("a: {group: left}", "a: {gpus: {count: 1, all: true}}"), "t.yaml:8:15: gpus: say one of count, ids or all"),
        (("a: {group: left}", "a: {gpus: {required: true}}"), "gpus: say one of count, ids or all"),
        (
            ("a: {group: left}", 'a: {gpus: {count: 1}, env: {CUDA_VISIBLE_DEVICES: "1"}}'),
            "t.yaml:8:55: gpus says which GPUs the node sees",
        ),
    ],
)  # fmt: skip
def test_mistakes_have_their_place_and_what_was_expected(change: tuple[str, str], error: str) -> None:
    assert change[0] in GOOD
    assert error in problems(GOOD.replace(*change)), problems(GOOD.replace(*change))


def test_all_mistakes_are_told_at_once() -> None:
    text = GOOD.replace("group: left", "gruop: left").replace("delay: 5ms", "delay: 5").replace("mtu: 9000", "mtu: 1")
    assert [line.split(":")[1] for line in problems(text).splitlines()] == ["8", "12", "16"]


def links(text: str) -> str:
    nodes = "name: lab\ntopology:\n  nodes: {a: {}, b: {}, c: {}, d: {}, s: {kind: switch}, t: {kind: switch}}\n"
    return f"{nodes}  links:\n" + "".join(f"    - {{endpoints: [{ends}]}}\n" for ends in text.split("; "))


def test_nodes_that_could_not_reach_each_other_are_named() -> None:
    text = links("a:e1, s:p1; b:e1, s:p2; c:e1, t:p1; d:e1, t:p2")
    assert problems(text).count("is not on the segment (links joined through switches) of a, b") == 2


def test_a_chain_of_pairs_is_no_common_segment() -> None:
    """a shares one with b and one with c, but b and c share none."""
    text = links("a:e1, s:p1; b:e1, s:p2; a:e2, t:p1; c:e1, t:p2; d:e1, s:p3")
    assert "c is not on the segment (links joined through switches) of a, b, d" in problems(text)


def test_the_locator_is_on_the_segment_that_all_share() -> None:
    text = links("a:e1, b:e1; a:e2, s:p1; b:e2, s:p2; c:e1, s:p3; d:e1, t:p1; s:up, t:up")
    plan = make_plan(read_topology(parse(text, "t.yaml")), "cafe0001", 1)
    assert [node.locator for node in plan.nodes.values()] == [f"10.64.1.{number}:7400" for number in (1, 2, 3, 4)]
    assert [interface.ipv4 for interface in plan.nodes["a"].interfaces] == ["10.64.1.1/24", "10.64.0.1/24"]
    assert [interface.ipv6 for interface in plan.nodes["a"].interfaces] == ["fd00:7e57:1::1/64", "fd00:7e57::1/64"]


def test_a_segment_has_room_for_so_many_and_no_more() -> None:
    def crowd(number: int) -> str:
        nodes = "".join(f"    w{n}: {{}}\n" for n in range(number)) + "    s: {kind: switch}\n"
        ends = "".join(f"    - {{endpoints: [w{n}:e, s:p{n}]}}\n" for n in range(number))
        return f"name: lab\ntopology:\n  nodes:\n{nodes}  links:\n{ends}"

    plan = make_plan(read_topology(parse(crowd(254), "t.yaml")), "cafe0001", 1)
    assert len({interface.mac for interface in plan.interfaces.values()}) == 254
    assert "a segment with 255 interfaces (w0:e and others): a /24 holds 254" in problems(crowd(255))


def test_a_queue_that_cannot_hold_the_line_is_a_warning() -> None:
    """T23."""
    document = parse(GOOD.replace("delay: 5ms", "delay: 5ms, rate: 1Gbit, queue: 64KiB"), "t.yaml")
    found = [warning for warning in warnings(document, read_topology(document)) if "queue" in warning]
    assert len(found) == 2
    assert "t.yaml:12:7: a--s a-to-b: a queue of 65536 B is less than delay x rate = 625000 B" in found[0]


def test_frames_that_fit_one_link_only_are_a_warning() -> None:
    document = parse(GOOD, "t.yaml")
    (found,) = warnings(document, read_topology(document))
    assert "differ in MTU (1500, 9000), such as a--s and slow" in found
    same = parse(GOOD.replace("mtu: 9000", "mtu: 1500"), "t.yaml")
    assert warnings(same, read_topology(same)) == []


def test_a_topology_is_found_by_name_or_path_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_topology("five").name == "five"
    (tmp_path / "mine.yaml").write_text(GOOD)
    assert load_topology(tmp_path / "mine.yaml").name == load_topology("mine.yaml").name == "lab"
    with pytest.raises(UsageError, match="there is no topology 'fve': did you mean 'five'"):
        load_topology("fve")


SHIPPED = Path(__file__).parents[2] / "topologies"


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_topologies_are_right(path: Path) -> None:
    document = load(path)
    topology = read_topology(document)
    assert warnings(document, topology) == []
    assert complaints(schema(), document.value) == []
    assert len(make_plan(topology, "cafe0001", 1).nodes) == {"pair": 2, "five": 6, "ten-two-racks": 10}[path.stem]


def test_editors_get_a_schema_that_takes_what_the_code_takes_and_refuses_what_it_refuses() -> None:
    assert complaints(schema(), parse(GOOD, "t.yaml").value) == []
    for change in (
        ("a: {group", "a_1: {group"),
        ("delay: 5ms", "delay: 5"),
        ("group: left", "gruop: left"),
        ("kind: switch", "kind: router"),
        ("[a:eth1, s:p1]", "[a:eth1]"),
        ("[a:eth1, s:p1]", "[a, s:p1]"),
        ("mtu: 9000", "mtu: 100"),
    ):
        text = GOOD.replace(*change)
        assert problems(text)
        assert complaints(schema(), parse(text, "t.yaml").value), change
