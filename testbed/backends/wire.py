"""The wire, as seen by whoever runs it: a process that carries frames between interfaces through the network
model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.impairment import Impairment
from testbed.backends.wire_child import Child, ChildFailed
from testbed.backends.wire_messages import Setup
from testbed.backends.wire_stats import WireStats
from testbed.deadline import SECOND, deadline
from testbed.network.spec import FabricSpec, Port

STOP_DEADLINE = 60 * SECOND
"""Captures are written down to the last frame before the wire stops; a slow disk may take a while over
that."""


class WireFailed(ChildFailed):
    """The wire has ended: the network is dead, and what was measured since proves nothing."""


class Wire:
    """A running wire. Its end, unless ``stop`` asked for it, sets ``failed`` to a WireFailed: that must end
    the run.

    Methods return when what they ask for has its effect on every frame, those of established flows and those
    under way included. They raise ValueError where the network does not know a name or cannot behave as
    asked, WireFailed where the wire has died, DeadlineExceeded where it does not answer.
    """

    def __init__(self, child: Child, writer: int | None) -> None:
        self._child = child
        self._writer: int | None = None
        if writer is not None:
            with suppress(ProcessLookupError):  # it has ended already: nothing to wait for
                self._writer = os.pidfd_open(writer)
        self._final: WireStats | None = None

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
        files = {port: str(path.absolute()) for port, path in (captures or {}).items()}
        child = await Child.start(
            "testbed.backends.wire_process",
            asdict(Setup(spec, dict(attachments), files, fifo)),
            (netns_fd,),
            name="the wire",
            failure=WireFailed,
            meaning="the network carries nothing",
            log=log,
        )
        return cls(child, child.ready["writer"])

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def failed(self) -> asyncio.Future[None]:
        """Done, with WireFailed, once the wire has died."""
        return self._child.failed

    async def wait_failed(self) -> None:
        """Wait for ever, or raise WireFailed when the wire dies."""
        await asyncio.shield(self.failed)

    async def impair(self, link: str, direction: str, changes: Mapping[str, int | float | bool]) -> None:
        """Change the named parameters of one direction of a link and keep the others."""
        await self._child.ask("impair", link=link, direction=direction, changes=dict(changes))

    async def restore(self, link: str, direction: str, fields: Sequence[str]) -> None:
        """Give the named parameters of one direction of a link back the values that the spec declares."""
        await self._child.ask("restore", link=link, direction=direction, fields=list(fields))

    async def impairment(self, link: str, direction: str) -> Impairment:
        """What one direction of a link does now, read back from the wire."""
        answer = await self._child.ask("impairment", link=link, direction=direction)
        return Impairment(**answer["impairment"])

    async def block(self, name: str, pairs: Sequence[tuple[Port, Port]]) -> None:
        """Drop what enters at the first and would leave at the second port of each pair, until
        ``unblock(name)``."""
        await self._child.ask("block", name=name, pairs=[list(pair) for pair in pairs])

    async def unblock(self, name: str) -> None:
        await self._child.ask("unblock", name=name)

    async def stats(self) -> WireStats:
        """Everything since the start; after ``stop``, what it was at the end."""
        return self._final or _stats(await self._child.ask("stats"))

    async def stop(self) -> WireStats:
        """Stop relaying, complete the captures, end the process. May be called again.

        Raises WireFailed if the wire is dead.
        """
        if self._final is None:
            self._final = _stats(await self._child.stop(STOP_DEADLINE))
            await self._wait_for_writer()
        return self._final

    async def kill(self) -> None:
        """End the process without any of ``stop``'s care. May be called at any time, also after a wire that has died.

        When this returns, captures hold whatever the wire had handed over for writing.
        """
        await self._child.kill()
        await self._wait_for_writer()

    async def _wait_for_writer(self) -> None:
        """The process that writes captures outlives a killed wire for as long as it has something to write."""
        if self._writer is None:
            return
        fd, self._writer = self._writer, None
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(fd, ended.set)
        try:
            async with deadline(STOP_DEADLINE, "the wire's captures have not been written down"):
                await ended.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)


def _stats(answer: dict[str, Any]) -> WireStats:
    return WireStats.from_json(answer["stats"])
