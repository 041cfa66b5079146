"""Makes run folders as real runs leave them: journals, events and captures of the same made-up conversation.

Captures hold real TCP (handshakes, acknowledgements, checksums) around frames made of the scapy layers.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scapy.packet import Raw

from testbed import dissect
from testbed.capture import INBOUND, OUTBOUND, header, packet, trailer
from tests.dissect.packets import ACK, FIN, PSH, SYN, tcp

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
DELAY = 100 * US
OFFSET = 1_700_000_000 * SECOND
PORT = 7400
CONTROL, TOKEN, ACTIVATION, KV = range(4)
MSS = 1400
_FLAGS = {"S": SYN, "A": ACK, "P": PSH, "F": FIN}


def payload_hash(payload: bytes) -> str:
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


def frame(kind: int, body: Any = b"", **fields: Any) -> bytes:
    """One Connex frame."""
    content = Raw(body) if isinstance(body, bytes) else body
    layer = dissect.Connex(type=kind, **fields)
    return bytes(layer / content if body != b"" else layer)


class Recording:
    """A run being made up. ``now`` is CLOCK_MONOTONIC in ns; the caller moves it."""

    def __init__(self, nodes: Iterable[str] = ("w0", "w1", "w2"), *, ipv6: bool = False) -> None:
        self.now = 1000 * SECOND
        self.nodes = list(nodes)
        self.ipv6 = ipv6
        self.incarnations = {node: 0xA0 + number for number, node in enumerate(self.nodes)}
        self.journals: dict[str, list[dict[str, Any]]] = {node: [] for node in self.nodes}
        self.packets: dict[str, list[tuple[int, int, bytes]]] = {node: [] for node in self.nodes}
        self.events: list[dict[str, Any]] = []
        self.schedule: list[dict[str, Any]] = []
        self.expect: dict[str, Any] = {}
        self.links: list[dict[str, Any]] = []
        self.random = random.Random(1)
        self.ports = 40000
        self.event("run.started")
        for number, node in enumerate(self.nodes):
            self.event("node.started", node=node, pid=100 + number)
            self.note(node, "node.started", incarnation=f"{self.incarnations[node]:016x}", locator=self.locator(node),
                      pid=100 + number, cluster="run", time=1.7e9)  # fmt: skip

    def address(self, node: str) -> str:
        number = self.nodes.index(node) + 1
        return f"fd00::{number}" if self.ipv6 else f"10.0.0.{number}"

    def locator(self, node: str) -> str:
        return f"10.0.0.{self.nodes.index(node) + 1}:{PORT}"

    def wait(self, time: int) -> None:
        self.now += time

    def note(self, node: str, event: str, **fields: Any) -> None:
        """A line of a node's journal."""
        self.journals[node].append({"t": self.now, "event": event, "node": node, **fields})

    def event(self, event: str, **fields: Any) -> None:
        self.events.append({"t": self.now, "event": event, **fields})

    def binding(self, endpoint: str, epoch: int, node: str) -> Any:
        return dissect.Binding(
            endpoint=endpoint, epoch=epoch, node=node, incarnation=self.incarnations[node], locator=self.locator(node)
        )

    def finish(self) -> None:
        """End traffic and the run in order."""
        requests = sum(one["event"] == "app.request" for lines in self.journals.values() for one in lines)
        done = sum(one["event"] == "app.done" for lines in self.journals.values() for one in lines)
        self.event("traffic.stopped", complete=True, missing=None, issued=requests, done=done, failed=0, tokens=done)
        self.wait(5 * MS)
        for number, node in enumerate(self.nodes):
            self.note(node, "node.stopping", cause="SIGTERM")
            self.wait(MS)
            self.event("node.exited", node=node, pid=100 + number, status=0, expected=True)
        self.event("wire.stopped", frames=1, overflowed=0, capture_dropped=0, lag_p50_ns=20_000, lag_p99_ns=200_000,
                   lag_max_ns=300_000, sched="fifo:50")  # fmt: skip
        self.event("run.finished")

    def write(self, folder: Path) -> Path:
        """The run folder."""
        plan = {
            node: {
                "locator": self.locator(node),
                "interfaces": [
                    {"name": "eth1", "port": f"{node}:eth1", "mac": _mac(number), "ipv4": f"10.0.0.{number}/24",
                     "ipv6": f"fd00::{number}/64"}
                ],
            }
            for number, node in enumerate(self.nodes, 1)
        }  # fmt: skip
        run = {
            "run_id": "0123abcd", "name": "made-up", "seed": 1, "backend": "netns", "lag_budget_ns": 2 * MS,
            "workload": {"adapter": "connex"}, "scenario": {"expect": self.expect}, "topology": {"name": "three"},
            "plan": {"nodes": plan, "links": self.links}, "capture": {"point": "wire"},
        }  # fmt: skip
        (folder / "captures").mkdir(parents=True)
        (folder / "resolved.json").write_text(json.dumps(run))
        (folder / "schedule.json").write_text(json.dumps(self.schedule))
        write_lines(folder / "events.jsonl", self.events)
        for node, lines in self.journals.items():
            write_lines(folder / "nodes" / node / f"journal-{self.incarnations[node]:016x}.jsonl", lines)
        counters = {}
        for node, packets in self.packets.items():
            name = f"{node}.eth1.pcapng"
            ordered = sorted(packets, key=lambda one: one[0])
            write_capture(folder / "captures" / name, ordered)
            counters[name] = {"frames": len(ordered), "bytes": sum(len(data) for _, _, data in ordered), "dropped": 0,
                              "point": "wire", "closed": True}  # fmt: skip
        (folder / "captures" / "counters.json").write_text(json.dumps(counters))
        return folder


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_capture(path: Path, packets: list[tuple[int, int, bytes]], *, close: bool = True) -> None:
    """``packets``: CLOCK_MONOTONIC in ns, direction, frame."""
    blocks = [header("eth1", OFFSET, "seen by a test")]
    blocks += [packet(time + OFFSET, direction, data) for time, direction, data in packets]
    if close:
        blocks.append(trailer((packets[-1][0] if packets else 0) + OFFSET, len(packets), 0))
    path.write_bytes(b"".join(blocks))


