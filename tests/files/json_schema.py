"""As much of JSON Schema as editors need for the schemas of this project. Words it does not know are an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}
_SAYS_NOTHING = {"$defs", "default", "description", "examples", "title", "discriminator"}


def complaints(root: Mapping[str, Any], value: object, schema: Mapping[str, Any] | None = None) -> list[str]:
    """What the schema has against a value."""
    return list(_complaints(root, schema if schema is not None else root, value, "top"))


def _complaints(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
    for word, rule in schema.items():
        if word in _SAYS_NOTHING or word in ("additionalProperties", "items"):
            continue
        if word == "$ref":
            yield from _complaints(root, root["$defs"][rule.rpartition("/")[2]], value, where)
        elif word in ("anyOf", "oneOf"):
            fitting = sum(not list(_complaints(root, one, value, where)) for one in rule)
            if fitting == 0 or (word == "oneOf" and fitting > 1):
                yield f"{where}: {fitting} of {len(rule)} alternatives fit"
        elif word == "not":
            if not list(_complaints(root, rule, value, where)):
                yield f"{where}: {value!r} must not be"
        elif not _holds(root, word, rule, schema, value):
            yield f"{where}: {value!r} against {word} {rule!r}"
    if isinstance(value, dict):
        yield from _in_object(root, schema, value, where)
    if isinstance(value, list):
        fixed = schema.get("prefixItems", [])
        for number, item in enumerate(value):
            rule = fixed[number] if number < len(fixed) else schema.get("items", {})
            yield from _complaints(root, rule, item, f"{where}[{number}]")


def _in_object(root: Mapping[str, Any], schema: Mapping[str, Any], value: dict[str, Any], where: str) -> Iterator[str]:
    patterns = schema.get("patternProperties", {})
    for key, item in value.items():
        rule = schema.get("properties", {}).get(key)
        rule = rule if rule is not None else next((patterns[p] for p in patterns if re.search(p, key)), None)
        rule = rule if rule is not None else schema.get("additionalProperties", True)
        if rule is False:
            yield f"{where}: unexpected {key}"
        elif rule is not True:
            yield from _complaints(root, rule, item, f"{where}.{key}")
        yield from _complaints(root, schema.get("propertyNames", {}), key, f"{where}: key {key}")


def _holds(root: Mapping[str, Any], word: str, rule: Any, schema: Mapping[str, Any], value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match word:
        case "type":
            fits = isinstance(value, _TYPES[rule])
            return fits and (rule == "boolean" or not isinstance(value, bool))
        case "enum":
            return value in rule
        case "const":
            return bool(value == rule)
        case "pattern":
            return not isinstance(value, str) or re.search(rule, value) is not None
        case "minimum":
            return not number or value >= rule
        case "maximum":
            return not number or value <= rule
        case "exclusiveMaximum":
            return not number or value < rule
        case "minItems":
            return not isinstance(value, list) or len(value) >= rule
        case "maxItems":
            return not isinstance(value, list) or len(value) <= rule
        case "required":
            return not isinstance(value, dict) or all(key in value for key in rule)
        case "properties" | "patternProperties" | "propertyNames" | "prefixItems":
            return True  # looked at with the value's parts
    raise AssertionError(f"the schema says {word}, which this test does not know")
