"""What this node says it did (``docs/history.md``): JSON lines in a file, and to whoever has subscribed.

Lines gather while a drain runs and are written with one system call before any frame of it leaves. Without a file and
subscribers nothing is gathered: check ``active`` before preparing a record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from connex.core.errors import ConnexError
from connex.core.frames import Buffer
from connex.core.identity import Peer


class JournalError(ConnexError, OSError):
    """The journal cannot be opened or written."""


class Journal:
    """The journal of one life of a node, in ``folder`` (or nowhere)."""

    def __init__(self, me: Peer, folder: Path | None) -> None:
        self.pending: list[str] = []
        self.path = folder / f"journal-{me.incarnation:016x}.jsonl" if folder is not None else None
        self.active = self.path is not None
        self._node = json.dumps(me.node)
        self._subscribers: list[Callable[[str], None]] = []
        self._file = -1
        if self.path is not None:
            try:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise JournalError(
                    error.errno,
                    f"journal: {error.strerror}; expected a folder that exists and may be written",
                    str(self.path),
                ) from error

    def record(self, now: int, event: str, fields: dict[str, Any]) -> None:
        """Add one record of any kind; ``now`` in ns of CLOCK_MONOTONIC."""
        line = f'{{"t":{now},"event":{json.dumps(event)},"node":{self._node}'
        if fields:
            line += "," + json.dumps(fields, separators=(",", ":"))[1:-1]
        self.pending.append(line + "}\n")

    def sent(self, now: int, stream: int, message: int, offset: int, payload: Buffer, epoch: int) -> None:
        """The application handed a message over, whose first byte is at ``offset`` of the stream."""
        self._message(now, "sent", stream, message, offset, payload, epoch)

    def delivered(self, now: int, stream: int, message: int, offset: int, payload: Buffer, epoch: int) -> None:
        """The application has the message."""
        self._message(now, "delivered", stream, message, offset, payload, epoch)

    def _message(
        self, now: int, what: str, stream: int, message: int, offset: int, payload: Buffer, epoch: int
    ) -> None:
        # Formatted by hand, because there is one of these for every message: all fields are numbers and hexadecimal
        # digits.
        digest = blake2b(payload, digest_size=8).hexdigest()
        self.pending.append(
            f'{{"t":{now},"event":"message.{what}","node":{self._node},"stream":"{stream:016x}","message":{message},'
            f'"offset":{offset},"size":{len(payload)},"hash":"{digest}","epoch":{epoch}}}\n'
        )

    def flush(self) -> None:
        """Write what has gathered. Raises OSError if the file cannot be written: then nothing may leave the node."""
        lines, self.pending = self.pending, []
        if not lines:
            return
        text = "".join(lines)
        if self._file >= 0:
            data = memoryview(text.encode())
            while data:
                data = data[os.write(self._file, data) :]
        for subscriber in list(self._subscribers):
            subscriber(text)

    def subscribe(self, subscriber: Callable[[str], None]) -> None:
        """Call ``subscriber`` with the lines of every flush from now on."""
        self._subscribers.append(subscriber)
        self.active = True

    def unsubscribe(self, subscriber: Callable[[str], None]) -> None:
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)
        self.active = self._file >= 0 or bool(self._subscribers)

    def close(self) -> None:
        """Write what is left and close the file."""
        try:
            self.flush()
        finally:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
            self._subscribers.clear()
            self.active = False
