"""All deadlines of a node in one table."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

Key = tuple[str, int | str, str]
"""What a deadline is for: its kind, and whom it concerns (two parts, the second often empty)."""

_SLACK = 256


class Timers:
    """Deadlines by key. Setting a key again replaces its deadline; entries that were replaced are skipped when they
    surface, and swept out when they are too many.
    """

    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._count = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def set(self, key: Key, deadline: int) -> None:
        if self._deadlines.get(key) == deadline:
            return
        self._deadlines[key] = deadline
        if len(self._heap) > _SLACK + 2 * len(self._deadlines):
            self._heap = [entry for entry in self._heap if self._deadlines.get(entry[2]) == entry[0]]
            heapify(self._heap)
        self._count += 1
        heappush(self._heap, (deadline, self._count, key))

    def clear(self, key: Key) -> None:
        self._deadlines.pop(key, None)

    def next(self) -> int | None:
        """The earliest deadline, or None."""
        heap = self._heap
        while heap:
            deadline, _, key = heap[0]
            if self._deadlines.get(key) == deadline:
                return deadline
            heappop(heap)
        return None

    def take_due(self, now: int) -> Key | None:
        """Take out the earliest key whose deadline has come, or None."""
        deadline = self.next()
        if deadline is None or deadline > now:
            return None
        key = heappop(self._heap)[2]
        del self._deadlines[key]
        return key
