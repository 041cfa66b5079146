"""Traffic between the nodes of a lab: real sockets, payloads compared."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from random import Random

from tests.wire.lab import Lab, inside

PORT = 7400
PATIENCE = 10.0
"""Seconds after which a test gives up waiting for bytes."""


def address(lab: Lab, node: str, family: int) -> str:
    return lab.ipv4(node) if family == socket.AF_INET else lab.ipv6(node)


def udp_socket(lab: Lab, node: str, family: int = socket.AF_INET, port: int = PORT) -> socket.socket:
    with inside(lab.nodes[node]):
        made = socket.socket(family, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        made.bind((address(lab, node, family), port))
    made.settimeout(PATIENCE)
    return made


async def ping(lab: Lab, source: str, destination: str, *options: str) -> int:
    """Exit status of ``ping``."""
    with inside(lab.nodes[source]):
        process = await asyncio.create_subprocess_exec(
            "ping", "-c", "1", "-W", "5", *options, destination, stdout=asyncio.subprocess.DEVNULL
        )
    return await process.wait()


async def tcp_pair(lab: Lab, source: str, destination: str, family: int) -> tuple[socket.socket, socket.socket]:
    """A connection: the end at ``source`` and the end at ``destination``, both without blocking."""
    loop = asyncio.get_running_loop()
    with inside(lab.nodes[destination]):
        listener = socket.create_server((address(lab, destination, family), PORT), family=family)
    with inside(lab.nodes[source]):
        client = socket.socket(family, socket.SOCK_STREAM)
    listener.setblocking(False)
    client.setblocking(False)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    async with asyncio.timeout(PATIENCE):
        await loop.sock_connect(client, (address(lab, destination, family), PORT))
        server, _ = await loop.sock_accept(listener)
    listener.close()
    server.setblocking(False)
    return client, server


async def tcp_transfer(lab: Lab, source: str, destination: str, family: int, size: int) -> float:
    """Send ``size`` bytes and compare what arrives. Returns the seconds it took."""
    payload = Random(size).randbytes(size)
    client, server = await tcp_pair(lab, source, destination, family)
    loop = asyncio.get_running_loop()
    begun = time.monotonic()
    with client, server:

        async def send() -> None:
            await loop.sock_sendall(client, payload)
            client.shutdown(socket.SHUT_WR)

        async with asyncio.timeout(3 * PATIENCE):
            _, received = await asyncio.gather(send(), read_all(server))
    assert received == payload
    return time.monotonic() - begun


async def read_all(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    received = bytearray()
    while data := await loop.sock_recv(connection, 1 << 20):
        received += data
    return bytes(received)


def udp_exchange(lab: Lab, source: str, destination: str, family: int, sizes: Sequence[int]) -> None:
    """Send datagrams of these sizes and compare what arrives."""
    with udp_socket(lab, source, family) as sender, udp_socket(lab, destination, family) as receiver:
        for size in sizes:
            payload = Random(size).randbytes(size)
            sender.sendto(payload, (address(lab, destination, family), PORT))
            assert receiver.recv(65536) == payload


def one_way(lab: Lab, source: str, destination: str, samples: int = 8) -> int:
    """The shortest of a few one-way times by UDP, in ns: the emulation's, without this machine's hiccups."""
    with udp_socket(lab, source) as sender, udp_socket(lab, destination) as receiver:
        times = []
        for _ in range(samples):
            sent = time.monotonic_ns()
            sender.sendto(b"x", (lab.ipv4(destination), PORT))
            receiver.recv(1)
            times.append(time.monotonic_ns() - sent)
    return min(times)


def round_trip(lab: Lab, source: str, destination: str, samples: int = 5) -> int:
    """The shortest of a few round trips by UDP, in ns."""
    with udp_socket(lab, source) as sender, udp_socket(lab, destination) as echo:
        times = []
        for _ in range(samples):
            sent = time.monotonic_ns()
            sender.sendto(b"x", (lab.ipv4(destination), PORT))
            data, back = echo.recvfrom(1)
            echo.sendto(data, back)
            sender.recv(1)
            times.append(time.monotonic_ns() - sent)
    return min(times)


def blast(lab: Lab, source: str, destination: str, count: int, size: int = 1472, burst: int = 50) -> set[int]:
    """Send numbered datagrams, waiting for the last of each burst or a pause; the numbers of those that arrived."""
    arrived: set[int] = set()
    with udp_socket(lab, source) as sender, udp_socket(lab, destination) as receiver:
        receiver.settimeout(0.3)
        for first in range(0, count, burst):
            for number in range(first, min(count, first + burst)):
                sender.sendto(number.to_bytes(4, "big") + bytes(size - 4), (lab.ipv4(destination), PORT))
            receiver.setblocking(False)
            while number_or_none := _number(receiver):
                arrived.add(number_or_none - 1)
        receiver.settimeout(0.3)
        while number_or_none := _number(receiver):
            arrived.add(number_or_none - 1)
    return arrived


def _number(receiver: socket.socket) -> int | None:
    """One more than the next datagram's number, None if there is none."""
    try:
        return int.from_bytes(receiver.recv(65536)[:4], "big") + 1
    except (BlockingIOError, TimeoutError):
        return None
