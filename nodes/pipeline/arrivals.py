"""When requests come in: an open load whose times depend on the seed and the number of the request alone."""

from __future__ import annotations

import math
import struct
from hashlib import blake2b

_SECOND = 1_000_000_000


def gap(seed: int, request: int, rate: float) -> int:
    """Time in ns between the request before and this one: exponentially distributed, ``rate`` a second on average."""
    drawn = blake2b(struct.pack("!QI", seed, request), digest_size=8, person=b"arrival").digest()
    uniform = (int.from_bytes(drawn) + 0.5) / (1 << 64)
    return round(-math.log(uniform) / rate * _SECOND)
