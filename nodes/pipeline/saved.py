"""How a role's memory is laid down in a region when its endpoint moves, and read again where it arrives."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pipeline.port import Buffer, Region

PARAMETERS = "pipeline"
"""The region with the parameters, so that any node can play any role that comes."""
STATE = "state"
"""The region with counters and tables."""
PENDING = "pending"
"""The region with messages that were received and not worked on, or made and not sent."""

_COUNT = struct.Struct("!I")


def save(region: Region, parts: Sequence[Buffer]) -> None:
    """Replace the content of the region by these byte strings."""
    size = _COUNT.size * (1 + len(parts)) + sum(len(part) for part in parts)
    if len(region) != size:
        region.resize(size)
    region.write(0, _COUNT.pack(len(parts)) + b"".join(_COUNT.pack(len(part)) for part in parts))
    offset = _COUNT.size * (1 + len(parts))
    for part in parts:
        region.write(offset, part)
        offset += len(part)


def load(region: Region) -> list[bytes]:
    """What ``save`` put in; an empty list of a region that was never written."""
    view = region.view
    if not view:
        return []
    (count,) = _COUNT.unpack_from(view)
    sizes = [size for (size,) in _COUNT.iter_unpack(view[_COUNT.size : _COUNT.size * (1 + count)])]
    parts = []
    offset = _COUNT.size * (1 + count)
    for size in sizes:
        parts.append(bytes(view[offset : offset + size]))
        offset += size
    return parts
