"""The journal of a node without Connex: the same lines in the same kind of file, but of the application's events
alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Subscriber = Callable[[str], None]


class Journal:
    """``journal-<incarnation>.jsonl`` in ``folder``, or only for subscribers. Raises OSError where it cannot be
    written.
    """

    def __init__(self, node: str, folder: Path | None) -> None:
        self.node = node
        self.incarnation = os.urandom(8).hex()
        self.subscribers: list[Subscriber] = []
        self._file = -1
        if folder is not None:
            path = folder / f"journal-{self.incarnation}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def record(self, event: str, fields: dict[str, Any]) -> None:
        if self._file < 0 and not self.subscribers:
            return
        record = {"t": time.monotonic_ns(), "event": event, "node": self.node} | fields
        line = json.dumps(record, separators=(",", ":"))
        if self._file >= 0:
            data = memoryview(line.encode() + b"\n")
            while data:
                data = data[os.write(self._file, data) :]
        for subscriber in list(self.subscribers):
            subscriber(line)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
