"""A state region that goes nowhere: for adapters whose endpoints do not move."""

from __future__ import annotations

from pipeline.port import Buffer


class PlainRegion:
    """``pipeline.port.Region`` in the memory of this process."""

    def __init__(self, size: int) -> None:
        self._content = memoryview(bytearray(size))

    def __len__(self) -> int:
        return len(self._content)

    @property
    def view(self) -> memoryview:
        return self._content.toreadonly()

    def write(self, offset: int, data: Buffer) -> None:
        """Raises ValueError beyond the end."""
        source = memoryview(data).cast("B")
        if offset < 0 or offset + len(source) > len(self):
            raise ValueError(f"bytes [{offset}, {offset + len(source)}) are not within the region's {len(self)}")
        self._content[offset : offset + len(source)] = source

    def resize(self, size: int) -> None:
        old, self._content = self._content, memoryview(bytearray(size))
        kept = min(size, len(old))
        self._content[:kept] = old[:kept]
