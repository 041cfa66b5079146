"""Bounded memory of what is over."""

from __future__ import annotations

from typing import TypeVar

_REMEMBERED = 8192
_K = TypeVar("_K")
_V = TypeVar("_V")


def remember(table: dict[_K, _V], key: _K, what: _V) -> None:
    """Keep an answer for whoever comes late; the oldest of too many is forgotten."""
    table[key] = what
    if len(table) > _REMEMBERED:
        del table[next(iter(table))]
