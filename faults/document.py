"""YAML files with nothing left to guess: YAML 1.2 scalars, no duplicate keys, every error with its place.

What older YAML would read in a surprising way (``no``, ``010``, ``22:22``) is an error that shows the source text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Place = tuple[str | int, ...]
"""Keys and indices that lead to a value from the top."""

MOST_VALUES = 100_000
"""Values in one file, each counted where it stands and wherever an alias repeats it."""
DEEPEST = 50
"""Lists and mappings inside one another."""
MOST_DIGITS = 30

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_OTHER_BASE = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OLD_BREAK = re.compile("[\x85\u2028\u2029]")
_SURPRISES = (
    (re.compile(r"(?i:y|n|yes|no|on|off)"), "old YAML reads it as true or false"),
    (re.compile(r"[-+]?0[0-9_]+"), "old YAML reads it as an octal number"),
    (re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"), "old YAML reads it as a number to base 60"),
    (re.compile(r"[-+]?[0-9][0-9]*_[0-9_]*(\.[0-9_]*)?"), "old YAML reads it as a number"),
    (re.compile(r"[-+]?0b[01_]+"), "old YAML reads it as a binary number"),
)


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in a file, counted from 1."""

    line: int
    column: int


class DocumentError(Exception):
    """Something is wrong in a file: where, what, and what was expected."""

    def __init__(self, path: str, mark: Mark, message: str) -> None:
        super().__init__(f"{path}:{mark.line}:{mark.column}: {message}")
        self.path = path
        self.line, self.column = mark.line, mark.column
        self.message = message


class DocumentErrors(Exception):
    """All that is wrong in one or more files, in the order of their lines."""

    def __init__(self, errors: Iterable[DocumentError]) -> None:
        self.errors = sorted(errors, key=lambda error: (error.path, error.line, error.column))
        super().__init__("\n".join(map(str, self.errors)))


@dataclass(slots=True)
class Document:
    """A file's content as plain Python values, with the place of each."""

    path: str
    value: Any
    marks: dict[Place, Mark] = field(default_factory=dict)
    """Where each value stands."""
    keys: dict[Place, Mark] = field(default_factory=dict)
    """Where the key of each value stands, if it has one."""
    sources: dict[Place, str] = field(default_factory=dict)
    """How numbers, truth values and nothing are written."""

    def mark(self, place: Iterable[str | int]) -> Mark:
        """Where a value stands; if it is missing, where what should hold it stands."""
        parts = tuple(place)
        while parts and parts not in self.marks:
            parts = parts[:-1]
        return self.marks.get(parts, Mark(1, 1))

    def error(self, place: Iterable[str | int], message: str) -> DocumentError:
        """Something about a value."""
        return DocumentError(self.path, self.mark(place), message)

    def key_error(self, place: Iterable[str | int], message: str) -> DocumentError:
        """Something about a key, or about all that stands under it."""
        parts = tuple(place)
        return DocumentError(self.path, self.keys.get(parts) or self.mark(parts), message)


