"""The control socket of a node without Connex: JSON lines, as Connex nodes speak them, with the requests that make
sense here.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.adapters.tcp_journal import Journal
from pipeline.port import Command, CommandError

LINE_LIMIT = 1024 * 1024


class ControlServer:
    """Answers requests; ``subscribe`` turns a connection into one that also carries the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._commands: dict[str, Command] = {}
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, name: str, command: Command) -> None:
        self._commands[name] = command

    async def open(self, path: Path) -> None:
        """Listen; a socket left by a dead process is replaced. Raises OSError."""
        _unlink(path)
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Through the folder's descriptor: an address holds no more than 107 bytes.
            self._server = await asyncio.start_unix_server(
                self._serve, f"/proc/self/fd/{folder}/{path.name}", limit=LINE_LIMIT
            )
        finally:
            os.close(folder)
        self._path = path

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in list(self._writers):
            writer.close()
        if self._path is not None:
            _unlink(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def forward(line: str) -> None:
            writer.write(f'{{"journal":{line}}}\n'.encode())

        self._writers.add(writer)
        try:
            while line := await reader.readline():
                request = json.loads(line)
                if request.get("do") == "subscribe":
                    self._journal.subscribers.append(forward)
                    writer.write(_line({"id": request.get("id"), "ok": True}))
                    continue
                task = asyncio.create_task(self._answer(request, writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except (ValueError, AttributeError) as error:
            writer.write(_line({"ok": False, "error": f"not a request: {error}; expected a JSON object a line"}))
        except ConnectionError:
            return  # the same as its end
        finally:
            if forward in self._journal.subscribers:
                self._journal.subscribers.remove(forward)
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        name = str(request.get("do"))
        command = self._commands.get(name)
        try:
            if command is None:
                known = ", ".join(sorted([*self._commands, "subscribe"]))
                raise CommandError(f"no command {name!r} with the tcp adapter; there are: {known}")
            answer: dict[str, Any] = {"ok": True} | await command(request)
        except CommandError as error:
            answer = {"ok": False, "error": str(error)}
        if not writer.is_closing():
            writer.write(_line({"id": request.get("id")} | answer))


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
