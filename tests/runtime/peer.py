"""A peer played by hand: its bytes are fed to a channel of a real node in pieces of any size."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator
from itertools import repeat

from connex import Config, TrafficClass
from connex.core import frames
from connex.core.binding import Binding
from connex.core.frames import HEADER_SIZE, Frame, FrameType, decode_header, encode
from connex.core.identity import Peer
from connex.runtime.assembly import Assembly
from connex.runtime.channel import Channel
from connex.runtime.handshake import Acceptor, Credentials, Initiator
from connex.runtime.moves import Arrivals
from connex.runtime.stream import InboundStream

ME = Peer("w0", 1, "127.0.0.1:7400")
HIM = Peer("w1", 2, "127.0.0.1:7401")
STREAM = 77


class Wire(asyncio.Transport):
    """Takes what a channel writes; its socket is real, so that options can be set on it."""

    def __init__(self) -> None:
        super().__init__({"socket": socket.socket(), "peername": ("127.0.0.1", 7401)})
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write_eof(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def frames(self) -> list[Frame]:
        """What was written since the last call."""
        result, at = [], 0
        while at < len(self.written):
            header, length = decode_header(bytes(self.written), at)
            at += HEADER_SIZE + length
            result.append(header._replace(payload=bytes(self.written[at - length : at])))
        self.written.clear()
        return result

    def release(self) -> None:
        self.get_extra_info("socket").close()


class HandPlayed:
    """A node (the real one) and a peer (played), with the endpoint ``sink`` at the node."""

    def __init__(self, poll_ns: int = 0) -> None:
        self.assembly = Assembly(Credentials(ME, "c", b""), Config(), None, Arrivals(), poll_ns)
        self.wires: list[Wire] = []
        self.got: list[bytes] = []
        self._host()

    def _host(self) -> None:
        self.assembly.core.host("sink", 1)
        self.assembly.engine.touched(1)
        self.sink = self.assembly.hosting.endpoints["sink"]
        self.sink.on_message(lambda message: self.got.append(bytes(message.payload)))

    def connect(self, traffic_class: TrafficClass = TrafficClass.KV) -> tuple[Channel, Wire]:
        """A channel whose handshake is done."""
        channel, wire = Channel(self.assembly.links, Acceptor(Credentials(ME, "c", b""), bytes(16))), Wire()
        self.wires.append(wire)
        channel.connection_made(wire)
        initiator = Initiator(Credentials(HIM, "c", b""), traffic_class, bytes(16))
        feed(channel, b"".join(map(encode, initiator.start())))
        for frame in wire.frames():
            feed(channel, b"".join(map(encode, initiator.receive(frame))))
        assert channel.peer == HIM
        return channel, wire

    def open(self, channel: Channel, traffic_class: TrafficClass = TrafficClass.KV) -> InboundStream:
        """A stream from the peer's endpoint to ``sink``."""
        binding = frames.binding(Binding("source", 1, *HIM))
        names = frames.text("source") + frames.text("sink") + frames.text("") + bytes((traffic_class,))
        opening = Frame(FrameType.OPEN, 0, traffic_class, STREAM, 0, 0, 0, 1, 1, names + binding)
        feed(channel, encode(opening))
        return self.assembly.hosting.streams.inbound[STREAM]

    async def close(self) -> None:
        for channel in self.assembly.links.channels():
            channel.connection_lost(None)
        await self.assembly.close(1)
        for wire in self.wires:
            wire.release()


def message(
    number: int, start: int, payload: bytes, frame: int = 256 * 1024, kind: TrafficClass = TrafficClass.KV
) -> bytes:
    """The DATA frames of one message of STREAM."""
    end = start + len(payload)
    pieces = [payload[at : at + frame] for at in range(0, len(payload), frame)] or [b""]
    return b"".join(
        encode(Frame(FrameType.DATA, 0, kind, STREAM, number, start + index * frame, end, 1, 1, piece))
        for index, piece in enumerate(pieces)
    )


def feed(channel: Channel, data: bytes, sizes: Iterable[int] = repeat(1 << 30)) -> None:
    """Let the channel read the bytes, at most so many at a time."""
    rest = memoryview(data)
    pieces: Iterator[int] = iter(sizes)
    while rest and not channel.over:
        size = min(next(pieces, 1 << 30), len(rest))
        if channel.bulk is None:
            channel.data_received(bytes(rest[:size]))
        else:
            buffer = channel.bulk.get_buffer(-1)
            assert len(buffer) > 0
            size = min(len(buffer), size)
            buffer[:size] = rest[:size]
            channel.bulk.buffer_updated(size)
        rest = rest[size:]
