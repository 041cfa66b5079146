"""From a document to a model: every mistake in the words of the file, at its line and column."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from faults.document import Document, DocumentError, DocumentErrors, Mark, Place

_Model = TypeVar("_Model", bound=BaseModel)

EVERY = "*"
"""In a pattern of places: any key."""

_EXPECTED = {
    "bool_type": "expected true or false",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "string_type": "expected text; what looks like a number needs quotes to be text",
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "dict_type": "expected keys and values",
    "model_type": "expected keys and values",
    "model_attributes_type": "expected keys and values",
}
"""Pydantic's types of errors -> what people are told instead."""


def read(document: Document, model: type[_Model], may_be_empty: Collection[Place] = ()) -> _Model:
    """The document as its model. Raises DocumentErrors: every mistake, with its place and what was expected.

    A key without a value is a mistake, except at the places ``may_be_empty`` (patterns; ``EVERY`` is any key).
    """
    if not isinstance(document.value, dict):
        raise DocumentErrors(
            [DocumentError(document.path, Mark(1, 1), f"expected keys and values of a {model.__name__.lower()}")]
        )
    empty = [place for place in _empty(document.value, ()) if not any(_fits(place, one) for one in may_be_empty)]
    errors = [
        document.key_error(place, f"{_named(place)} has no value: give it one or leave it out") for place in empty
    ]
    try:
        result = model.model_validate(document.value)
    except ValidationError as error:
        schema = model.model_json_schema(by_alias=True)
        for one in error.errors(include_url=False):
            place = _in_document(document, one["loc"])
            if place not in empty:
                errors.append(_translate(document, one, place, schema))
    if errors:
        raise DocumentErrors(errors)
    return result


def suggest(name: str, known: Iterable[str]) -> str:
    """What a name was probably meant to be, or else what names there are; to be put behind an error."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f": did you mean {near[0]!r}?"
    return f"; there are {', '.join(names)}" if names else "; there are none"


def _empty(value: object, place: Place) -> Iterator[Place]:
    inner: Iterable[tuple[str | int, object]] = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for part, one in inner:
        if one is None:
            yield (*place, part)
        yield from _empty(one, (*place, part))


def _fits(place: Place, pattern: Place) -> bool:
    return len(place) == len(pattern) and all(one in (EVERY, part) for part, one in zip(place, pattern, strict=True))


def _named(place: Place) -> str:
    return f"the key {place[-1]!r}" if isinstance(place[-1], str) else "this item"


def _translate(document: Document, error: Any, place: Place, schema: Mapping[str, Any]) -> DocumentError:
    kind, given = error["type"], error["input"]
    last = error["loc"][-1] if error["loc"] else ""
    message = str(error["msg"]).removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return document.key_error(place, f"unknown key {str(last)!r}" + suggest(str(last), _keys(schema, place[:-1])))
    if last == "[key]":
        return document.key_error(place, message)
    if kind == "missing":
        what = f"the key {last!r} is missing" if isinstance(last, str) else f"expected {int(last) + 1} items at least"
        return document.error(place, what)
    shown = document.sources.get(place, repr(given))
    if kind in _EXPECTED:
        message = _EXPECTED[kind]
    elif message.startswith(repr(given)):
        return document.error(place, shown + message[len(repr(given)) :])
    elif kind == "value_error":
        return document.error(place, message)
    elif kind == "literal_error":
        message = f"expected {error['ctx']['expected']}"
    else:
        message = message[:1].lower() + message[1:]
    return document.error(place, message + (f", not {shown}" if len(shown) < 60 else ""))


def _in_document(document: Document, location: Iterable[str | int]) -> Place:
    """Pydantic's location without the parts that are its own (names of union members)."""
    place: Place = ()
    for part in location:
        if (*place, part) in document.marks:
            place = (*place, part)
    return place


def _keys(schema: Mapping[str, Any], place: Place) -> set[str]:
    """The keys that may stand at a place, by the model's JSON schema."""
    there = _alternatives(schema, schema)
    for part in place:
        inner = [_inside(one, part) for one in there]
        there = [leaf for one in inner if one is not None for leaf in _alternatives(schema, one)]
    return {key for one in there for key in one.get("properties", ())}


def _alternatives(root: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "$ref" in schema:
        return _alternatives(root, root["$defs"][schema["$ref"].rpartition("/")[2]])
    several = [one for word in ("anyOf", "oneOf", "allOf") for one in schema.get(word, ())]
    return [leaf for one in several for leaf in _alternatives(root, one)] if several else [schema]


def _inside(schema: Mapping[str, Any], part: str | int) -> Mapping[str, Any] | None:
    if isinstance(part, int):
        fixed = schema.get("prefixItems", ())
        found = fixed[part] if part < len(fixed) else schema.get("items")
    else:
        found = schema.get("properties", {}).get(part) or schema.get("additionalProperties")
        patterns = schema.get("patternProperties")
        if not found and patterns:
            found = next(iter(patterns.values()))
    return found if isinstance(found, Mapping) else None
