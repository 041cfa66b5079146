"""A TCP proxy in front of a node, which can cut or hold what goes through it."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Proxy:
    """Relays to ``target`` (host and port). Whenever ``cut_every`` bytes have passed it breaks all connections."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.relayed = 0
        self.cuts = 0
        self.cut_every: int | None = None
        self.open = asyncio.Event()
        self.open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def locator(self) -> str:
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """Break every connection at once."""
        self.cuts += 1
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self.target)
        self._writers |= {writer, there_writer}
        for source, target in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.ensure_future(self._relay(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self.open.wait()
                before, self.relayed = self.relayed, self.relayed + len(data)
                if self.cut_every and before // self.cut_every != self.relayed // self.cut_every:
                    writer.write(data[: self.relayed % self.cut_every])
                    self.cut()
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            # The other side is gone: so is this connection.
            pass
        finally:
            writer.transport.abort()