def load(path: Path) -> Document:
    """Read a YAML file. Raises DocumentErrors."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        mark = Mark(before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        raise _one(str(path), mark, "this byte is not UTF-8: expected a text file") from error
    except OSError as error:
        raise _one(str(path), Mark(1, 1), f"cannot be read: {error.strerror}") from error
    return parse(text, str(path))


def parse(text: str, path: str) -> Document:
    """Read YAML from a string; ``path`` is what errors call it. Raises DocumentErrors."""
    strange = _OLD_BREAK.search(text)
    if strange is not None:
        what = f"the character U+{ord(strange.group()):04X} is ambiguous (old YAML reads it as the end of the line)"
        raise _one(path, _place(text, strange.start()), f"{what}: take it out")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        mark = Mark(at.line + 1, at.column + 1) if at else Mark(1, 1)
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise _one(path, mark, f"this cannot be read as YAML: {what}") from error
    except yaml.reader.ReaderError as error:
        raise _one(path, _place(text, error.position), f"this cannot be read as YAML: {error.reason}") from error
    document = Document(path, None)
    reader = _Reader(document)
    for tag, mark in loader.tags:
        reader.complain(mark, f"the tag {tag} is not understood: write plain values")
    try:
        document.value = reader.value(node, ()) if node is not None else None
    except _TooMuch as error:
        reader.complain(error.mark, str(error))
    if reader.errors:
        raise DocumentErrors(reader.errors)
    return document


def _place(text: str, at: int) -> Mark:
    return Mark(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


def _one(path: str, mark: Mark, message: str) -> DocumentErrors:
    return DocumentErrors([DocumentError(path, mark, message)])


def _mark(node: yaml.Node | yaml.Event) -> Mark:
    mark = node.start_mark
    return Mark(mark.line + 1, mark.column + 1) if mark else Mark(1, 1)


class _Loader(yaml.BaseLoader):
    """Composes nodes without guessing what scalars are, and notes the tags that somebody has written."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.tags: list[tuple[str, Mark]] = []
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            self.tags.append((event.tag, _mark(event)))
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.MarkedYAMLError(
                problem=f"more than {DEEPEST} lists and mappings inside one another", problem_mark=event.start_mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _TooMuch(Exception):
    def __init__(self, mark: Mark) -> None:
        super().__init__(f"the file unfolds to more than {MOST_VALUES} values")
        self.mark = mark


class _Reader:
    """Turns nodes into values, and collects what is wrong with them."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._open: list[int] = []
        self._count = 0
        self.errors: list[DocumentError] = []

    def value(self, node: yaml.Node, place: Place) -> Any:
        mark = _mark(node)
        self._document.marks[place] = mark
        self._count += 1
        if self._count > MOST_VALUES:
            raise _TooMuch(mark)
        if id(node) in self._open:
            self.complain(mark, "this value contains itself")
            return None
        self._open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, place)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*place, number)) for number, item in enumerate(node.value)]
            assert isinstance(node, yaml.ScalarNode)
            return self._scalar(node, place)
        finally:
            self._open.pop()

    def complain(self, mark: Mark, message: str) -> None:
        self.errors.append(DocumentError(self._document.path, mark, message))

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            mark = _mark(key_node)
            key = self._key(key_node)
            if key is None:
                continue
            first = self._document.keys.setdefault((*place, key), mark)
            if key in result:
                self.complain(
                    mark,
                    f"the key {key!r} stands here a second time; the first is in line {first.line},"
                    f" column {first.column}",
                )
                continue
            result[key] = self.value(value_node, (*place, key))
        return result

    def _key(self, node: yaml.Node) -> str | None:
        """A key is a string whatever it looks like: nothing that people name things is taken for a number or a truth
        value.
        """
        if not isinstance(node, yaml.ScalarNode):
            self.complain(_mark(node), "a key must be a plain word")
            return None
        if node.value == "<<":
            self.complain(_mark(node), "merge keys are not part of YAML 1.2: write the keys out, or use `defaults`")
            return None
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        text = str(node.value)
        if node.style is not None:  # quoted or a block: text
            return text
        value = self._plain(node, text)
        if not isinstance(value, str):
            self._document.sources[place] = text
        return value

    def _plain(self, node: yaml.Node, text: str) -> Any:
        """A scalar without quotes, by the core schema of YAML 1.2."""
        if text in ("", "~", "null", "Null", "NULL"):
            return None
        if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
            return text.lower() == "true"
        for pattern, why in _SURPRISES:
            if pattern.fullmatch(text):
                self.complain(
                    _mark(node),
                    f'{text} is ambiguous ({why}): write "{text}" for text, or true, false or a plain number',
                )
                return text
        if _NOT_FINITE.fullmatch(text):
            self.complain(_mark(node), f'{text} is not a finite number: write "{text}" for text')
            return text
        return self._number(node, text)

    def _number(self, node: yaml.Node, text: str) -> Any:
        whole, other_base = _INTEGER.fullmatch(text), _OTHER_BASE.fullmatch(text)
        if not whole and not other_base and not _FLOAT.fullmatch(text):
            return text
        if len(text) > MOST_DIGITS or not math.isfinite(number := float(text) if not other_base else 0.0):
            self.complain(_mark(node), "this number is too large or too long: expected at most 30 digits")
            return text
        return int(text) if whole else int(text, 0) if other_base else number
