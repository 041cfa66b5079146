"""A made-up run: requests from a source through a stage to a sink, while the stage moves from one node to another.

On the way: a message of many segments, a TCP segment lost and sent again, one that arrives twice, a super-frame, a
message that moves undelivered with the state, and a frame for the old owner that is refused as stale.
"""

from __future__ import annotations

from typing import Any

from testbed import dissect
from tests.checkers.recording import (
    ACTIVATION,
    CONTROL,
    DELAY,
    KV,
    MS,
    SECOND,
    TOKEN,
    US,
    Connection,
    Recording,
    frame,
    payload_hash,
)

IN, OUT, HANDOVER = 0x1111, 0x2222, 0xABCD
ENDPOINTS = {IN: ("source", "stage-1", ACTIVATION), OUT: ("stage-1", "sink", TOKEN)}
NAMES = ("CONTROL", "TOKEN", "ACTIVATION", "KV")


class _Stream:
    def __init__(self, number: int) -> None:
        self.id = number
        self.name = f"{number:016x}"
        self.sender, self.receiver, self.traffic_class = ENDPOINTS[number]
        self.messages: list[tuple[int, bytes]] = []
        self.delivered = 0
        self.acknowledged = 0

    @property
    def end(self) -> int:
        return self.messages[-1][0] + len(self.messages[-1][1]) if self.messages else 0

    def cursor(self, count: int) -> int:
        """Offset at which message ``count`` begins."""
        return self.messages[count][0] if count < len(self.messages) else self.end


