"""A connection to a node's control socket: requests out, answers and journal records in, as JSON lines.

The control plane is not on the emulated network: these are UNIX sockets in the run folder.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed.deadline import deadline
from testbed.errors import NodeFailed

LINE_LIMIT = 16 * 1024 * 1024
"""Longest line accepted, in bytes. A node's status with thousands of streams is about 1 MiB."""

Record = Callable[[bytes], None]


class ControlClosed(Exception):
    """The node closed its end before it answered."""


async def _open(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect through the folder's descriptor: the path itself may exceed the 108 bytes of ``sun_path``."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{path.name}", limit=LINE_LIMIT)
    finally:
        os.close(folder)


class ControlClient:
    """One connection. Several requests may be in flight.

    ``on_record`` is called with the raw line of each journal record, once ``subscribe`` has been requested.
    """

    def __init__(
        self,
        node: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_record: Record | None = None,
    ) -> None:
        self.node = node
        self._reader = reader
        self._writer = writer
        self._on_record = on_record
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self.closed: asyncio.Task[None] = asyncio.create_task(self._read(), name=f"control of {node}")

    @classmethod
    async def connect(cls, node: str, path: Path, on_record: Record | None = None) -> ControlClient:
        """Raises NodeFailed where nobody listens."""
        try:
            reader, writer = await _open(path)
        except OSError as error:
            raise NodeFailed(
                f"{node}: nobody listens on its control socket {path}: {error.strerror or error}"
            ) from error
        return cls(node, reader, writer, on_record)

    async def request(self, do: str, timeout: int, **fields: Any) -> dict[str, Any]:
        """One request and its answer; ``timeout`` in ns.

        Raises NodeFailed where the node says no, ControlClosed where it ends first, DeadlineExceeded.
        """
        answer = await self.send({"do": do, **fields}, timeout)
        if not answer.get("ok"):
            raise NodeFailed(f"{self.node}: {do}: {answer.get('error', 'no reason given')}")
        return answer

    async def send(self, request: Mapping[str, Any], timeout: int) -> dict[str, Any]:
        """Like ``request``, but returns the answer whether ``ok`` or not."""
        if self.closed.done():
            raise ControlClosed(f"{self.node} has closed its control socket")
        self._number += 1
        number = self._number
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(json.dumps({"id": number, **request}, separators=(",", ":")).encode() + b"\n")
            async with deadline(timeout, f"{self.node} has not answered {request.get('do')!r} on its control socket"):
                return await answer
        finally:
            self._waiting.pop(number, None)

    async def aclose(self) -> None:
        self._writer.close()
        self.closed.cancel()
        await asyncio.gather(self.closed, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                self._take(line)
        except ConnectionError:
            pass  # the same as its end: the node has gone, whoever waits is told below
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ControlClosed(f"{self.node} closed its control socket before it answered"))
            self._writer.close()

    def _take(self, line: bytes) -> None:
        if line.startswith(b'{"journal"'):
            if self._on_record is not None:
                self._on_record(line)
            return
        message = json.loads(line)
        answer = self._waiting.get(message.get("id", -1))
        if answer is not None and not answer.done():
            answer.set_result(message)
