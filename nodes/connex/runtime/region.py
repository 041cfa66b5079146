"""State regions: the bytes of an endpoint that move with it, and which blocks of them have changed since they were
last sent.
"""

from __future__ import annotations

import mmap

from connex.core.errors import LimitExceeded, LocalProtocolError
from connex.core.frames import Buffer

_LARGE = 1 << 20


def zeros(size: int) -> memoryview:
    """Writable memory that is zero. A large piece is taken from the kernel page by page as it is touched, so that
    making it does not hold the event loop.
    """
    if size < _LARGE:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class Budget:
    """Bytes that all regions of one endpoint may have together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, name: str, more: int) -> None:
        """Account for ``more`` bytes (fewer if negative). Raises LimitExceeded."""
        if self.used + more > self.limit:
            raise LimitExceeded(
                f"region {name}: {more} bytes more than the {self.used} that the endpoint has"
                f" exceed its limit of {self.limit}"
                " (Config.region)"
            )
        self.used += more


class StateRegion:
    """A named, resizable array of bytes, zero at first, that a handover takes along while the application goes on
    changing it.

    Changes are tracked in blocks. Write with ``write``, or change bytes in place through ``edit``; read through
    ``view``.
    """

    def __init__(self, name: str, size: int, block: int, budget: Budget) -> None:
        budget.take(name, size)
        self.name = name
        self._block = block
        self._budget = budget
        self._writable = zeros(size)
        self._written = bytearray(self._blocks(size))
        """Per block, 1 if it was ever written: all others are zero on every node."""
        self._dirty: bytearray | None = None
        """Per block, 1 if it has to be sent; None while the endpoint does not move."""
        self._announced = -1
        """The size that the target of the handover has been told."""

    def __len__(self) -> int:
        return len(self._writable)

    def __repr__(self) -> str:
        return f"<StateRegion {self.name!r} of {len(self)} bytes>"

    # For the application

    @property
    def view(self) -> memoryview:
        """The bytes, read-only and without a copy. It shows later writes, but not what follows a ``resize``: take a
        new view then.
        """
        return self._writable.toreadonly()

    def write(self, offset: int, data: Buffer) -> None:
        """Replace the bytes from ``offset`` on. Raises LocalProtocolError beyond the end: ``resize`` first."""
        source = memoryview(data).cast("B")
        self.edit(offset, len(source))[:] = source

    def edit(self, offset: int, size: int) -> memoryview:
        """A writable view of ``size`` bytes from ``offset`` on, to be changed before the application next gives way to
        the event loop.

        The blocks count as changed by this call; what is written through the view later may be missed by a handover.
        """
        end = offset + size
        if offset < 0 or size < 0 or end > len(self):
            raise LocalProtocolError(
                f"region {self.name}: bytes [{offset}, {end}) are not within its {len(self)} bytes; resize it first"
            )
        self._mark(offset, end)
        return self._writable[offset:end]

    def resize(self, size: int) -> None:
        """Cut the region off, or let it grow by zeros. Views taken before keep showing the old bytes."""
        if size < 0:
            raise LocalProtocolError(f"region {self.name}: size {size}; expected 0 or more bytes")
        before = len(self)
        self._budget.take(self.name, size - before)
        kept = min(size, before)
        old, self._writable = self._writable, zeros(size)
        self._writable[:kept] = old[:kept]
        blocks = self._blocks(size)
        for flags in (self._written, self._dirty):
            if flags is not None:
                flags[blocks:] = b""
                flags.extend(bytes(blocks - len(flags)))
        if self._dirty is not None and size > before:
            # The target may still hold what stood here before the region was cut off.
            self._mark(before, size)

    # For the endpoint that has left, and the handover that takes it along

    def let_go(self) -> None:
        """Give the memory back at once, whoever still knows the region; views that were taken keep theirs."""
        self._budget.take(self.name, -len(self))
        self._writable, self._written, self._dirty = zeros(0), bytearray(), None

    def begin(self) -> None:
        """A handover begins: everything that is not zero has to be sent."""
        self._dirty = bytearray(self._written)
        self._announced = -1

    def end(self) -> None:
        """The handover is over."""
        self._dirty = None

    @property
    def tracked(self) -> bool:
        """Whether changes are being tracked for a handover."""
        return self._dirty is not None

    @property
    def dirty_bytes(self) -> int:
        """Bytes that have to be sent (in whole blocks)."""
        return self._dirty.count(1) * self._block if self._dirty is not None else 0

    def take_dirty(self, start: int, most: int) -> tuple[int, memoryview] | None:
        """The first run of changed blocks that begins at byte ``start`` or later, at most ``most`` bytes of it, as
        offset and bytes.

        They count as sent now. With no such run left and the size not told yet, an empty run is returned once, which
        tells it.
        """
        dirty = self._dirty
        assert dirty is not None
        first = dirty.find(1, start // self._block)
        if first < 0:
            if self._announced == len(self):
                return None
            self._announced = len(self)
            return 0, self._writable[:0]
        last = dirty.find(0, first)
        last = min(len(dirty) if last < 0 else last, first + max(1, most // self._block))
        dirty[first:last] = bytes(last - first)
        self._announced = len(self)
        return first * self._block, self._writable[first * self._block : last * self._block]

    def restore(self, size: int, offset: int, data: Buffer) -> None:
        """Put in what the source of a handover sent."""
        if size != len(self):
            self.resize(size)
        if data:
            self.write(offset, data)

    def _blocks(self, size: int) -> int:
        return -(-size // self._block)

    def _mark(self, start: int, end: int) -> None:
        if start == end:
            return
        first, last = start // self._block, -(-end // self._block)
        ones = b"\x01" * (last - first)
        self._written[first:last] = ones
        if self._dirty is not None:
            self._dirty[first:last] = ones
