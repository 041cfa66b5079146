"""How fast 64 MiB KV messages go, beside a bare uvloop BufferedProtocol, ZeroMQ and Gloo in the same run.

python -m benchmarks.kv [--repeats 5] [--messages 16]

Both sides are processes in two network namespaces joined by a veth pair. All receive into one buffer of their own. The
time is from the first byte sent until the receiver has said that the last message is complete; rows are medians over
the repeats, a ratio is the median of the ratios to the bare protocol of the same repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple, cast

import connex
from benchmarks.pair import Pair, Side

SIZE = 64 << 20
WARM_UP = 2
GOAL = 0.9
PORT = 7400


class Contender(NamedTuple):
    """One way to move large messages."""

    name: str
    client: Callable[[int], Side]
    """Makes the side that sends ``n`` messages and returns the time in ns that they took, without the warm-up."""
    server: Side
    pinned: bool = True


def _message() -> bytearray:
    return bytearray(os.urandom(1 << 20) * (SIZE >> 20))


# Bare uvloop


class _Sink(asyncio.BufferedProtocol):
    """Receives messages into one buffer and answers each with a byte."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(SIZE))
        self.at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        _enlarge(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.view[self.at :]

    def buffer_updated(self, nbytes: int) -> None:
        self.at += nbytes
        if self.at == SIZE:
            self.at = 0
            self.transport.write(b"\x01")


def _enlarge(transport: asyncio.BaseTransport) -> None:
    """The same socket buffers as Connex has for its class."""
    sock = transport.get_extra_info("socket")
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 4 << 20)