class Story:
    """Tells the run step by step."""

    def __init__(self, *, ipv6: bool = False) -> None:
        self.run = Recording(ipv6=ipv6)
        self.owner = {"source": "w0", "sink": "w0", "stage-1": "w1"}
        self.epoch = {"source": 1, "sink": 1, "stage-1": 1}
        self.streams = {number: _Stream(number) for number in ENDPOINTS}
        self.requests = 0
        self.channels: dict[tuple[str, str, int], Connection] = {}

    def channel(self, one: str, other: str, traffic_class: int) -> Connection:
        key = (min(one, other), max(one, other), traffic_class)
        if key not in self.channels:
            self.channels[key] = Connection(self.run, one, other, traffic_class)
        return self.channels[key]

    def send(self, node: str, other: str, traffic_class: int, kind: int, body: Any = b"", **fields: Any) -> None:
        """One frame, which arrives before this returns."""
        tcp = {name: fields.pop(name) for name in ("lost", "repeated", "segment") if name in fields}
        data = frame(kind, body, traffic_class=traffic_class, **fields)
        self.channel(node, other, traffic_class).send(node, data, **tcp)
        self.run.wait(2 * DELAY + (2 * MS if tcp.get("lost") else 0))

    # Steps

    def begin(self) -> None:
        run = self.run
        for endpoint, node in self.owner.items():
            run.note(node, "endpoint.hosted", endpoint=endpoint, epoch=1, cause="host")
        run.wait(MS)
        run.event("traffic.started")
        for stream in self.streams.values():
            self._open(stream)

    def _open(self, stream: _Stream) -> None:
        here, there = self.owner[stream.sender], self.owner[stream.receiver]
        epochs = {"sender_epoch": self.epoch[stream.sender], "destination_epoch": self.epoch[stream.receiver]}
        body = dissect.Open(
            sender=stream.sender, receiver=stream.receiver, label="", stream_class=stream.traffic_class,
            binding=self.run.binding(stream.sender, epochs["sender_epoch"], here),
        )  # fmt: skip
        self.send(here, there, stream.traffic_class, 16, body, stream=stream.id, **epochs)
        fields = {"stream": stream.name, "from": stream.sender, "to": stream.receiver,
                  "class": NAMES[stream.traffic_class], "label": ""}  # fmt: skip
        self.run.note(there, "stream.opened", side="receiver", epoch=epochs["destination_epoch"], **fields)
        self.acknowledge(stream)
        self.run.note(here, "stream.opened", side="sender", epoch=epochs["sender_epoch"], **fields)

    def request(self, size: int = 300, **tcp: Any) -> None:
        """One request, answered."""
        number = self.requests
        self.requests += 1
        self.run.note("w0", "app.request", request=number)
        self.message(IN, size, **tcp)
        self.message(OUT, 64)
        self.run.note("w0", "app.done", request=number, tokens=1, hash="0" * 16)
        self.run.wait(MS)

    def message(self, number: int, size: int, **tcp: Any) -> None:
        stream = self.streams[number]
        self.write(stream, size)
        self.data(stream, len(stream.messages) - 1, self.owner[stream.receiver], **tcp)
        self.deliver(stream)
        self.acknowledge(stream)

    def write(self, stream: _Stream, size: int) -> None:
        """The application hands a message over."""
        payload = self.run.random.randbytes(size)
        stream.messages.append((stream.end, payload))
        self._note_message(stream, "message.sent", len(stream.messages) - 1, stream.sender)

    def data(self, stream: _Stream, number: int, to: str, *, epoch: int | None = None, **tcp: Any) -> None:
        """The frames of one message."""
        begin, payload = stream.messages[number]
        most = 16 * 1024 if stream.traffic_class == TOKEN else 256 * 1024
        for at in range(0, len(payload), most):
            self.send(
                self.owner[stream.sender], to, stream.traffic_class, 17, payload[at : at + most], stream=stream.id,
                message=number, offset=begin + at, end=begin + len(payload), sender_epoch=self.epoch[stream.sender],
                destination_epoch=epoch or self.epoch[stream.receiver], **tcp,
            )  # fmt: skip

    def deliver(self, stream: _Stream) -> None:
        """The application takes the next message."""
        self._note_message(stream, "message.delivered", stream.delivered, stream.receiver)
        stream.delivered += 1

    def _note_message(self, stream: _Stream, event: str, number: int, endpoint: str) -> None:
        offset, payload = stream.messages[number]
        self.run.note(self.owner[endpoint], event, stream=stream.name, message=number, offset=offset, size=len(payload),
                      hash=payload_hash(payload), epoch=self.epoch[endpoint])  # fmt: skip

    def acknowledge(self, stream: _Stream, **fields: Any) -> None:
        stream.acknowledged = stream.delivered
        offset = stream.cursor(stream.delivered)
        header = {"message": stream.delivered, "offset": offset, "end": offset} | fields
        self.send(
            self.owner[stream.receiver], self.owner[stream.sender], stream.traffic_class, 18,
            dissect.Ack(limit=offset + 1_000_000), stream=stream.id, sender_epoch=self.epoch[stream.receiver],
            destination_epoch=self.epoch[stream.sender], **header,
        )  # fmt: skip

    def migrate(self, target: str = "w2", handover: int = HANDOVER) -> None:
        """Move stage-1. One message arrives while it is frozen, one more after it has gone."""
        run, source, epoch = self.run, self.owner["stage-1"], self.epoch["stage-1"]
        stream = self.streams[IN]
        told = {"handover": f"{handover:016x}", "endpoint": "stage-1", "epoch": epoch}
        run.event("fault.begun", id=len(run.schedule) + 1, kind="migrate", endpoint="stage-1", to=target)
        run.schedule.append(
            {"id": len(run.schedule) + 1, "at": 0, "kind": "migrate", "endpoint": "stage-1", "to": target}
        )

        def step(name: str, node: str) -> None:
            side, peer = ("source", target) if node == source else ("target", source)
            run.note(node, f"handover.{name}", side=side, peer=peer, **told)

        step("begun", source)
        expected = dissect.Prepare(endpoint="stage-1", source=source, expected=4000)
        self.send(source, target, CONTROL, 48, expected, stream=handover, sender_epoch=epoch)
        step("prepared", target)
        self.send(target, source, CONTROL, 49, stream=handover)
        step("prepared", source)
        region = bytes(dissect.Region(region="kv", size=3000, at=0)) + run.random.randbytes(3000)
        self._transfer(source, target, handover, 0, 0, region)
        step("precopied", source)
        step("frozen", source)
        run.note(source, "endpoint.frozen", endpoint="stage-1", epoch=epoch, handover=told["handover"])
        self.write(stream, 200)
        held = len(stream.messages) - 1
        self.data(stream, held, source)
        state = bytes(self._state(held))
        self._transfer(source, target, handover, 1, len(region), state)
        step("state-sent", source)
        step("commit-sent", source)
        new = {"stream": handover, "sender_epoch": epoch, "destination_epoch": epoch + 1}
        self.send(
            source, target, CONTROL, 51, dissect.Commit(endpoint="stage-1"), offset=len(region) + len(state), **new
        )
        self._arrive(target, epoch + 1)
        step("committed", target)
        for one in self.streams.values():
            if one.receiver == "stage-1":
                self.acknowledge(one)
        self.deliver(stream)
        self.send(target, source, CONTROL, 52, dissect.Committed(endpoint="stage-1"), **new)
        step("committed", source)
        run.note(source, "endpoint.released", endpoint="stage-1", epoch=epoch, cause="handover")
        step("completed", source)
        run.wait(8 * MS)
        self._stale(stream, source, epoch)
        self.send(source, target, CONTROL, 53, **new)
        step("completed", target)
        self.send(target, source, CONTROL, 54, **new)
        run.event("fault.healed", id=len(run.schedule))
        for number in (held, held + 1):
            run.note("w0", "app.request", request=self.requests)
            run.note("w0", "app.done", request=self.requests, tokens=1, hash="0" * 16)
            self.requests += number >= 0

    def _transfer(self, source: str, target: str, handover: int, number: int, offset: int, record: bytes) -> None:
        epoch = self.epoch["stage-1"]
        fields = {"stream": handover, "sender_epoch": epoch, "destination_epoch": epoch}
        end = offset + len(record)
        self.send(source, target, KV, 17, record, message=number, offset=offset, end=end, segment=60_000, **fields)
        self.send(target, source, KV, 18, dissect.Ack(limit=1 << 20), message=number + 1, offset=end, end=end, **fields)

    def _state(self, held: int) -> Any:
        moved = []
        for stream in self.streams.values():
            inbound = stream.receiver == "stage-1"
            peer = stream.sender if inbound else stream.receiver
            start, payload = stream.messages[held] if inbound else (0, b"")
            messages = (
                [dissect.Held(number=held, start=start, end=start + len(payload), data=payload)] if inbound else []
            )
            moved.append(
                dissect.MovedStream(
                    stream=stream.id,
                    side=1 if inbound else 2,
                    stream_class=stream.traffic_class,
                    peer=peer,
                    label="",
                    binding=self.run.binding(peer, self.epoch[peer], self.owner[peer]),
                    message=stream.delivered,
                    offset=stream.cursor(stream.delivered),
                    limit=1 << 20,
                    stream_flags="OPENED",
                    messages=messages,
                )
            )
        return dissect.State(streams=moved)

    def _arrive(self, target: str, epoch: int) -> None:
        self.owner["stage-1"], self.epoch["stage-1"] = target, epoch
        self.run.note(target, "endpoint.hosted", endpoint="stage-1", epoch=epoch, cause="handover")
        for stream in self.streams.values():
            side = "receiver" if stream.receiver == "stage-1" else "sender"
            self.run.note(target, "stream.moved", stream=stream.name, side=side, epoch=epoch, message=stream.delivered,
                          offset=stream.cursor(stream.delivered))  # fmt: skip

    def _stale(self, stream: _Stream, source: str, old: int) -> None:
        """The sender does not know yet, is told so, and goes on with the new owner."""
        run, target, epoch = self.run, self.owner["stage-1"], self.epoch["stage-1"]
        self.write(stream, 250)
        number = len(stream.messages) - 1
        self.data(stream, number, source, epoch=old)
        run.note(source, "frame.refused", stream=stream.name, reason="stale-destination", epoch=old, owned=0, peer="w0")
        body = dissect.Stale(binding=run.binding("stage-1", epoch, target), refused=1)
        self.send(source, "w0", stream.traffic_class, 20, body, stream=stream.id, destination_epoch=old)
        run.note("w0", "binding.learned", endpoint="stage-1", epoch=epoch, owner=target, via="stale",
                 owner_incarnation=f"{run.incarnations[target]:016x}")  # fmt: skip
        self.send(
            target,
            "w0",
            CONTROL,
            32,
            dissect.Announce(binding=run.binding("stage-1", epoch, target)),
            sender_epoch=epoch,
        )
        self.data(stream, number, target)
        self.deliver(stream)
        self.acknowledge(stream)


def usual(*, ipv6: bool = False) -> Recording:
    """The run that passes everything, with one migration there and one back."""
    story = Story(ipv6=ipv6)
    story.run.expect = {"cutover": {"p99": 50 * MS}, "goodput": {"min": 1.0}, "resets": None}
    story.begin()
    for _ in range(4):
        story.request()
    story.request(5000, lost=True)
    story.request(repeated=True)
    story.request(40_000, segment=20_000)
    story.migrate()
    story.request(3000)
    story.migrate("w1", HANDOVER + 1)
    story.request()
    story.run.wait(300 * MS)
    for _ in range(4):
        story.request()
    story.run.note("w0", "app.summary", requests=story.requests, tokens=story.requests, digest="0" * 16)
    story.run.wait(MS)
    story.run.finish()
    return story.run


__all__ = ["DELAY", "MS", "SECOND", "US", "Story", "usual"]
