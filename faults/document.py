"""YAML files with nothing left to guess: YAML 1.2 scalars, no duplicate and no unknown keys, every error with its
place.

What older YAML would read in a surprising way (``no``, ``010``, ``22:22``) is an error that shows the source text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

_Model = TypeVar("_Model", bound=BaseModel)
Place = tuple[str | int, ...]
"""Keys and indices that lead to a value from the top."""

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?")
_OLD_BOOLEANS = frozenset({"y", "n", "yes", "no", "on", "off"})
_CORE_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))

_RESOLVED_TAGS = frozenset({"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"})
"""What the library takes some plain scalars for; here they are text."""


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

    def mark(self, place: Iterable[str | int]) -> Mark:
        """Where a value stands; if it is missing, where what should hold it stands."""
        parts = tuple(place)
        while parts and parts not in self.marks:
            parts = parts[:-1]
        return self.marks.get(parts, Mark(1, 1))

    def error(self, place: Iterable[str | int], message: str) -> DocumentError:
        return DocumentError(self.path, self.mark(place), message)


def load(path: Path) -> Document:
    """Read a YAML file. Raises DocumentErrors."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        mark = Mark(before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        raise DocumentErrors(
            [DocumentError(str(path), mark, "this byte is not UTF-8: expected a text file")]
        ) from error
    except OSError as error:
        raise DocumentErrors([DocumentError(str(path), Mark(1, 1), f"cannot be read: {error.strerror}")]) from error
    return parse(text, str(path))


def parse(text: str, path: str) -> Document:
    """Read YAML from a string; ``path`` is what errors call it. Raises DocumentErrors."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        mark = Mark(at.line + 1, at.column + 1) if at else Mark(1, 1)
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise DocumentErrors([DocumentError(path, mark, f"this is not YAML: {what}")]) from error
    except yaml.YAMLError as error:
        raise DocumentErrors([DocumentError(path, Mark(1, 1), f"this is not YAML: {error}")]) from error
    document = Document(path, None)
    reader = _Reader(document)
    document.value = reader.value(node, ()) if node is not None else None
    if reader.errors:
        raise DocumentErrors(reader.errors)
    return document


class _Reader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._open: list[int] = []
        self.errors: list[DocumentError] = []

    def value(self, node: yaml.Node, place: Place) -> Any:
        mark = _mark(node)
        self._document.marks.setdefault(place, mark)
        if node.tag not in _CORE_TAGS and not isinstance(node, yaml.ScalarNode):
            self._complain(mark, f"the tag {node.tag} is not understood: write plain values")
        if id(node) in self._open:
            self._complain(mark, "this value contains itself")
            return None
        self._open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, place)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*place, number)) for number, item in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, Mark] = {}
        for key_node, value_node in node.value:
            mark = _mark(key_node)
            key = self._key(key_node)
            if key is None:
                continue
            if key in first:
                self._complain(
                    mark, f"the key {key!r} stands here a second time; the first is in line {first[key].line}"
                )
                continue
            first[key] = mark
            self._document.marks[*place, key] = mark
            result[key] = self.value(value_node, (*place, key))
        return result

    def _key(self, node: yaml.Node) -> str | None:
        """A key is a string whatever it looks like: nothing that people name things is taken for a number or a truth
        value.
        """
        if not isinstance(node, yaml.ScalarNode):
            self._complain(_mark(node), "a key must be a plain word")
            return None
        if node.value == "<<":
            self._complain(_mark(node), "merge keys are not part of YAML 1.2: write the keys out, or use `defaults`")
            return None
        return str(node.value)

    def _scalar(self, node: yaml.Node) -> Any:
        text = str(node.value)
        if getattr(node, "style", None) is not None:  # quoted or a block: text
            return text
        if node.tag not in _CORE_TAGS | _RESOLVED_TAGS:
            self._complain(_mark(node), f"the tag {node.tag} is not understood: write plain values")
            return None
        if text in ("", "~", "null", "Null", "NULL"):
            return None
        if text in ("true", "True", "TRUE"):
            return True
        if text in ("false", "False", "FALSE"):
            return False
        if text.lower() in _OLD_BOOLEANS:
            self._surprise(node, text, "old YAML reads it as true or false")
        elif _LEADING_ZERO.fullmatch(text):
            self._surprise(node, text, "old YAML reads it as an octal number")
        elif _SEXAGESIMAL.fullmatch(text):
            self._surprise(node, text, "old YAML reads it as a number to base 60")
        elif _INTEGER.fullmatch(text):
            return int(text)
        elif _FLOAT.fullmatch(text):
            return float(text)
        return text

    def _surprise(self, node: yaml.Node, text: str, why: str) -> None:
        self._complain(
            _mark(node), f'{text} is ambiguous ({why}): write "{text}" for text, or true, false or a plain number'
        )

    def _complain(self, mark: Mark, message: str) -> None:
        self.errors.append(DocumentError(self._document.path, mark, message))


def _mark(node: yaml.Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def read(document: Document, model: type[_Model]) -> _Model:
    """The document as its model. Raises DocumentErrors: every mistake, with its place and what was expected."""
    if not isinstance(document.value, dict):
        raise DocumentErrors(
            [DocumentError(document.path, Mark(1, 1), f"expected keys and values of a {model.__name__.lower()}")]
        )
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        known = _all_keys(model)
        found = [_translate(document, one, known) for one in error.errors(include_url=False)]
        raise DocumentErrors(found) from error


def _translate(document: Document, error: Any, known: list[str]) -> DocumentError:
    place = _in_document(document, error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        key = str(error["loc"][-1])
        near = difflib.get_close_matches(key, known, 1)
        message = f"unknown key {key!r}" + (f": did you mean {near[0]!r}?" if near else "")
    elif error["type"] == "missing":
        message = f"the key {error['loc'][-1]!r} is missing"
    elif not message.startswith(repr(error["input"])):
        shown = repr(error["input"])
        message = f"{message[0].lower()}{message[1:]}" + (
            f", not {shown}" if len(shown) < 60 and "ctx" not in error else ""
        )
    return document.error(place, message)


def _in_document(document: Document, location: Iterable[str | int]) -> Place:
    """Pydantic's location without the parts that are its own (names of union members)."""
    place: Place = ()
    for part in location:
        if (*place, part) in document.marks:
            place = (*place, part)
    return place


def _all_keys(model: type[BaseModel]) -> list[str]:
    schema = model.model_json_schema(by_alias=True)
    keys = set(schema.get("properties", {}))
    for definition in schema.get("$defs", {}).values():
        keys |= set(definition.get("properties", {}))
    return sorted(keys)
