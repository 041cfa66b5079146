"""A stage's KV state: one region, of which every request in flight has its own slot.

A slot is written in blocks of ``kv_dirty_bytes``, one a step, round and round. What a step computes depends on the
block that the step before wrote, on the block that it overwrites, and at the last step on all that the request wrote
and on a piece of what nobody ever writes. So a byte that is lost on the way to another node is missed by somebody,
while a step costs little and a request's bytes do not depend on which slot it has or who had it before.
"""

from __future__ import annotations

from pipeline import message
from pipeline.parameters import Parameters
from pipeline.port import Region

REGION = "kv"
_PIECE = 64 * 1024
"""Bytes read, once for each request, of the part that is only carried around."""
_FILL = 4 * 1024 * 1024


class KvState:
    """The slots in a region of ``kv_bytes``."""

    def __init__(self, region: Region, parameters: Parameters) -> None:
        self._region = region
        self._view = region.view
        self._tokens = parameters.tokens
        self._slot = parameters.slot_bytes
        self._block = parameters.kv_dirty_bytes
        self._blocks = self._slot // self._block if self._block else 0

    def fill(self) -> None:
        """What a new stage begins with: every slot the same, no two places of a slot alike, nothing zero."""
        slot = message.pattern(self._slot)
        for start in range(0, len(self._region) - self._slot + 1, self._slot or 1):
            for offset in range(0, self._slot, _FILL):
                self._region.write(start + offset, slot[offset : offset + _FILL])

    def let_go(self) -> None:
        """The state is not here any more: keep nothing of it in memory."""
        self._view = memoryview(b"")

    def read(self, slot: int, request: int, step: int) -> list[memoryview]:
        """What this step of this request depends on."""
        if not self._slot:
            return []
        parts = []
        blocks = self._blocks
        if step == self._tokens - 1:
            parts = [self._at(slot, 0, min(step, blocks) * self._block), self._carried(slot, request)]
        elif blocks and step:
            parts.append(self._at(slot, (step - 1) % blocks * self._block, self._block))
            if step >= blocks:
                parts.append(self._at(slot, step % blocks * self._block, self._block))
        return parts

    def write(self, slot: int, step: int, digest: bytes) -> None:
        """Put in what follows from this step's digest."""
        if self._blocks:
            offset = slot * self._slot + step % self._blocks * self._block
            self._region.write(offset, message.content(digest, self._block))

    def _at(self, slot: int, offset: int, size: int) -> memoryview:
        start = slot * self._slot + offset
        return self._view[start : start + size]

    def _carried(self, slot: int, request: int) -> memoryview:
        """A piece of what no request writes: another one for every request, so that in time all are looked at."""
        start = min(self._tokens, self._blocks) * self._block
        size = self._slot - start
        if size <= _PIECE:
            return self._at(slot, start, size)
        pieces = -(-size // _PIECE)
        return self._at(slot, start + min(request % pieces * _PIECE, size - _PIECE), _PIECE)
