"""Quantities: what is accepted is exactly what was written, and the rest is refused with an example."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults import units


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_duration, "5ms", 5_000_000),
        (units.parse_duration, "0.5us", 500),
        (units.parse_duration, "2min", 120_000_000_000),
        (units.parse_duration, "0s", 0),
        (units.parse_size, "64KiB", 65536),
        (units.parse_size, "1.5kB", 1500),
        (units.parse_rate, "50Mbit", 50_000_000),
        (units.parse_rate, "1Gbit/s", 1_000_000_000),
        (units.parse_probability, "0.5%", 0.005),
        (units.parse_probability, "100%", 1.0),
        (units.parse_probability, "0%", 0.0),
        (units.parse_frequency, "30/min", 0.5),
        (units.parse_probability, "0.0000001%", 1e-9),
        (units.parse_rate, "400Gbit", 400_000_000_000),
    ],
)
def test_what_is_accepted(parse: Callable[[object], float], text: object, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (units.parse_duration, 5, "5 has no unit: expected a number and one of the units ns, us"),
        (units.parse_duration, "5", "has no unit"),
        (units.parse_duration, "5 parsecs", "unknown unit 'parsecs'"),
        (units.parse_duration, "-5ms", "not a quantity"),
        (units.parse_duration, "0.5ns", "not a whole number of ns"),
        (units.parse_size, "1.5B", "not a whole number of bytes"),
        (units.parse_rate, "0bit", "let nothing pass"),
        (units.parse_rate, "50MB", "unknown unit"),
        (units.parse_probability, "101%", "more than 100%"),
        (units.parse_probability, "0.5", "has no unit"),
        (units.parse_probability, True, "has no unit"),
        (units.parse_frequency, "0/s", "nothing would ever happen"),
        (units.parse_probability, "0.00000001%", "differs from 0% by less than one in a thousand million"),
        (units.parse_probability, "99.99999999999%", "differs from 100% by less"),
        (units.parse_rate, "401Gbit", "would limit nothing: expected at most 400Gbit"),
        (units.parse_duration, "1441min", "longer than a day"),
        (units.parse_duration, "1" * 5000 + "ms", "is not a quantity"),
    ],
)
def test_what_is_refused(parse: Callable[[object], float], text: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


@settings(deadline=None)
@given(st.integers(1, 86_400), st.sampled_from(["ns", "us", "ms", "s"]))
def test_no_positive_duration_becomes_nothing(number: int, unit: str) -> None:
    assert units.parse_duration(f"{number}{unit}") > 0


@settings(deadline=None)
@given(st.integers(1, 10**9))
def test_no_positive_probability_becomes_nothing(billionths: int) -> None:
    assert units.parse_probability(f"{billionths / 10**7:.7f}%") > 0
