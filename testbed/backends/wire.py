"""The wire, as seen by whoever runs it: a process that carries frames between interfaces through the network
model."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from faults.impairment import Impairment
from testbed.backends.wire_messages import LINE_LIMIT, Setup, encode, encode_setup
from testbed.backends.wire_stats import WireStats
from testbed.deadline import SECOND, deadline
from testbed.errors import CannotRun, TestbedError
from testbed.network.spec import FabricSpec, Port

ANSWER_DEADLINE = 10 * SECOND
STOP_DEADLINE = 60 * SECOND
"""Captures are written down to the last frame before the wire stops; a slow disk may take a while over
that."""


class WireFailed(TestbedError):
    """The wire has ended or does not answer: the network is dead, and what was measured since proves
    nothing."""


class Wire:
    """A running wire. Its end, unless ``stop`` asked for it, sets ``failed`` to a WireFailed: that must end
    the run.

    Methods return when what they ask for has its effect on every frame, those of established flows and those
    under way included. They raise ValueError where the network does not know a name or cannot behave as
    asked, WireFailed where the wire has died.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: Path
    ) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._process = process
        self._reader = reader
        self._writer = writer
        self._log = log
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._stopping = False
        self._final: WireStats | None = None
        self._watcher = asyncio.create_task(self._watch(), name="wire")

    @classmethod
    async def start(
        cls,
        spec: FabricSpec,
        attachments: Mapping[Port, str],
        netns_fd: int,
        *,
        captures: Mapping[Port, Path] | None = None,
        log: Path,
        fifo: bool = True,
    ) -> Wire:
        """Start the process and return when it relays.

        ``attachments``: edge port -> interface inside the network namespace ``netns_fd``. ``captures``: port
        -> pcapng file to write. ``log`` takes what the process says on its standard error. With ``fifo`` it
        is scheduled in real time if this user may; ``stats`` tells whether that was so. Raises CannotRun
        where it cannot start.
        """
        ours, theirs = socket.socketpair()
        try:
            with log.open("ab") as errors:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "testbed.backends.wire_process"),
                    *(str(theirs.fileno()), str(netns_fd), str(os.getpid())),
                    pass_fds=(theirs.fileno(), netns_fd),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    # Ctrl-C is for the one who runs the test; the wire stops when it is told to.
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=LINE_LIMIT)
        wire = cls(process, reader, writer, log)
        files = {port: str(path.absolute()) for port, path in (captures or {}).items()}
        try:
            await wire._request(encode_setup(Setup(spec, dict(attachments), files, fifo)), 0, "to start")
        except BaseException as error:
            await wire.kill()
            if isinstance(error, ValueError):
                raise CannotRun(f"the wire cannot start: {error}") from error
            raise
        return wire

    @property
    def pid(self) -> int:
        return self._process.pid

    async def impair(self, link: str, direction: str, changes: Mapping[str, int | float | bool]) -> None:
        """Change the named parameters of one direction of a link and keep the others."""
        await self._ask("impair", link=link, direction=direction, changes=dict(changes))

    async def restore(self, link: str, direction: str, fields: Sequence[str]) -> None:
        """Give the named parameters of one direction of a link back the values that the spec declares."""
        await self._ask("restore", link=link, direction=direction, fields=list(fields))

    async def impairment(self, link: str, direction: str) -> Impairment:
        """What one direction of a link does now, read back from the wire."""
        answer = await self._ask("impairment", link=link, direction=direction)
        return Impairment(**answer["impairment"])

    async def block(self, name: str, pairs: Sequence[tuple[Port, Port]]) -> None:
        """Drop what enters at the first and would leave at the second port of each pair, until
        ``unblock(name)``."""
        await self._ask("block", name=name, pairs=[list(pair) for pair in pairs])

    async def unblock(self, name: str) -> None:
        await self._ask("unblock", name=name)

    async def stats(self) -> WireStats:
        """Everything since the start; after ``stop``, what it was at the end."""
        if self._final is not None:
            return self._final
        return WireStats.from_json((await self._ask("stats"))["stats"])

    async def wait_failed(self) -> None:
        """Wait for ever, or raise WireFailed when the wire dies."""
        await asyncio.shield(self.failed)

    async def stop(self) -> WireStats:
        """Stop relaying, complete the captures, end the process. May be called again. Raises WireFailed if it
        is dead."""
        if self._final is None:
            self._stopping = True
            answer = await self._ask("stop", timeout=STOP_DEADLINE)
            self._final = WireStats.from_json(answer["stats"])
            async with deadline(ANSWER_DEADLINE, "the wire's process has said goodbye but does not end"):
                await self._watcher
        return self._final

    async def kill(self) -> None:
        """End the process without any of ``stop``'s care. Captures end where they are."""
        self._stopping = True
        if self._process.returncode is None:
            self._process.kill()
        await self._watcher

    async def _ask(self, do: str, timeout: int = ANSWER_DEADLINE, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return await self._request(encode({"id": self._number, "do": do, **fields}), self._number, do, timeout)

    async def _request(self, line: bytes, number: int, what: str, timeout: int = ANSWER_DEADLINE) -> dict[str, Any]:
        if self.failed.done() or self._watcher.done():
            raise WireFailed(self._epitaph())
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        try:
            async with deadline(timeout, f"the wire (process {self.pid}) was asked {what} and has not answered"):
                self._writer.write(line)
                answer = await future
        finally:
            del self._answers[number]
        if not answer["ok"]:
            raise ValueError(answer["error"])
        return answer

    async def _watch(self) -> None:
        """Hand out answers until the process ends, then tell everyone who waits."""
        try:
            while line := await self._reader.readline():
                answer = json.loads(line)
                future = self._answers.get(answer["id"])
                if future is not None and not future.done():
                    future.set_result(answer)
        except ConnectionError:
            pass  # its end, told below
        finally:
            self._writer.close()
        await self._process.wait()
        for future in self._answers.values():
            if not future.done():
                future.set_exception(WireFailed(self._epitaph()))
        if not self._stopping:
            self.failed.set_exception(WireFailed(self._epitaph()))
            self.failed.exception()  # whoever does not wait for it is told by the next request

    def _epitaph(self) -> str:
        status = self._process.returncode or 0
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"the wire (process {self.pid}) {how}: the network carries nothing; see {self._log}"
