"""Connex for scapy: every frame of ``docs/wire.md`` as a layer, for people who read captures and tests that make them.

Written from that page alone, and not from the codec of ``connex.core``: so the two readings check each other.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Any

from scapy.fields import (
    ByteEnumField,
    ByteField,
    FieldLenField,
    FlagsField,
    IntField,
    LongField,
    PacketField,
    PacketListField,
    ShortField,
    StrField,
    StrLenField,
    XIntField,
    XLongField,
    XShortField,
    XStrFixedLenField,
)
from scapy.layers.inet import TCP
from scapy.packet import Packet, Raw, bind_layers

HEADER_BYTES = 56
RAW: type[Any] = Raw
_CHECKED = 52
_LENGTH_AT = 8
_NUMBER = Struct(">I")

TYPES = {
    1: "HELLO", 2: "PROOF", 3: "REFUSED", 4: "HEARTBEAT", 5: "JOIN", 6: "LEAVE",
    16: "OPEN", 17: "DATA", 18: "ACK", 19: "RESET", 20: "STALE", 32: "ANNOUNCE",
    33: "RESOLVE", 48: "PREPARE", 49: "PREPARED", 50: "DECLINED", 51: "COMMIT", 52: "COMMITTED",
    53: "RELEASE", 54: "RELEASED", 55: "ABORT", 56: "UNKNOWN",
    57: "FENCE",
}  # fmt: skip
CLASSES = {0: "CONTROL", 1: "TOKEN", 2: "ACTIVATION", 3: "KV"}
CAUSES = {
    1: "endpoint-unknown", 2: "owner-died", 3: "owner-restarted", 4: "endpoint-ended", 5: "cancelled",
    6: "limit-exceeded", 7: "protocol-error", 8: "handover-in-doubt", 9: "fenced", 10: "unknown-stream",
    11: "node-left", 12: "unreachable",
}  # fmt: skip
REFUSALS = {1: "version", 2: "cluster", 3: "proof", 4: "limit", 5: "name-in-use"}
STATES = {1: "alive", 2: "leaving", 3: "left", 4: "dead"}
SPEAKERS = {1: "sender", 2: "receiver"}
MOVED = {1: "destination-moved", 2: "sender-moved"}
ANSWERS = {1: "promised", 2: "seen"}
SIDES = {1: "inbound", 2: "outbound"}
RECORDS = {1: "REGION", 2: "STATE", 3: "PEERS"}


class Text(StrField):  # type: ignore[misc]
    """UTF-8 after its length in ``width`` bytes: ``str8`` or ``str16``."""

    __slots__ = ("width",)

    def __init__(self, name: str, width: int = 1) -> None:
        super().__init__(name, b"")
        self.width = width

    def addfield(self, pkt: Any, s: bytes, val: Any) -> bytes:
        text: bytes = self.i2m(pkt, val)
        return s + len(text).to_bytes(self.width, "big") + text

    def getfield(self, pkt: Any, s: bytes) -> tuple[bytes, bytes]:
        size = int.from_bytes(s[: self.width], "big")
        return s[self.width + size :], s[self.width : self.width + size]


class _Part(Packet):  # type: ignore[misc]
    """What stands inside a body: the bytes after it belong to the next part."""

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return b"", s


class Binding(_Part):
    name = "binding"
    fields_desc = [Text("endpoint"), IntField("epoch", 0), Text("node"), XLongField("incarnation", 0), Text("locator")]


class EndpointName(_Part):
    name = "endpoint"
    fields_desc = [Text("endpoint")]


class Member(_Part):
    name = "member"
    fields_desc = [Text("node"), XLongField("incarnation", 0), Text("locator"), ByteEnumField("state", 1, STATES)]


class Hello(Packet):  # type: ignore[misc]
    name = "HELLO"
    fields_desc = [
        ByteField("lowest", 1),
        ByteField("highest", 1),
        Text("cluster"),
        Text("node"),
        XLongField("incarnation", 0),
        Text("locator"),
        XStrFixedLenField("nonce", bytes(16), 16),
    ]


class Proof(Packet):  # type: ignore[misc]
    name = "PROOF"
    fields_desc = [XStrFixedLenField("proof", bytes(32), 32)]


class Refused(Packet):  # type: ignore[misc]
    name = "REFUSED"
    fields_desc = [ByteEnumField("code", 1, REFUSALS), Text("text", 2)]


class Heartbeat(Packet):  # type: ignore[misc]
    name = "HEARTBEAT"
    fields_desc = [LongField("sent_at", 0), LongField("answered", 0)]


class Join(Packet):  # type: ignore[misc]
    name = "JOIN"
    fields_desc = [PacketField("member", Member(), Member), XLongField("digest", 0)]


class JoinReply(Packet):  # type: ignore[misc]
    name = "JOIN reply"
    fields_desc = [
        FieldLenField("member_count", None, count_of="members", fmt="H"),
        PacketListField("members", [], Member, count_from=lambda pkt: pkt.member_count),
        FieldLenField("binding_count", None, count_of="bindings", fmt="H"),
        PacketListField("bindings", [], Binding, count_from=lambda pkt: pkt.binding_count),
    ]


class Leave(Packet):  # type: ignore[misc]
    name = "LEAVE"
    fields_desc = [PacketField("member", Member(), Member)]


class Announce(Packet):  # type: ignore[misc]
    name = "ANNOUNCE"
    fields_desc = [PacketField("binding", Binding(), Binding)]


class Resolve(Packet):  # type: ignore[misc]
    name = "RESOLVE"
    fields_desc = [Text("endpoint")]


class Open(Packet):  # type: ignore[misc]
    name = "OPEN"
    fields_desc = [
        Text("sender"),
        Text("receiver"),
        Text("label"),
        ByteEnumField("stream_class", 1, CLASSES),
        PacketField("binding", Binding(), Binding),
    ]


class Ack(Packet):  # type: ignore[misc]
    name = "ACK"
    fields_desc = [LongField("limit", 0)]


class Reset(Packet):  # type: ignore[misc]
    name = "RESET"
    fields_desc = [ByteEnumField("cause", 1, CAUSES), ByteEnumField("side", 1, SPEAKERS), Text("text", 2)]


class Stale(Packet):  # type: ignore[misc]
    name = "STALE"
    fields_desc = [PacketField("binding", Binding(), Binding), ByteEnumField("refused", 1, MOVED)]


class Prepare(Packet):  # type: ignore[misc]
    name = "PREPARE"
    fields_desc = [Text("endpoint"), Text("source"), LongField("expected", 0)]


class Declined(Packet):  # type: ignore[misc]
    name = "DECLINED"
    fields_desc = [Text("text", 2)]


class Abort(Packet):  # type: ignore[misc]
    name = "ABORT"
    fields_desc = [Text("text", 2)]


class Commit(Packet):  # type: ignore[misc]
    name = "COMMIT"
    fields_desc = [Text("endpoint")]


class Committed(Packet):  # type: ignore[misc]
    name = "COMMITTED"
    fields_desc = [Text("endpoint")]


class Fence(Packet):  # type: ignore[misc]
    """A source in doubt asks; ``ends`` are the endpoints at the other ends of streams."""

    name = "FENCE"
    fields_desc = [
        Text("endpoint"),
        FieldLenField("end_count", None, count_of="ends", fmt="H"),
        PacketListField("ends", [], EndpointName, count_from=lambda pkt: pkt.end_count),
    ]


class FenceReply(Packet):  # type: ignore[misc]
    name = "FENCE reply"
    fields_desc = [
        Text("endpoint"),
        ByteEnumField("answer", 1, ANSWERS),
        PacketField("known", Binding(), Binding),
        FieldLenField("elsewhere_count", None, count_of="elsewhere", fmt="H"),
        PacketListField("elsewhere", [], Binding, count_from=lambda pkt: pkt.elsewhere_count),
    ]


class Region(Packet):  # type: ignore[misc]
    """A record of a transfer stream: part of a state region. Its bytes are the payload of this layer."""

    name = "REGION"
    fields_desc = [ByteEnumField("record", 1, RECORDS), Text("region"), LongField("size", 0), LongField("at", 0)]


class Held(_Part):
    name = "held message"
    fields_desc = [
        LongField("number", 0),
        LongField("start", 0),
        LongField("end", 0),
        FieldLenField("held", None, length_of="data", fmt="Q"),
        StrLenField("data", b"", length_from=lambda pkt: pkt.held),
    ]


class MovedStream(_Part):
    name = "moved stream"
    fields_desc = [
        XLongField("stream", 0),
        ByteEnumField("side", 1, SIDES),
        ByteEnumField("stream_class", 1, CLASSES),
        Text("peer"),
        Text("label"),
        PacketField("binding", Binding(), Binding),
        LongField("message", 0),
        LongField("offset", 0),
        LongField("limit", 0),
        FlagsField("stream_flags", 0, 8, ["FIN_KNOWN", "OPENED", "FIN_ACKNOWLEDGED"]),
        LongField("fin_offset", 0),
        LongField("fin_message", 0),
        IntField("promised", 0),
        FieldLenField("message_count", None, count_of="messages", fmt="I"),
        PacketListField("messages", [], Held, count_from=lambda pkt: pkt.message_count),
    ]


class Witness(_Part):
    name = "witness"
    fields_desc = [Text("node"), XLongField("incarnation", 0), Text("locator")]


class State(Packet):  # type: ignore[misc]
    """The last record of a transfer stream: the streams of the endpoint that moves."""

    name = "STATE"
    fields_desc = [
        ByteEnumField("record", 2, RECORDS),
        FieldLenField("stream_count", None, count_of="streams", fmt="I"),
        PacketListField("streams", [], MovedStream, count_from=lambda pkt: pkt.stream_count),
        FieldLenField("witness_count", None, count_of="witnesses", fmt="H"),
        PacketListField("witnesses", [], Witness, count_from=lambda pkt: pkt.witness_count),
    ]


class OtherEnd(_Part):
    name = "other end"
    fields_desc = [PacketField("binding", Binding(), Binding), ByteEnumField("stream_class", 1, CLASSES)]


class Peers(Packet):  # type: ignore[misc]
    """The first record of a transfer stream: where the other ends of the endpoint's streams are."""

    name = "PEERS"
    fields_desc = [
        ByteEnumField("record", 3, RECORDS),
        FieldLenField("end_count", None, count_of="ends", fmt="I"),
        PacketListField("ends", [], OtherEnd, count_from=lambda pkt: pkt.end_count),
    ]