def _mac(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


class Connection:
    """A TCP connection between two nodes, opened and greeted now."""

    def __init__(self, run: Recording, initiator: str, acceptor: str, traffic_class: int) -> None:
        self.run = run
        self.ends = (initiator, acceptor)
        self.traffic_class = traffic_class
        run.ports += 1
        self.port = {initiator: run.ports, acceptor: PORT}
        self.next = {node: run.random.getrandbits(32) for node in self.ends}
        self._segment(initiator, "S")
        self._segment(acceptor, "SA", at=run.now + DELAY)
        self._segment(initiator, "A", at=run.now + 2 * DELAY)
        run.wait(4 * DELAY)
        for node in (initiator, acceptor):
            self.send(node, frame(1, self._hello(node), traffic_class=traffic_class))
            run.wait(DELAY)
        for node in (acceptor, initiator):
            self.send(node, frame(2, dissect.Proof(proof=bytes(32)), traffic_class=traffic_class))
            run.wait(DELAY)

    def _hello(self, node: str) -> Any:
        run = self.run
        return dissect.Hello(cluster="run", node=node, incarnation=run.incarnations[node], locator=run.locator(node),
                             nonce=run.random.randbytes(16))  # fmt: skip

    def other(self, node: str) -> str:
        return self.ends[1] if node == self.ends[0] else self.ends[0]

    def _segment(self, node: str, flags: str, payload: bytes = b"", *, at: int | None = None, lost: bool = False,
                 sequence: int | None = None, seen: bool = True) -> None:  # fmt: skip
        run, other = self.run, self.other(node)
        at = run.now if at is None else at
        data = tcp(
            (run.address(node), self.port[node]), (run.address(other), self.port[other]),
            self.next[node] if sequence is None else sequence, self.next[other] if "A" in flags else 0,
            sum(_FLAGS[flag] for flag in flags), payload,
        )  # fmt: skip
        if sequence is None:
            self.next[node] = (self.next[node] + len(payload) + ("S" in flags or "F" in flags)) & 0xFFFFFFFF
        if seen:
            run.packets[node].append((at, OUTBOUND, data))
        if not lost:
            run.packets[other].append((at + DELAY, INBOUND, data))

    def send(self, node: str, data: bytes, *, lost: bool = False, repeated: bool = False, segment: int = MSS) -> None:
        """Send bytes now, in segments of ``segment`` bytes. ``lost``: the first one is lost at first, and sent again
        1 ms later. ``repeated``: each arrives twice."""
        run = self.run
        for at in range(0, len(data), segment):
            part = data[at : at + segment]
            sequence = self.next[node]
            self._segment(node, "PA", part, lost=lost and at == 0)
            if lost and at == 0:
                self._segment(node, "PA", part, at=run.now + MS, sequence=sequence)
            if repeated:
                self._segment(node, "PA", part, at=run.now + 10 * US, sequence=sequence, seen=False)
            run.now += US
        self._segment(self.other(node), "A", at=run.now + DELAY + (MS + DELAY if lost else 0))
