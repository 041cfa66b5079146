"""Two processes in two network namespaces joined by a veth pair: where the benchmarks of Connex run.

Each side is a function in a process of its own, forked before any event loop exists. The namespaces have no name and
end with the benchmark.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from pyroute2 import IPRoute

from testbed.backends.privilege import ensure_namespaces
from testbed.backends.wire_linux import enter_network_namespace
from tests.wire.lab import inside, new_namespace

DEADLINE_S = 120
_fork = multiprocessing.get_context("fork")

Side = Callable[[str, str, Connection], Any]
"""``side(own address, address of the other, pipe to the other side)``; what it returns is the result of the side."""


class Pair:
    """Namespaces of a client (10.98.0.1) and a server (10.98.0.2)."""

    addresses = ("10.98.0.1", "10.98.0.2")

    def __init__(self) -> None:
        self.pinned = True
        """Each side on a processor of its own, so that all contenders wake each other across processors."""

    def __enter__(self) -> Pair:
        ensure_namespaces()
        self.namespaces = (new_namespace(), new_namespace())
        with inside(self.namespaces[0]), IPRoute() as routes:
            routes.link("add", ifname="eth1", kind="veth", peer={"ifname": "eth1", "net_ns_fd": self.namespaces[1]})
        for namespace, address in zip(self.namespaces, self.addresses, strict=True):
            with inside(namespace), IPRoute() as routes:
                for name in ("lo", "eth1"):
                    index = routes.link_lookup(ifname=name)[0]
                    if name == "eth1":
                        routes.addr("add", index=index, address=address, prefixlen=24)
                    routes.link("set", index=index, state="up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for namespace in self.namespaces:
            os.close(namespace)

    def run(self, client: Side, server: Side) -> Any:
        """Run both sides; returns the client's result. The server ends when the client has."""
        ends = _fork.Pipe()
        results, result = _fork.Pipe(duplex=False)
        processes = [
            _fork.Process(target=self._side, args=(number, side, ends[number], result), daemon=True)
            for number, side in enumerate((client, server))
        ]
        for process in processes:
            process.start()
        try:
            if not results.poll(DEADLINE_S):
                raise TimeoutError(f"{client.__module__}: no result of the client after {DEADLINE_S} s")
            outcome = results.recv()
        finally:
            for process in processes:
                process.terminate()
                process.join()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _side(self, number: int, side: Side, pipe: Connection, result: Connection) -> None:
        enter_network_namespace(self.namespaces[number])
        _schedule_in_real_time()
        if self.pinned:
            cpus = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cpus[number % len(cpus)]})
        try:
            outcome = side(self.addresses[number], self.addresses[1 - number], pipe)
        except Exception as error:  # noqa: BLE001 - passed on to the parent, which raises it
            outcome = error
        if number == 0 or isinstance(outcome, BaseException):
            result.send(outcome)


def _schedule_in_real_time() -> None:
    """Let other work on the machine wait, where that is allowed."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