_BODIES: dict[int, type[Any]] = {
    1: Hello,
    2: Proof,
    3: Refused,
    4: Heartbeat,
    5: Join,
    6: Leave,
    16: Open,
    18: Ack,
    19: Reset,
    20: Stale,
    32: Announce,
    33: Resolve,
    48: Prepare,
    50: Declined,
    51: Commit,
    52: Committed,
    55: Abort,
    57: Fence,
}
_EMPTY_REPLIES = {6, 19, 55}
_REPLY = 1


class Connex(Packet):  # type: ignore[misc]
    """The header, and under it the body of its type. Length and checksum are filled in where they are left out."""

    name = "Connex"
    fields_desc = [
        XShortField("magic", 0x4358),
        ByteField("version", 1),
        ByteEnumField("type", 17, TYPES),
        FlagsField("flags", 0, 8, ["REPLY", "FIN", "RETRANSMIT"]),
        ByteEnumField("traffic_class", 0, CLASSES),
        ShortField("reserved", 0),
        IntField("length", None),
        XLongField("stream", 0),
        LongField("message", 0),
        LongField("offset", 0),
        LongField("end", 0),
        IntField("sender_epoch", 0),
        IntField("destination_epoch", 0),
        XIntField("checksum", None),
    ]

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.length is None:
            pkt = pkt[:_LENGTH_AT] + _NUMBER.pack(len(pay)) + pkt[_LENGTH_AT + 4 :]
        if self.checksum is None:
            pkt = pkt[:_CHECKED] + _NUMBER.pack(zlib.crc32(pkt[:_CHECKED]))
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return s[: self.length], s[self.length :]

    def guess_payload_class(self, payload: bytes) -> type[Any]:
        reply = int(self.flags) & _REPLY
        if self.type == 5 and reply:
            return JoinReply
        if self.type == 57 and reply:
            return FenceReply
        if reply and self.type in _EMPTY_REPLIES:
            return RAW
        return _BODIES.get(self.type, RAW)

    @property
    def fits(self) -> bool:
        """Whether the checksum is that of the header."""
        return bool(zlib.crc32(bytes(self)[:_CHECKED]) == self.checksum)

    def mysummary(self) -> tuple[str, list[Any]]:
        kind = TYPES.get(self.type, f"type {self.type}")
        flags = f" {self.flags}" if self.flags else ""
        text = f"{CLASSES.get(self.traffic_class, self.traffic_class)} {kind}{flags}"
        if self.stream:
            text += f" stream {self.stream:016x}"
        if self.type == 17:
            text += f" message {self.message} [{self.offset}, {self.offset + self.length}) of {self.end}"
        elif self.type == 18:
            text += f" delivered {self.message} messages, {self.offset} bytes; received {self.end}"
        if self.sender_epoch or self.destination_epoch:
            text += f" epochs {self.sender_epoch} > {self.destination_epoch}"
        body = self.payload
        if type(body) in _DETAILS:
            text += f" ({_DETAILS[type(body)](body)})"
        return f"Connex {text}", [TCP]

    @classmethod
    def tcp_reassemble(cls, data: bytes, metadata: dict[str, Any], session: dict[str, Any]) -> Any:
        """For scapy's ``TCPSession``: the next frame, once all of it is there."""
        if len(data) < HEADER_BYTES or len(data) < HEADER_BYTES + _NUMBER.unpack_from(data, _LENGTH_AT)[0]:
            return None
        return cls(data)


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _of_binding(binding: Any) -> str:
    owner = _text(binding.node) or "nobody"
    return f"{_text(binding.endpoint)} epoch {binding.epoch} at {owner} {binding.incarnation:016x}"


