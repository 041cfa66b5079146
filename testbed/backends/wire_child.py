"""A helper process of the testbed that is commanded over a socket pair, and whose end is noticed.

The process is told everything in one first line, answers when it is ready, and then answers requests: one
JSON object per line in both directions.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.backends.wire_messages import LINE_LIMIT, encode
from testbed.deadline import SECOND, deadline
from testbed.errors import CannotRun, TestbedError

ANSWER_DEADLINE = 10 * SECOND


class ChildFailed(TestbedError):
    """The process has ended unasked."""


class Child:
    """A running helper process. It dies with this one. Its end, unless asked for, sets ``failed``.

    ``name`` is what people call it, ``failure`` the error that its end is, ``meaning`` what that end means
    for the run.
    """

    def __init__(
        self,
        name: str,
        failure: type[ChildFailed],
        meaning: str,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        log: Path,
    ) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready: dict[str, Any] = {}
        """What the process answered when it was ready."""
        self._name = name
        self._failure = failure
        self._meaning = meaning
        self._process = process
        self._reader, self._writer = streams
        self._log = log
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._stopping = False
        self._watcher = asyncio.create_task(self._watch(), name=name)

    @classmethod
    async def start(
        cls,
        module: str,
        setup: dict[str, Any],
        fds: Sequence[int],
        *,
        name: str,
        failure: type[ChildFailed],
        meaning: str,
        log: Path,
    ) -> Child:
        """Run ``module`` with the arguments control socket, process id of this process, ``fds``; wait until
        it is ready.

        Raises CannotRun where it says why it cannot do what ``setup`` asks.
        """
        ours, theirs = socket.socketpair()
        arguments = [theirs.fileno(), os.getpid(), *fds]
        try:
            with log.open("ab") as errors:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", module, *map(str, arguments)),
                    pass_fds=(theirs.fileno(), *fds),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    # Ctrl-C is for the one who runs the test; helpers stop when they are told to.
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        streams = await asyncio.open_unix_connection(sock=ours, limit=LINE_LIMIT)
        child = cls(name, failure, meaning, process, streams, log)
        try:
            child.ready = await child._request({**setup, "id": 0}, 0, "to start", ANSWER_DEADLINE)
        except BaseException as error:
            await child.kill()
            if isinstance(error, ValueError):
                raise CannotRun(f"{name} cannot start: {error}") from error
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, do: str, timeout: int = ANSWER_DEADLINE, **fields: Any) -> dict[str, Any]:
        """One request and its answer. Raises ValueError where it is refused, DeadlineExceeded after
        ``timeout`` ns."""
        self._number += 1
        return await self._request({"id": self._number, "do": do, **fields}, self._number, do, timeout)

    async def stop(self, timeout: int) -> dict[str, Any]:
        """Ask it to stop, and wait until it has ended. Returns its last answer."""
        self._stopping = True
        answer = await self.ask("stop", timeout)
        async with deadline(ANSWER_DEADLINE, f"{self._name} (process {self.pid}) has said goodbye but does not end"):
            await asyncio.shield(self._watcher)
        return answer

    async def kill(self) -> None:
        """End the process without any care. May be called at any time."""
        self._stopping = True
        if self._process.returncode is None:
            self._process.kill()
        await asyncio.shield(self._watcher)

    async def _request(self, message: dict[str, Any], number: int, what: str, timeout: int) -> dict[str, Any]:
        if self._watcher.done():
            raise self._failure(self._epitaph())
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        try:
            async with deadline(timeout, f"{self._name} (process {self.pid}) was asked {what} and has not answered"):
                self._writer.write(encode(message))
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
                future.set_exception(self._failure(self._epitaph()))
        if not self._stopping:
            self.failed.set_exception(self._failure(self._epitaph()))
            self.failed.exception()  # whoever does not wait for it is told by the next request

    def _epitaph(self) -> str:
        status = self._process.returncode or 0
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{self._name} (process {self.pid}) {how}: {self._meaning}; see {self._log}"
