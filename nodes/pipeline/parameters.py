"""What a pipeline is asked to be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

MOST_CONCURRENT = 65_535
"""The slot of a request has two bytes in the header of a message."""
MOST_REQUESTS = 1 << 32
MOST_SEED = 1 << 64


class ParameterError(ValueError):
    """A parameter that cannot be meant; the text names it and what was expected."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Sizes in bytes, times in ns."""

    seed: int
    stages: int
    requests_per_s: float
    requests: int
    """The source stops after this many."""
    tokens: int
    """Tokens, and so steps through all stages, of each request."""
    activation_bytes: int
    token_bytes: int
    kv_bytes: int
    """State of each stage; a request in flight has an equal part of it."""
    kv_dirty_bytes: int
    """How much of its part a request rewrites at every step."""
    compute_ns: int
    """Time that a stage takes for one step of one request."""
    concurrency: int
    """Requests in flight at most. More that are due wait; none is dropped."""
    compute_units: int = 1
    """Steps that a stage works on at a time."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            _whole(name, getattr(self, name), least)
        rate = self.requests_per_s
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate < math.inf:
            raise ParameterError(f"pipeline.requests_per_s is {rate!r}; expected a number above 0")
        if self.concurrency > MOST_CONCURRENT:
            raise ParameterError(f"pipeline.concurrency is {self.concurrency}; expected at most {MOST_CONCURRENT}")
        if self.seed >= MOST_SEED:
            raise ParameterError(f"seed is {self.seed}; expected less than 2**64")
        if self.requests >= MOST_REQUESTS:
            raise ParameterError(f"pipeline.requests is {self.requests}; expected less than {MOST_REQUESTS}")
        if self.kv_dirty_bytes > self.slot_bytes:
            raise ParameterError(
                f"pipeline.kv_dirty_bytes is {self.kv_dirty_bytes}, but a request has only "
                f"{self.slot_bytes} bytes to write them into "
                f"(kv_bytes {self.kv_bytes} / concurrency {self.concurrency}); enlarge kv_bytes or lower concurrency"
            )

    @property
    def slot_bytes(self) -> int:
        """A request's part of a stage's KV state."""
        return self.kv_bytes // self.concurrency

    @classmethod
    def load(cls, seed: int, content: Mapping[str, Any]) -> Parameters:
        """From the ``pipeline`` object of ``node.json``. Raises ParameterError."""
        known = {field.name for field in fields(cls)} - {"seed"}
        if unknown := sorted(set(content) - known):
            raise ParameterError(
                f"pipeline.{unknown[0]}: no such parameter; expected one of {', '.join(sorted(known))}"
            )
        if missing := sorted(known - {"compute_units"} - set(content)):
            raise ParameterError(f"pipeline.{missing[0]} is missing")
        return cls(seed=seed, **content)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Parameters:
        return cls(**json.loads(text))


_LEAST = {
    "seed": 0,
    "stages": 1,
    "requests": 0,
    "tokens": 1,
    "activation_bytes": 1,
    "token_bytes": 1,
    "kv_bytes": 0,
    "kv_dirty_bytes": 0,
    "compute_ns": 0,
    "concurrency": 1,
    "compute_units": 1,
}


def _whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ParameterError(f"pipeline.{name} is {value!r}; expected a whole number of at least {least}")
