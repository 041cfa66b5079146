"""The first frames of a channel: who the other side is, and the proof that it belongs to the cluster
(``docs/wire.md``, Channels).

Pure: frames in, frames out, no socket and no clock. Either side ends with ``peer`` set, or with ChannelRefused raised.
"""

from __future__ import annotations

import hmac
from enum import IntEnum
from typing import NamedTuple

from connex.core import frames
from connex.core.errors import ChannelRefused, RemoteProtocolError
from connex.core.frames import VERSION, BodyReader, Buffer, Frame, FrameType
from connex.core.identity import NodeName, Peer, TrafficClass
from connex.runtime.locator import parse_locator

_NONCE = 16
_NAME_LIMIT = 63


class Code(IntEnum):
    """Why a side does not accept the other (the numbers of ``docs/wire.md``)."""

    VERSION = 1
    CLUSTER = 2
    PROOF = 3
    LIMIT = 4
    NAME = 5


FINAL = frozenset({Code.VERSION, Code.CLUSTER, Code.PROOF})
"""Reasons that do not pass. A full table empties, and a name is free again once its former node is known to be dead."""


class Refusal(ChannelRefused):
    """This side does not accept the other; ``answer`` is the frame that says so before the connection is closed."""

    def __init__(self, code: Code, text: str, traffic_class: int = 0) -> None:
        super().__init__(text)
        self.code = code
        body = bytes((code,)) + frames.text(text, 2)
        self.answer = Frame(FrameType.REFUSED, 0, traffic_class, payload=body)


class TurnedAway(ChannelRefused):
    """The other side does not accept this one, now or later: version, cluster or proof do not fit."""


class Hello(NamedTuple):
    """The body of a HELLO."""

    lowest: int
    highest: int
    cluster: str
    node: NodeName
    incarnation: int
    locator: str
    nonce: bytes

    def encode(self) -> bytes:
        return (
            bytes((self.lowest, self.highest)) + frames.text(self.cluster) + frames.text(self.node)
            + frames.number(self.incarnation, 8) + frames.text(self.locator) + self.nonce
        )  # fmt: skip

    @classmethod
    def decode(cls, body: Buffer) -> Hello:
        reader = BodyReader(body)
        hello = cls(
            reader.number(1), reader.number(1), reader.text(), reader.text(), reader.number(8), reader.text(),
            reader.take(_NONCE),
        )  # fmt: skip
        reader.finish()
        if not 0 < len(hello.node.encode()) <= _NAME_LIMIT:
            raise RemoteProtocolError(f"HELLO: node name {hello.node!r}: expected 1 to {_NAME_LIMIT} bytes")
        parse_locator(hello.locator)
        return hello


class Credentials(NamedTuple):
    """What this node says of itself and what it wants of others."""

    me: Peer
    cluster: str
    secret: bytes

    def hello(self, nonce: bytes) -> Hello:
        return Hello(VERSION, VERSION, self.cluster, *self.me, nonce)

    def check(self, hello: Hello, traffic_class: int) -> Peer:
        """Who the other side is; raises Refusal if it does not fit."""
        if not hello.lowest <= VERSION <= hello.highest:
            raise Refusal(
                Code.VERSION,
                f"{hello.node} speaks versions {hello.lowest} to {hello.highest} of the protocol,"
                f" {self.me.node} speaks {VERSION};"
                f" run the same release on both",
                traffic_class,
            )
        if hello.cluster != self.cluster:
            raise Refusal(
                Code.CLUSTER,
                f"{hello.node} belongs to cluster {hello.cluster!r}, {self.me.node} to {self.cluster!r}",
                traffic_class,
            )
        if hello.node == self.me.node:
            raise Refusal(
                Code.NAME,
                f"the name {hello.node} is in use by the node at {self.me.locator}; give every node a name of its own",
                traffic_class,
            )
        return Peer(hello.node, hello.incarnation, hello.locator)

    def proof(self, role: bytes, transcript: bytes) -> bytes:
        return hmac.digest(self.secret, role + transcript, "sha256")

    def verify(self, frame: Frame, role: bytes, transcript: bytes, peer: Peer) -> None:
        if not hmac.compare_digest(bytes(frame.payload), self.proof(role, transcript)):
            raise Refusal(
                Code.PROOF,
                f"{peer.node} at {peer.locator} did not prove that it knows the secret of cluster {self.cluster!r};"
                f" give both nodes the same secret",
                frame.traffic_class,
            )


