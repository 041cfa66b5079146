"""The short way of small messages: what most of them need, in as few steps as Python allows.

Both functions either do the whole of it, exactly as ``Flow`` would, or change nothing and say so; then the long way is
taken. What is out of the ordinary (repeats, gaps, pieces, backlog, ends, doubts about the owner) is never theirs.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from connex.core.context import Context
from connex.core.frames import MAGIC, VERSION, Buffer, Frame, FrameType
from connex.core.identity import NodeName, StreamId
from connex.core.scheduler import Outgoing
from connex.core.table import StreamTable

_FIELDS = Struct(">HBBBBHIQQQQII")
_CHECKSUM = Struct(">I")
_DATA = int(FrameType.DATA)


class Express:
    """Sends a lone message at once, and takes one that arrives whole and in order."""

    def __init__(self, context: Context, table: StreamTable) -> None:
        self._scheduler = context.scheduler
        self._timers = context.timers
        self._ack_delay = context.config.ack_delay
        self._table = table
        self._send_buffer = context.config.send_buffer
        self._outbound = table.outbound
        self._inbound = table.inbound

    def send(self, stream: StreamId, payload: Buffer, now: int) -> int:
        """Write the message and put it into a frame, if nothing waits before it and its owner is not in doubt: returns
        its number, or -1.
        """
        size = len(payload)
        out = self._outbound.get(stream)
        if out is None or not size or size > out.frame or not out.timed or out.blocked or not out.opened:
            return -1
        if now - out.confirmed_at >= out.lease:
            return -1
        route = out.route
        scheduler = self._scheduler
        lane = scheduler.lanes.get((out.node, route.traffic_class))
        if lane is None or scheduler.express or not lane.channels or not lane.writable or lane.urgent or lane.sources:
            return -1
        send = out.send
        number = send.next_message
        start = send.write_through(payload, size, self._send_buffer)
        if start < 0:
            return -1
        end = start + size
        if out.probe is None:
            out.probe = end
            out.probe_at = now
        fields = _FIELDS.pack(
            MAGIC,
            VERSION,
            _DATA,
            0,
            lane.number,
            0,
            size,
            route.stream,
            number,
            start,
            end,
            out.sender_epoch,
            out.peer_epoch,
        )
        header = fields + _CHECKSUM.pack(crc32(fields))
        scheduler.express.append(Outgoing(lane.node, lane.traffic_class, [header, payload]))
        return number

    def receive(self, node: NodeName, frame: Frame, now: int) -> bytes | None:
        """The payload of the message, which counts as delivered, if it is the next, whole, and nothing waits."""
        _, flags, _, stream, number, offset, end, sender_epoch, destination_epoch, payload = frame
        into = self._inbound.get(stream)
        if (
            into is None
            or flags
            or destination_epoch != into.epoch
            or sender_epoch != into.peer_epoch
            or into.node != node
            or not into.serving
            or not into.acknowledged
        ):
            return None
        credit = into.credit
        if end > credit.limit or offset + len(payload) != end or not into.receive.pass_through(number, offset, end):
            return None
        limit = end + credit.window
        if limit > credit.limit:
            credit.limit = limit
        if limit - credit.advertised >= credit.step:
            self._table.acknowledge(into)
        elif not into.due:
            into.due = True
            self._timers.set(("ack", stream, ""), now + self._ack_delay)
        return bytes(payload)
