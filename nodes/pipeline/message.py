"""What crosses the network: a small header, then bytes that follow from everything before them.

Content is a digest spread over the size wanted. The digest depends on all that it should depend on; spreading is two
copies of memory, so that megabytes cost no more than their copy.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256, shake_128
from typing import NamedTuple

from pipeline.port import Buffer

DIGEST_SIZE = 32
"""SHA-256: of the standard library's hashes the fastest on processors that have instructions for it."""
_PERIOD = (1 << 20) + 7
"""The pattern repeats after this many bytes: prime to every frame and block size, so that no two places are alike."""


class Kind(IntEnum):
    ACTIVATION = 0
    TOKEN = 1
    FAILED = 2
    """A stage cannot go on with the request; the content says why, in UTF-8."""


class Header(NamedTuple):
    life: int
    """Of the source, drawn when it began: tells its requests from those of an earlier life."""
    request: int
    step: int
    """Which of the request's tokens is being made."""
    slot: int
    """The request's part of each stage's KV state, its own as long as it is in flight."""
    kind: int


_HEADER = struct.Struct("!IIIHBx")
HEADER_SIZE = _HEADER.size
_CONTEXT = struct.Struct("!QIIII")


def parse(message: Buffer) -> tuple[Header, memoryview]:
    """Header and content. Raises ValueError of a message that is too short."""
    if len(message) < HEADER_SIZE:
        raise ValueError(f"message of {len(message)} bytes; expected a header of {HEADER_SIZE} bytes at least")
    return Header._make(_HEADER.unpack_from(message)), memoryview(message)[HEADER_SIZE:]


def compose(header: Header, digest: bytes, size: int) -> bytes:
    """A message with ``size`` bytes of content that follow from ``digest``."""
    return b"".join((_HEADER.pack(*header), *_spread(digest, size)))


def failure(header: Header, why: str) -> bytes:
    """The message that gives this step of this request up."""
    return _HEADER.pack(*header._replace(kind=Kind.FAILED)) + why.encode()


def content(digest: bytes, size: int) -> bytes:
    """``size`` bytes that follow from ``digest``."""
    return b"".join(_spread(digest, size))


def derive(seed: int, place: int, request: int, step: int, *parts: Buffer) -> bytes:
    """The digest of what is computed at a place (0: the source; n: stage n) from these parts."""
    total = sha256(_CONTEXT.pack(seed, place, request, step, len(parts)))
    for part in parts:
        total.update(part)
    return total.digest()


def pattern(size: int) -> memoryview:
    """``size`` bytes, always the same, in which every place differs from every other nearby."""
    return memoryview(_pattern(size))


def _spread(digest: bytes, size: int) -> tuple[Buffer, ...]:
    if size <= DIGEST_SIZE:
        return (digest[:size],)
    start = int.from_bytes(digest[:8]) % size
    return digest, _doubled(size)[start : start + size - DIGEST_SIZE]


@lru_cache(maxsize=8)
def _doubled(size: int) -> memoryview:
    return memoryview(_pattern(2 * size))


@lru_cache(maxsize=4)
def _pattern(size: int) -> bytes:
    period = shake_128(b"pipeline").digest(min(size, _PERIOD))
    return (period * (size // len(period) + 1))[:size] if size else b""
