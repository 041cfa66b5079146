"""How long a 128-byte TOKEN message takes there and back, beside a bare uvloop echo, ZeroMQ and Gloo in the same run.

python -m benchmarks.round_trip [--repeats 5] [--messages 5000]

Both sides are processes in two network namespaces joined by a veth pair. Times are medians over the repeats; a ratio is
the median of the ratios to the bare echo of the same repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple, cast

import connex
from benchmarks.pair import Pair, Side

SIZE = 128
WARM_UP = 500
GOAL_P50, GOAL_P99 = 1.6, 2.0
PORT = 7400
POLL_NS = 200_000
"""How long nodes of the polling row look for the next message before they sleep."""
_PAYLOAD = bytes(range(SIZE))


class Contender(NamedTuple):
    """One way to send a message back and forth."""

    name: str
    client: Callable[[int], Side]
    """Makes the side that sends ``n`` messages and returns the round-trip times in ns."""
    server: Side
    pinned: bool = True
    """Whether each side has one processor; not for those with threads of their own."""


# Bare uvloop


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class _Asking(asyncio.Protocol):
    def __init__(self, count: int) -> None:
        self.left = count
        self.times: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        self.times.append(time.monotonic_ns() - self.at)
        self.left -= 1
        if self.left:
            self._ask()
        else:
            self.done.set_result(None)

    def _ask(self) -> None:
        self.at = time.monotonic_ns()
        self.transport.write(_PAYLOAD)


def bare_server(own: str, other: str, pipe: Connection) -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_server(_Echo, own, PORT)
        pipe.send(None)
        await asyncio.Event().wait()

    connex.run(main())


def bare_client(count: int) -> Side:
    def client(own: str, other: str, pipe: Connection) -> list[int]:
        async def main() -> list[int]:
            _, asking = await asyncio.get_running_loop().create_connection(lambda: _Asking(count), other, PORT)
            await asking.done
            return asking.times

        pipe.recv()
        return connex.run(main())

    return client


# Connex


def connex_server(own: str, other: str, pipe: Connection, poll_ns: int = 0) -> None:
    async def main() -> None:
        async with connex.Node("server", listen=f"{own}:{PORT}", poll_ns=poll_ns) as node:
            echo = await node.host("echo")
            back: list[connex.OutboundStream] = []

            def answer(message: connex.Message) -> None:
                if not back:
                    back.append(echo.start_stream(message.stream.sender, connex.TrafficClass.TOKEN))
                back[0].send_nowait(message.payload)

            echo.on_message(answer)
            gc.freeze()
            pipe.send(None)
            await asyncio.Event().wait()

    connex.run(main())


def connex_client(count: int, poll_ns: int = 0) -> Side:
    def client(own: str, other: str, pipe: Connection) -> list[int]:
        async def main() -> list[int]:
            name, listen, seed = "client", f"{own}:{PORT}", f"{other}:{PORT}"
            async with connex.Node(name, listen=listen, seeds=[seed], poll_ns=poll_ns) as node:
                asking = await node.host("asking")
                stream = await asking.open_stream("echo", connex.TrafficClass.TOKEN)
                times: list[int] = []
                done = asyncio.Event()
                at = 0

                def answered(message: connex.Message) -> None:
                    nonlocal at
                    now = time.monotonic_ns()
                    times.append(now - at)
                    if len(times) == count:
                        done.set()
                        return
                    at = time.monotonic_ns()
                    stream.send_nowait(_PAYLOAD)

                asking.on_message(answered)
                gc.freeze()
                at = time.monotonic_ns()
                stream.send_nowait(_PAYLOAD)
                await done.wait()
                return times

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
            sock.send(sock.recv())


def zeromq_client(count: int) -> Side:
    def client(own: str, other: str, pipe: Connection) -> list[int]:
        zmq = importlib.import_module("zmq")

        pipe.recv()
        with zmq.Context() as context, context.socket(zmq.PAIR) as sock:
            sock.connect(f"tcp://{other}:{PORT}")
            return _ask_blocking(count, lambda: (sock.send(_PAYLOAD), sock.recv()))

    return client


# Gloo


def _join_gloo(rank: int, own: str, server: str) -> None:
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "eth1"
    dist.init_process_group("gloo", init_method=f"tcp://{server}:{PORT}", rank=rank, world_size=2)


def gloo_server(own: str, other: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    pipe.send(None)
    _join_gloo(0, own, own)
    buffer = torch.zeros(SIZE, dtype=torch.uint8)
    while True:
        dist.recv(buffer, 1)
        dist.send(buffer, 1)


def gloo_client(count: int) -> Side:
    def client(own: str, other: str, pipe: Connection) -> list[int]:
        import torch
        import torch.distributed as dist

        pipe.recv()
        _join_gloo(1, own, other)
        buffer = torch.zeros(SIZE, dtype=torch.uint8)
        return _ask_blocking(count, lambda: (dist.send(buffer, 0), dist.recv(buffer, 0)))

    return client


def _ask_blocking(count: int, ask: Callable[[], object]) -> list[int]:
    times = []
    for _ in range(count):
        at = time.monotonic_ns()
        ask()
        times.append(time.monotonic_ns() - at)
    return times


# The table


def contenders() -> list[Contender]:
    """The bare echo first, Connex, and what else is installed."""
    found = [
        Contender("bare uvloop echo", bare_client, bare_server),
        Contender("connex", connex_client, connex_server),
        Contender(
            "connex, polling",
            partial(connex_client, poll_ns=POLL_NS),
            partial(connex_server, poll_ns=POLL_NS),
        ),
    ]
    if importlib.util.find_spec("zmq"):
        found.append(Contender("ZeroMQ (PAIR)", zeromq_client, zeromq_server, pinned=False))
    if importlib.util.find_spec("torch"):
        found.append(Contender("Gloo", gloo_client, gloo_server, pinned=False))
    return found


def percentiles(times: list[int]) -> tuple[float, float]:
    """p50 and p99 in microseconds."""
    ordered = sorted(times)
    return ordered[len(ordered) // 2] / 1000, ordered[len(ordered) * 99 // 100] / 1000


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; returns 0 if the goals were reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--messages", type=int, default=5000)
    options = parser.parse_args(arguments)
    measured: dict[str, list[tuple[float, float]]] = {}
    with Pair() as pair:
        for _ in range(options.repeats):
            for contender in contenders():
                pair.pinned = contender.pinned
                times = pair.run(contender.client(options.messages + WARM_UP), contender.server)[WARM_UP:]
                measured.setdefault(contender.name, []).append(percentiles(times))
    print(f"TOKEN round trip, {SIZE} bytes, {options.messages} messages, median of {options.repeats} repeats")
    print(f"{'':20}{'p50 us':>10}{'p99 us':>10}{'p50 ratio':>11}{'p99 ratio':>11}")
    bare = measured["bare uvloop echo"]
    for name, rows in measured.items():
        p50, p99 = (statistics.median(row[column] for row in rows) for column in (0, 1))
        ratios = [
            statistics.median(row[column] / base[column] for row, base in zip(rows, bare, strict=True))
            for column in (0, 1)
        ]
        print(f"{name:20}{p50:10.1f}{p99:10.1f}{ratios[0]:11.2f}{ratios[1]:11.2f}")
        if name == "connex":
            reached = ratios[0] <= GOAL_P50 and ratios[1] <= GOAL_P99
    print(f"goal: connex p50 <= {GOAL_P50}, p99 <= {GOAL_P99}: {'reached' if reached else 'NOT reached'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