_DETAILS: dict[type[Any], Any] = {
    Hello: lambda body: f"{_text(body.node)} {body.incarnation:016x} of {_text(body.cluster)} at {_text(body.locator)}",
    Refused: lambda body: f"{REFUSALS.get(body.code, body.code)}: {_text(body.text)}",
    Join: lambda body: f"{_text(body.member.node)} is {STATES.get(body.member.state)}",
    JoinReply: lambda body: f"{body.member_count} members, {body.binding_count} bindings",
    Leave: lambda body: f"{_text(body.member.node)} is {STATES.get(body.member.state)}",
    Announce: lambda body: _of_binding(body.binding),
    Resolve: lambda body: _text(body.endpoint),
    Open: lambda body: f"{_text(body.sender)} to {_text(body.receiver)} {_text(body.label)}".rstrip(),
    Ack: lambda body: f"may send up to {body.limit}",
    Reset: lambda body: f"{SPEAKERS.get(body.side)} says {CAUSES.get(body.cause, body.cause)}: {_text(body.text)}",
    Stale: lambda body: f"{MOVED.get(body.refused, body.refused)}: {_of_binding(body.binding)}",
    Prepare: lambda body: f"{_text(body.endpoint)} from {_text(body.source)}, {body.expected} bytes",
    Declined: lambda body: _text(body.text),
    Abort: lambda body: _text(body.text),
    Fence: lambda body: f"{_text(body.endpoint)}: {', '.join(_text(end.endpoint) for end in body.ends)}",
    FenceReply: lambda body: f"{ANSWERS.get(body.answer, body.answer)}: {_of_binding(body.known)}",
    Commit: lambda body: _text(body.endpoint),
    Committed: lambda body: _text(body.endpoint),
}


def record(content: bytes) -> Any:
    """The layer of one record of a transfer stream."""
    return {1: Region, 2: State, 3: Peers}.get(content[0] if content else 0, Raw)(content)


def register(port: int) -> None:
    """Let scapy take TCP on this port for Connex (``sniff(offline=..., session=TCPSession)``)."""
    bind_layers(TCP, Connex, sport=port)
    bind_layers(TCP, Connex, dport=port)
