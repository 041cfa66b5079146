"""The strict reader: every surprise of YAML is an error with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from faults.document import DocumentErrors, load, parse


def problems(text: str) -> list[str]:
    with pytest.raises(DocumentErrors) as raised:
        parse(text, "f.yaml")
    return [str(error) for error in raised.value.errors]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: the key 'a' stands here a second time; the first is in line 1"),
        ("a: {x: 1, x: 2}\n", "f.yaml:1:11: the key 'x' stands here a second time; the first is in line 1"),
        ("a: no\n", 'f.yaml:1:4: no is ambiguous (old YAML reads it as true or false): write "no" for text'),
        ("a: [1, Off]\n", "f.yaml:1:8: Off is ambiguous"),
        ("a: 010\n", "f.yaml:1:4: 010 is ambiguous (old YAML reads it as an octal number)"),
        ("a: 22:22\n", "f.yaml:1:4: 22:22 is ambiguous (old YAML reads it as a number to base 60)"),
        ("a: !!python/object:os.system x\n", "f.yaml:1:4: the tag"),
        ("a: !mine [1]\n", "f.yaml:1:4: the tag !mine is not understood"),
        ("<<: {a: 1}\n", "f.yaml:1:1: merge keys are not part of YAML 1.2"),
        ("? [a, b]\n: 1\n", "f.yaml:1:3: a key must be a plain word"),
        ("a: &x [*x]\n", "this value contains itself"),
        ("a: [1, 2\nb: 3\n", "f.yaml:2:"),
        ("a:\n\t- 1\n", "f.yaml:2:1: this is not YAML"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: this is not YAML"),
    ],
)
def test_surprises_are_errors_with_their_place(text: str, error: str) -> None:
    assert any(error in problem for problem in problems(text)), problems(text)


def test_all_errors_are_told_at_once_in_order() -> None:
    assert [problem.split(":")[1] for problem in problems("a: no\nb: 010\nb: yes\n")] == ["1", "2", "3"]


def test_plain_values_are_those_of_yaml_1_2() -> None:
    text = "a: 1\nb: 1.5\nc: true\nd: null\ne: text\nf: \"no\"\ng: 2001-01-01\nh: 1e3\ni: 0\nj: '010'\non: 1\n"
    assert parse(text, "f.yaml").value == {
        "a": 1,
        "b": 1.5,
        "c": True,
        "d": None,
        "e": "text",
        "f": "no",
        "g": "2001-01-01",
        "h": 1000.0,
        "i": 0,
        "j": "010",
        "on": 1,
    }


def test_values_know_their_places() -> None:
    document = parse("a:\n  - b: 1\n    c: 2\n", "f.yaml")
    assert document.mark(("a", 0, "c")) == (document.marks["a", 0, "c"])
    assert (document.mark(("a", 0, "c")).line, document.mark(("a", 0, "c")).column) == (3, 5)
    assert document.mark(("a", 0, "missing")).line == 2


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(DocumentErrors, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe4\n")
    with pytest.raises(DocumentErrors, match=r"latin.yaml:2:4: this byte is not UTF-8"):
        load(tmp_path / "latin.yaml")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=6), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(alphabet="abcxyz-", min_size=1), values, max_size=4))
def test_what_a_yaml_library_writes_quoted_is_read_back(value: dict[str, object]) -> None:
    text = yaml.dump(value, default_style='"', allow_unicode=True)
    # With this style numbers and null are written as tagged scalars, which are text to a strict reader.
    assert parse(text, "f.yaml").value.keys() == value.keys()