class Initiator:
    """The side that opened the connection, for one traffic class."""

    def __init__(self, credentials: Credentials, traffic_class: TrafficClass, nonce: bytes) -> None:
        self.peer: Peer | None = None
        self.traffic_class = traffic_class
        self._credentials = credentials
        self._mine = credentials.hello(nonce).encode()
        self._transcript = b""
        self._candidate: Peer | None = None

    def start(self) -> list[Frame]:
        return [Frame(FrameType.HELLO, 0, self.traffic_class, payload=self._mine)]

    def receive(self, frame: Frame) -> list[Frame]:
        """Take a frame of the other side; returns what to answer. Raises ChannelRefused or RemoteProtocolError."""
        _raise_if_refused(frame)
        if frame.traffic_class != self.traffic_class:
            raise RemoteProtocolError(
                f"handshake frame of class {frame.traffic_class} on a channel of {self.traffic_class}"
            )
        if self._candidate is None:
            _expect(frame, FrameType.HELLO)
            self._candidate = self._credentials.check(Hello.decode(frame.payload), self.traffic_class)
            self._transcript = self._mine + frame.payload
            return []
        _expect(frame, FrameType.PROOF)
        self._credentials.verify(frame, b"a", self._transcript, self._candidate)
        self.peer = self._candidate
        return [Frame(FrameType.PROOF, 0, self.traffic_class, payload=self._credentials.proof(b"i", self._transcript))]


class Acceptor:
    """The side that was called. Its traffic class is what the HELLO says."""

    def __init__(self, credentials: Credentials, nonce: bytes) -> None:
        self.peer: Peer | None = None
        self.traffic_class = TrafficClass.CONTROL
        self._credentials = credentials
        self._mine = credentials.hello(nonce).encode()
        self._transcript = b""
        self._candidate: Peer | None = None

    def start(self) -> list[Frame]:
        return []

    def receive(self, frame: Frame) -> list[Frame]:
        """Take a frame of the other side; returns what to answer. Raises ChannelRefused or RemoteProtocolError."""
        _raise_if_refused(frame)
        if self._candidate is None:
            _expect(frame, FrameType.HELLO)
            self.traffic_class = TrafficClass(frame.traffic_class)
            self._candidate = self._credentials.check(Hello.decode(frame.payload), self.traffic_class)
            self._transcript = bytes(frame.payload) + self._mine
            proof = self._credentials.proof(b"a", self._transcript)
            return [
                Frame(FrameType.HELLO, 0, self.traffic_class, payload=self._mine),
                Frame(FrameType.PROOF, 0, self.traffic_class, payload=proof),
            ]
        _expect(frame, FrameType.PROOF)
        self._credentials.verify(frame, b"i", self._transcript, self._candidate)
        self.peer = self._candidate
        return []


def _expect(frame: Frame, kind: FrameType) -> None:
    if frame.type != kind:
        raise RemoteProtocolError(f"handshake: frame of type {frame.type}, expected {kind.name} ({kind.value})")


def _raise_if_refused(frame: Frame) -> None:
    if frame.type == FrameType.REFUSED:
        body = BodyReader(frame.payload)
        code, text = body.number(1), body.text(2)
        body.finish()
        name = Code(code).name.lower() if code in Code.__members__.values() else str(code)
        refused = TurnedAway if code in FINAL else ChannelRefused
        raise refused(f"refused by the other side ({name}): {text}")