class _Source(asyncio.Protocol):
    def __init__(self) -> None:
        self.answers = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.waiting: tuple[int, asyncio.Future[None]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        _enlarge(transport)

    def pause_writing(self) -> None:
        self.go_on.clear()

    def resume_writing(self) -> None:
        self.go_on.set()

    def data_received(self, data: bytes) -> None:
        self.answers += len(data)
        if self.waiting is not None and self.answers >= self.waiting[0]:
            self.waiting[1].set_result(None)
            self.waiting = None

    async def until(self, answers: int) -> None:
        if self.answers < answers:
            self.waiting = (answers, asyncio.get_running_loop().create_future())
            await self.waiting[1]


def bare_server(own: str, other: str, pipe: Connection) -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_server(_Sink, own, PORT)
        pipe.send(None)
        await asyncio.Event().wait()

    connex.run(main())


def bare_client(count: int) -> Side:
    def client(own: str, other: str, pipe: Connection) -> int:
        async def main() -> int:
            _, source = await asyncio.get_running_loop().create_connection(_Source, other, PORT)
            message = memoryview(_message())

            async def send(count: int) -> None:
                for _ in range(count):
                    await source.go_on.wait()
                    source.transport.write(message)

            await send(WARM_UP)
            await source.until(WARM_UP)
            start = time.monotonic_ns()
            await send(count)
            await source.until(WARM_UP + count)
            return time.monotonic_ns() - start

        pipe.recv()
        return connex.run(main())

    return client


# Connex


def connex_server(own: str, other: str, pipe: Connection) -> None:
    async def main() -> None:
        async with connex.Node("server", listen=f"{own}:{PORT}") as node:
            sink = await node.host("sink")
            buffer = bytearray(SIZE)
            sink.on_stream(lambda stream: stream.receive_into(lambda size: buffer))
            sink.on_message(lambda message: None)
            pipe.send(None)
            await asyncio.Event().wait()

    connex.run(main())


def connex_client(count: int) -> Side:
    def client(own: str, other: str, pipe: Connection) -> int:
        async def main() -> int:
            async with connex.Node("client", listen=f"{own}:{PORT}", seeds=[f"{other}:{PORT}"]) as node:
                source = await node.host("source")
                stream = await source.open_stream("sink", connex.TrafficClass.KV)
                message = _message()

                async def send(count: int) -> None:
                    for _ in range(count):
                        await stream.send(message, borrow=True)
                    await stream.flush()

                await send(WARM_UP)
                start = time.monotonic_ns()
                await send(count)
                return time.monotonic_ns() - start

        pipe.recv()
        return connex.run(main())

    return client


# ZeroMQ


def zeromq_server(own: str, other: str, pipe: Connection) -> None:
    zmq = importlib.import_module("zmq")

    with zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.bind(f"tcp://{own}:{PORT}")
        pipe.send(None)
        while True:
            sock.recv(copy=False)
            sock.send(b"\x01")


def zeromq_client(count: int) -> Side:
    def client(own: str, other: str, pipe: Connection) -> int:
        zmq = importlib.import_module("zmq")

        pipe.recv()
        with zmq.Context() as context, context.socket(zmq.PAIR) as sock:
            sock.sndhwm = 2
            sock.connect(f"tcp://{other}:{PORT}")
            message = _message()

            def send(count: int) -> None:
                for _ in range(count):
                    sock.send(message, copy=False)
                for _ in range(count):
                    sock.recv()

            send(WARM_UP)
            start = time.monotonic_ns()
            send(count)
            return time.monotonic_ns() - start

    return client


# Gloo


def gloo_server(own: str, other: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    pipe.send(None)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth1"
    dist.init_process_group("gloo", init_method=f"tcp://{own}:{PORT}", rank=0, world_size=2)
    buffer, answer = torch.zeros(SIZE, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    while True:
        dist.recv(buffer, 1)
        dist.send(answer, 1)


def gloo_client(count: int) -> Side:
    def client(own: str, other: str, pipe: Connection) -> int:
        import torch
        import torch.distributed as dist

        pipe.recv()
        os.environ["GLOO_SOCKET_IFNAME"] = "eth1"
        dist.init_process_group("gloo", init_method=f"tcp://{other}:{PORT}", rank=1, world_size=2)
        buffer, answer = torch.zeros(SIZE, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)

        def send(count: int) -> None:
            # A send of Gloo's waits for its receiver: with answers at the end both sides would wait for each other.
            for _ in range(count):
                dist.send(buffer, 0)
                dist.recv(answer, 0)

        send(WARM_UP)
        start = time.monotonic_ns()
        send(count)
        return time.monotonic_ns() - start

    return client


# The table


def contenders() -> list[Contender]:
    """The bare protocol first, Connex, and what else is installed."""
    found = [
        Contender("bare uvloop", bare_client, bare_server),
        Contender("connex", connex_client, connex_server),
    ]
    if importlib.util.find_spec("zmq"):
        found.append(Contender("ZeroMQ (PAIR)", zeromq_client, zeromq_server, pinned=False))
    if importlib.util.find_spec("torch"):
        found.append(Contender("Gloo", gloo_client, gloo_server, pinned=False))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; returns 0 if the goal was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--messages", type=int, default=16)
    options = parser.parse_args(arguments)
    measured: dict[str, list[float]] = {}
    with Pair() as pair:
        for _ in range(options.repeats):
            for contender in contenders():
                pair.pinned = contender.pinned
                took = pair.run(contender.client(options.messages), contender.server)
                measured.setdefault(contender.name, []).append(options.messages * SIZE / took)
    print(f"KV messages of {SIZE >> 20} MiB, {options.messages} of them, median of {options.repeats} repeats")
    print(f"{'':20}{'GB/s':>8}{'ratio':>8}")
    ratios = {
        name: statistics.median(row / base for row, base in zip(rows, measured["bare uvloop"], strict=True))
        for name, rows in measured.items()
    }
    for name, rows in measured.items():
        print(f"{name:20}{statistics.median(rows):8.2f}{ratios[name]:8.2f}")
    reached = ratios["connex"] >= GOAL
    print(f"goal: connex >= {GOAL}: {'reached' if reached else 'NOT reached'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
