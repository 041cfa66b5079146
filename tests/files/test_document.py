"""The strict reader: every surprise of YAML is an error with its place."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from faults.document import DocumentErrors, Mark, load, parse


def problems(text: str) -> list[str]:
    with pytest.raises(DocumentErrors) as raised:
        parse(text, "f.yaml")
    return [str(error) for error in raised.value.errors]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: the key 'a' stands here a second time; the first is in line 1, column 1"),
        ("a: {x: 1, x: 2}\n", "f.yaml:1:11: the key 'x' stands here a second time; the first is in line 1, column 5"),
        ('a: {x: 1, "x": 2}\n', "f.yaml:1:11: the key 'x' stands here a second time"),
        ("a: no\n", 'f.yaml:1:4: no is ambiguous (old YAML reads it as true or false): write "no" for text'),
        ("a: [1, Off]\n", "f.yaml:1:8: Off is ambiguous"),
        ("a: 010\n", "f.yaml:1:4: 010 is ambiguous (old YAML reads it as an octal number)"),
        ("a: 22:22\n", "f.yaml:1:4: 22:22 is ambiguous (old YAML reads it as a number to base 60)"),
        ("a: 1_000\n", "f.yaml:1:4: 1_000 is ambiguous (old YAML reads it as a number)"),
        ("a: 0b11\n", "f.yaml:1:4: 0b11 is ambiguous (old YAML reads it as a binary number)"),
        ("a: .inf\n", "f.yaml:1:4: .inf is not a finite number"),
        ("a: 1e999\n", "f.yaml:1:4: this number is too large or too long"),
        (f"a: {'1' * 5000}\n", "f.yaml:1:4: this number is too large or too long"),
        ("a: !!python/object:os.system x\n", "f.yaml:1:4: the tag"),
        ("a: !mine [1]\n", "f.yaml:1:4: the tag !mine is not understood"),
        ("a: !!str 5\n", "f.yaml:1:4: the tag tag:yaml.org,2002:str is not understood"),
        ("<<: {a: 1}\n", "f.yaml:1:1: merge keys are not part of YAML 1.2"),
        ("? [a, b]\n: 1\n", "f.yaml:1:3: a key must be a plain word"),
        ("a: &x [*x]\n", "this value contains itself"),
        ("a: [1, 2\nb: 3\n", "f.yaml:2:"),
        ("a:\n\t- 1\n", "f.yaml:2:1: this cannot be read as YAML"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: this cannot be read as YAML: expected a single document"),
        (
            "a: 1\nb: x\u2028c: 2\n",
            "f.yaml:2:5: the character U+2028 is ambiguous (old YAML reads it as the end of the line)",
        ),
        ("a: 1\nb: \x07\n", "f.yaml:2:4: this cannot be read as YAML: special characters"),
        ("[" * 1000, "f.yaml:1:51: this cannot be read as YAML: more than 50 lists and mappings inside one another"),
    ],
)
def test_surprises_are_errors_with_their_place(text: str, error: str) -> None:
    assert any(problem.startswith(error) or error in problem for problem in problems(text)), problems(text)


def test_a_file_that_unfolds_without_end_is_refused() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "unfolds to more than 100000 values" in problems("\n".join(lines))[0]


def test_all_errors_are_told_at_once_in_order() -> None:
    assert [problem.split(":")[1] for problem in problems("a: no\nb: 010\nb: yes\n")] == ["1", "2", "3"]


def test_plain_values_are_those_of_yaml_1_2() -> None:
    text = (
        "a: 1\nb: 1.5\nc: true\nd: null\ne: text\nf: \"no\"\ng: 2001-01-01\nh: 1e3\ni: 0\nj: '010'\non: 1\n"
        "k: 0x1F\nl: 0o17\nm: -7\nn: w1:eth1\no: 5ms\np: =\nq: |\n  no\nr: *never\n"
    ).replace("*never", '"*"')
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
        "k": 31,
        "l": 15,
        "m": -7,
        "n": "w1:eth1",
        "o": "5ms",
        "p": "=",
        "q": "no\n",
        "r": "*",
    }


def test_keys_are_text_whatever_they_look_like() -> None:
    assert parse("{no: 1, 010: 2, null: 3, 1: 4}", "f.yaml").value == {"no": 1, "010": 2, "null": 3, "1": 4}


def test_an_alias_stands_for_what_it_names() -> None:
    assert parse("a: &x {b: 1}\nc: *x\n", "f.yaml").value == {"a": {"b": 1}, "c": {"b": 1}}


def test_values_and_keys_know_their_places() -> None:
    document = parse("a:\n  - b: 1\n    c: 2\n", "f.yaml")
    assert document.mark(("a", 0, "c")) == Mark(3, 8)
    assert document.keys["a", 0, "c"] == Mark(3, 5)
    assert document.mark(("a", 0, "missing")) == document.mark(("a", 0)) == Mark(2, 5)
    assert str(document.key_error(("a", 0, "c"), "x")) == "f.yaml:3:5: x"
    assert str(document.key_error(("a", 0), "x")) == "f.yaml:2:5: x", "what has no key is named by its value"


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(DocumentErrors, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe4\n")
    with pytest.raises(DocumentErrors, match=r"latin.yaml:2:4: this byte is not UTF-8"):
        load(tmp_path / "latin.yaml")


_text = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xD7FF, exclude_categories=["Cc", "Zl", "Zp"]), max_size=12
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e12, 1e12).map(lambda x: x + 0.0) | _text,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_text.filter(lambda key: key != "<<"), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(values)
@example({"no": ["no", "010", "22:22", "<<", "~", ""]})
def test_json_is_yaml_and_is_read_as_what_it_says(value: object) -> None:
    assert parse(json.dumps(value, ensure_ascii=False), "f.yaml").value == value


@settings(deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), values, min_size=1, max_size=4))
def test_every_value_has_a_place_in_the_file(value: dict[str, object]) -> None:
    text = "".join(f"{key}: {json.dumps(one, ensure_ascii=False)}\n" for key, one in value.items())
    document = parse(text, "f.yaml")
    for number, key in enumerate(value, 1):
        assert document.keys[key,] == Mark(number, 1)
        assert document.mark((key,)) == Mark(number, len(key) + 3)


@settings(deadline=None)
@given(st.text(st.sampled_from("abno01:_-.,[]{}&*!|>'\"#%@` \n\t~<?=e\x00é𝄞"), max_size=40))
def test_whatever_is_written_is_read_or_refused_with_its_place(text: str) -> None:
    value, refused = None, []
    try:
        value = parse(text, "f.yaml").value
    except DocumentErrors as errors:
        refused = [*errors.errors]
    assert all(1 <= error.line <= text.count("\n") + 2 and error.column >= 1 for error in refused)
    assert not any(isinstance(one, float) and not math.isfinite(one) for one in _leaves(value))


def _leaves(value: object) -> list[object]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if inner is None else [leaf for one in inner for leaf in _leaves(one)]
