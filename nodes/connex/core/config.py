"""Every limit, window and period of Connex, in one place. Bytes and nanoseconds unless said otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field

from connex.core.identity import TrafficClass

KIB = 1024
MIB = 1024 * KIB
MILLISECOND = 1_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ClassLimits:
    """Limits of one traffic class."""

    frame: int
    """Largest payload of one frame."""
    window: int
    """Credit of one stream: bytes that may be sent beyond what the application has taken."""
    batch: int
    """Most bytes that one poll hands to one channel, so that a higher class is never far behind."""


def _classes() -> dict[TrafficClass, ClassLimits]:
    return {
        TrafficClass.CONTROL: ClassLimits(16 * KIB, 256 * KIB, 256 * KIB),
        TrafficClass.TOKEN: ClassLimits(16 * KIB, 1 * MIB, 256 * KIB),
        TrafficClass.ACTIVATION: ClassLimits(256 * KIB, 8 * MIB, 1 * MIB),
        TrafficClass.KV: ClassLimits(256 * KIB, 16 * MIB, 1 * MIB),
    }


@dataclass(frozen=True, slots=True)
class Config:
    classes: dict[TrafficClass, ClassLimits] = field(default_factory=_classes)
    message: int = 1024 * MIB
    """Largest message."""
    send_buffer: int = 64 * MIB
    """Bytes of one stream that may wait for acknowledgement before ``send`` has to wait; one message is always
    allowed.
    """
    streams: int = 4096
    """Streams of one node, both sides counted."""
    endpoints: int = 1024
    handovers: int = 64
    """Handovers that one node takes part in at once."""
    members: int = 1024
    bindings: int = 65536
    region: int = 64 * 1024 * MIB
    """Bytes of all state regions of one endpoint."""
    name: int = 63
    """Bytes of a node or endpoint name."""

    ack_delay: int = 1 * MILLISECOND
    """An acknowledgement waits this long for company, unless a quarter of the window is due."""
    lease: int = 200 * MILLISECOND
    retransmit: int = 60 * MILLISECOND
    """First wait without progress before a stream resumes from its last acknowledged offset; doubles up to
    ``retransmit_most``.
    """
    retransmit_most: int = 1 * SECOND
    control_retry: int = 30 * MILLISECOND
    """Wait before an unanswered control frame is repeated; doubles up to ``retransmit_most``."""
    heartbeat: int = 50 * MILLISECOND
    suspect_after: int = 250 * MILLISECOND
    dead_after: int = 1 * SECOND
    exchange: int = 1 * SECOND
    """Period at which members and bindings are compared with one neighbour."""
    resolve_for: int = 5 * SECOND
    """How long an unknown endpoint is looked for before its streams are reset."""
    handover_timeout: int = 30 * SECOND
    """Preparation that takes longer is aborted."""
    precopy_rounds: int = 8
    precopy_goal: int = 64 * KIB
    """Dirty bytes below which the source freezes."""
    block: int = 16 * KIB
    """Granularity at which changes of a state region are tracked and moved."""
