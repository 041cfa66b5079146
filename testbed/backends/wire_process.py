"""The wire's process: takes real frames from interfaces, runs them through the network model, hands them on
in time.

Started by ``wire.Wire``; its arguments are the descriptors of its control socket and of the network
namespace.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from testbed.backends import wire_linux
from testbed.backends.wire_capture import Recorder, Tap
from testbed.backends.wire_messages import Setup, decode_setup, encode
from testbed.backends.wire_sockets import Outlet, Ring
from testbed.backends.wire_stats import Lag, WireStats
from testbed.capture import INBOUND, OUTBOUND
from testbed.network.fabric import Fabric
from testbed.network.spec import Port

BATCH = 64
"""Frames taken from the ring before frames that are due are looked after."""

SPIN = 10_000
"""How long before a frame is due (ns) the wire stops sleeping. Longer would make up for slow wake-ups, but a process
in real time that never sleeps is stopped by the kernel for up to 50 ms in every second, so that others may run."""

CONTROL_EVERY = 16
"""Rounds of the loop, while there is always something to do, between two looks at the control socket."""

LONGEST_SLEEP = 500_000_000
CAPTURE_FLUSH = 2_000_000
"""Longest sleep (ns) while captured frames wait for the process that writes them."""


class WireProcess:
    """The network, its sockets and its one loop."""

    def __init__(self, control: socket.socket, setup: Setup) -> None:
        self._control = control
        self._received = b""
        self._stopping = False
        self._recorder: Recorder | None = None
        if setup.captures:
            files = {port: Path(path) for port, path in setup.captures.items()}
            self._recorder = Recorder(files, close_in_writer=[control.fileno()])
        self._taps: dict[Port, Tap] = self._recorder.taps if self._recorder else {}
        self._fabric = Fabric(setup.spec, offloads=True)
        self._ring = Ring(max((link.mtu for link in setup.spec.links), default=1500))
        self._ports: dict[int, Port] = {}
        self._send: dict[Port, Any] = {}
        for port, interface in setup.attachments.items():
            if port not in self._fabric.edges:
                raise ValueError(f"attachment {port!r}: not an edge of the network; edges: {self._fabric.edges}")
            try:
                self._ports[socket.if_nametoindex(interface)] = port
                self._send[port] = Outlet(interface).send
            except OSError as error:
                raise ValueError(f"port {port}: interface {interface!r} of the fabric's namespace: {error}") from error
        self._lag = Lag()
        self._frames = self._bytes = self._delivered = self._undeliverable = 0
        self._sched = wire_linux.schedule_in_real_time() if setup.fifo else "other"

    @property
    def writer(self) -> int | None:
        """The process that writes the captures, if there is one."""
        return self._recorder.writer if self._recorder else None

    def run(self) -> None:
        """Relay until told to stop, or until nobody is left to tell."""
        waiter = wire_linux.Waiter([self._ring.fileno(), self._control.fileno()])
        clock, fabric, recorder = time.monotonic_ns, self._fabric, self._recorder
        rounds = 0
        while not self._stopping:
            busy = self._take_arrivals()
            busy = self._hand_over_departures() or busy
            if busy:
                rounds += 1
                if rounds % CONTROL_EVERY:
                    continue
                timeout = 0
            else:
                gap = fabric.next_time() - clock()
                if gap <= SPIN:
                    continue
                timeout = min(gap - SPIN, LONGEST_SLEEP)
            if recorder is not None and recorder.backlog > 0:
                recorder.flush()
                timeout = min(timeout, CAPTURE_FLUSH)
            if 1 in waiter.wait(timeout):
                self._obey()

    def _take_arrivals(self) -> bool:
        arrivals = self._ring.read(BATCH)
        taps, transmit, ports = self._taps, self._fabric.transmit, self._ports
        for interface, moment, frame in arrivals:
            port = ports.get(interface)
            if port is None:
                continue
            self._frames += 1
            self._bytes += len(frame)
            if port in taps:
                taps[port].add(moment, OUTBOUND, frame)
            transmit(port, frame, moment)
        return bool(arrivals)

    def _hand_over_departures(self) -> bool:
        clock = time.monotonic_ns
        moment = clock()
        departures = self._fabric.advance(moment)
        taps, send, record = self._taps, self._send, self._lag.record
        for due, port, frame in departures:
            # The clock is read before the send: within it the receiver's kernel already answers.
            try:
                send[port](frame)
            except KeyError:
                continue  # an edge without an interface: nobody is there
            except OSError:
                self._undeliverable += 1
                continue
            record(moment - due)
            self._delivered += 1
            if port in taps:
                taps[port].add(moment, INBOUND, frame)
            moment = clock()
        return bool(departures)

    def _obey(self) -> None:
        """Read requests and do them. The answer says that the effect is there."""
        data = self._control.recv(1 << 20)
        if not data:
            self._stopping = True
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            answer: dict[str, Any] = {"id": request["id"]}
            try:
                answer |= {"ok": True, **self._do(request)}
            except (ValueError, TypeError) as error:
                answer |= {"ok": False, "error": str(error)}
            self._control.sendall(encode(answer))

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        now = time.monotonic_ns()
        fabric = self._fabric
        match request["do"]:
            case "impair":
                fabric.impair(request["link"], request["direction"], request["changes"], now)
            case "restore":
                fabric.restore(request["link"], request["direction"], request["fields"], now)
            case "impairment":
                impairment = fabric.impairment(request["link"], request["direction"])
                return {"impairment": {name: getattr(impairment, name) for name in impairment.__slots__}}
            case "block":
                fabric.block(request["name"], [(a, b) for a, b in request["pairs"]], now)
            case "unblock":
                fabric.unblock(request["name"], now)
            case "stats":
                return {"stats": self._stats().to_json()}
            case "stop":
                self._stopping = True
                if self._recorder is not None:
                    self._recorder.close(now)
                return {"stats": self._stats().to_json()}
            case unknown:
                raise ValueError(f"{unknown!r} is not a request that the wire knows")
        return {}

    def _stats(self) -> WireStats:
        lines = self._fabric.counters()
        captures = {port: tap.stats for port, tap in self._taps.items()}
        return WireStats(
            frames=self._frames,
            bytes=self._bytes,
            delivered=self._delivered,
            lost=sum(line.lost for line in lines.values()),
            blocked=self._fabric.blocked_frames,
            down=sum(line.down for line in lines.values()),
            overflowed=sum(line.overflowed for line in lines.values()),
            oversized=sum(line.oversized for line in lines.values()),
            programmed=self._fabric.programmed_drops,
            overrun=self._ring.count_drops() + sum(line.overrun for line in lines.values()),
            undeliverable=self._undeliverable,
            lag_p50_ns=self._lag.percentile(0.5),
            lag_p99_ns=self._lag.percentile(0.99),
            lag_max_ns=self._lag.largest,
            capture_dropped=sum(stats.dropped for stats in captures.values()),
            sched=self._sched,
            lines=lines,
            captures=captures,
        )


def main(arguments: list[str]) -> int:
    control = socket.socket(fileno=int(arguments[0]))
    parent, namespace = int(arguments[1]), int(arguments[2])
    wire_linux.die_with_parent(parent)
    wire_linux.enter_network_namespace(namespace)
    os.close(namespace)
    wire_linux.keep_heap()
    with control.makefile("rb", buffering=0) as lines:
        setup = decode_setup(json.loads(lines.readline()))
    try:
        process = WireProcess(control, setup)
    except (OSError, ValueError) as error:
        control.sendall(encode({"id": 0, "ok": False, "error": str(error)}))
        return 1
    # The loop makes no cycles; a collection in the middle of it would only be late frames.
    gc.collect()
    gc.freeze()
    gc.disable()
    control.sendall(encode({"id": 0, "ok": True, "writer": process.writer}))
    process.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
