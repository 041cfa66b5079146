"""Real node processes on loopback, commanded over their control sockets, as the testbed does it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

DEADLINE_S = 20.0
SMALL: dict[str, Any] = {
    "stages": 2, "requests_per_s": 400.0, "requests": 40, "tokens": 4, "activation_bytes": 2048, "token_bytes": 64,
    "kv_bytes": 262_144, "kv_dirty_bytes": 1024, "compute_ns": 200_000, "concurrency": 16,
}  # fmt: skip


class Refused(Exception):
    """The node answered no."""


class Worker:
    """One node process and a connection to its control socket."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.name: str = config["name"]
        self.folder = folder
        self.config = config
        self.process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._number = 0

    async def start(self) -> None:
        """Start the process and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "node.json").write_text(json.dumps(self.config))
        with (self.folder / "stderr.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "pipeline.worker", "node.json", cwd=self.folder, stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )  # fmt: skip
        await until(f"{self.name} answers on its control socket", self._connect, self.log)
        await self.ask("hello")

    async def _connect(self) -> bool:
        assert self.process is not None
        assert self.process.returncode is None, f"{self.name} has ended: {self.log()}"
        folder = os.open(self.folder, os.O_PATH)
        try:
            self._reader, self._writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/control.sock")
        except OSError:
            return False
        finally:
            os.close(folder)
        return True

    async def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """One request and its answer, one at a time. Raises Refused."""
        assert self._reader is not None
        assert self._writer is not None
        self._number += 1
        self._writer.write(json.dumps({"id": self._number, "do": do, **fields}).encode() + b"\n")
        async with asyncio.timeout(DEADLINE_S):
            line = await self._reader.readline()
        assert line, f"{self.name} ended before it answered {do}: {self.log()}"
        answer: dict[str, Any] = json.loads(line)
        assert answer.pop("id") == self._number
        if not answer.pop("ok"):
            raise Refused(answer["error"])
        return answer

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()
        self.close()

    async def stop(self) -> int:
        """Ask it to end, and give its exit status."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_S):
            status = await self.process.wait()
        self.close()
        return status

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def log(self) -> str:
        return (self.folder / "stderr.log").read_text(errors="replace")

    def journal(self) -> list[dict[str, Any]]:
        """All records of all its lives."""
        return [json.loads(line) for path in sorted(self.folder.glob("journal-*")) for line in path.open()]


class Cluster:
    """Workers w0, w1 and so on. ``placement`` gives the endpoints of each; all are started on entry and ended on
    exit.
    """

    def __init__(self, folder: Path, placement: list[list[str]], adapter: str, pipeline: Mapping[str, Any]) -> None:
        locators = [f"127.0.0.1:{port}" for port in free_ports(len(placement))]
        static = {name: locators[index] for index, names in enumerate(placement) for name in names}
        self.workers = [
            Worker(
                folder / f"w{index}",
                {
                    "name": f"w{index}", "cluster": "test", "bind": locators[index], "locator": locators[index],
                    "secret": "5ec7e7", "seeds": locators[:2], "control": "control.sock", "journal": ".",
                    "connex": {}, "adapter": adapter, "seed": 42, "endpoints": endpoints, "static": static,
                    "pipeline": dict(pipeline) if endpoints else None,
                },
            )
            for index, endpoints in enumerate(placement)
        ]  # fmt: skip
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            for worker in self.workers:
                self._exit.push_async_callback(self._end, worker)
            await asyncio.gather(*(worker.start() for worker in self.workers))
            for worker in self.workers:
                await self._ready(worker)
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    def __getitem__(self, index: int) -> Worker:
        return self.workers[index]

    async def traffic(self) -> dict[str, Any]:
        """Let the source on w0 issue all its requests, and wait for the result."""
        await self[0].ask("start")
        await self.issued(self[0], self[0].config["pipeline"]["requests"])
        return await self[0].ask("finish")

    async def _ready(self, worker: Worker) -> None:
        """Wait until the worker serves its endpoints, and knows the others if it can."""
        expected = {other.name for other in self.workers} if worker.config["adapter"] == "connex" else {worker.name}

        async def ready() -> bool:
            status = await worker.ask("status")
            known = {member["node"] for member in status["members"]} | {worker.name}
            return set(status["endpoints"]) == set(worker.config["endpoints"]) and known == expected

        await until(f"{worker.name} serves {worker.config['endpoints']} and knows {expected}", ready, worker.log)

    async def issued(self, worker: Worker, count: int) -> None:
        async def enough() -> bool:
            return bool((await worker.ask("progress"))["issued"] >= count)

        await until(f"{count} requests have been issued", enough, worker.log)

    async def _end(self, worker: Worker) -> None:
        if worker.process is not None:
            if worker.process.returncode is None:
                worker.process.kill()
            await worker.process.wait()
            worker.close()


async def until(what: str, condition: Callable[[], Any], say: Callable[[], object] = lambda: "") -> None:
    """Wait until an asynchronous condition holds."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not await condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what}; {say()}") from None


def free_ports(count: int) -> list[int]:
    """Ports of loopback that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
