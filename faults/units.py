"""Quantities as people write them: a number and its unit, never a bare number.

Inside everything is an integer or a float in one unit: ns, bytes, bits per second, events per second, probabilities
in [0, 1].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([A-Za-z%/µ]*)")

_DURATIONS: Mapping[str, int] = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
}
_SIZES: Mapping[str, int] = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
_RATES: Mapping[str, int] = {"bit": 1, "kbit": 1000, "Kbit": 1000, "Mbit": 1000**2, "Gbit": 1000**3}
_FREQUENCIES: Mapping[str, Fraction] = {"/s": Fraction(1), "/min": Fraction(1, 60)}

LONGEST = 24 * 60 * _DURATIONS["min"]
"""ns. Beyond a day nothing here has a meaning, and times stay far from the end of 63 bits."""
FASTEST = 400 * _RATES["Gbit"]
"""bit/s. At this rate the smallest frame takes about a nanosecond, the finest step of the model's clock."""
RAREST = Fraction(1, 10**9)
"""Smallest difference from never and from always that a probability may have."""


def _parse(text: object, units: Mapping[str, int | Fraction], example: str) -> Fraction:
    expected = f"expected a number and one of the units {', '.join(units)}, such as {example}"
    if not isinstance(text, str):
        raise ValueError(f"{text!r} has no unit: {expected}")
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: {expected}")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"{text!r} has no unit: {expected}")
    if unit not in units:
        raise ValueError(f"{text!r} has the unknown unit {unit!r}: {expected}")
    return Fraction(number) * units[unit]


def _whole(value: Fraction, text: object, unit: str) -> int:
    """T26: what would be rounded away is refused."""
    if value.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of {unit}, so it would not be what was asked for")
    return int(value)


def parse_duration(text: object) -> int:
    """``5ms`` -> 5000000 ns. Raises ValueError."""
    duration = _whole(_parse(text, _DURATIONS, "5ms"), text, "ns")
    if duration > LONGEST:
        raise ValueError(f"{text!r} is longer than a day: expected at most {LONGEST // _DURATIONS['min']}min")
    return duration


def parse_size(text: object) -> int:
    """``64KiB`` -> 65536 bytes. Raises ValueError."""
    return _whole(_parse(text, _SIZES, "64KiB"), text, "bytes")


def parse_rate(text: object) -> int:
    """``50Mbit`` -> 50000000 bit/s; ``50Mbit/s`` is the same. Raises ValueError."""
    plain = text.removesuffix("/s") if isinstance(text, str) else text
    rate = _whole(_parse(plain, _RATES, "50Mbit"), text, "bit/s")
    if rate == 0:
        raise ValueError(f"{text!r}: a rate of 0 would let nothing pass; leave it out for no limit, or say down: true")
    if rate > FASTEST:
        raise ValueError(f"{text!r} would limit nothing: expected at most {FASTEST // _RATES['Gbit']}Gbit, or no rate")
    return rate


def parse_probability(text: object) -> float:
    """``0.1%`` -> 0.001; ``0%`` is never and ``100%`` is always, exactly. Raises ValueError."""
    share = _parse(text, {"%": Fraction(1, 100)}, "0.1%")
    if share > 1:
        raise ValueError(f"{text!r} is more than 100%")
    if 0 < share < RAREST or 0 < 1 - share < RAREST:
        near = "0%" if share < RAREST else "100%"
        raise ValueError(
            f"{text!r} differs from {near} by less than one in a thousand million: no run would show it;"
            f" expected {near}, or a difference of at least 0.0000001%"
        )
    return float(share)


def parse_frequency(text: object) -> float:
    """``50/s`` -> 50.0 per second. Raises ValueError."""
    frequency = _parse(text, _FREQUENCIES, "50/s")
    if frequency == 0:
        raise ValueError(f"{text!r}: nothing would ever happen; leave it out instead")
    return float(frequency)


def _type(parse: Callable[[object], Any], example: str, units: Mapping[str, object]) -> Any:
    pattern = r"^[0-9]+(\.[0-9]+)? ?(" + "|".join(map(re.escape, units)) + ")$"
    return (BeforeValidator(parse), WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]}))


Duration = Annotated[int, *_type(parse_duration, "5ms", _DURATIONS)]
Size = Annotated[int, *_type(parse_size, "64KiB", _SIZES)]
Rate = Annotated[int, *_type(parse_rate, "50Mbit", {**_RATES, **{f"{unit}/s": 1 for unit in _RATES}})]
Probability = Annotated[float, *_type(parse_probability, "0.1%", {"%": 1})]
Frequency = Annotated[float, *_type(parse_frequency, "50/s", _FREQUENCIES)]
