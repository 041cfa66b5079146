"""What the core tells whoever drives it: the application's runtime and the journal."""

from __future__ import annotations

from typing import NamedTuple

from connex.core.errors import ResetCause
from connex.core.frames import Buffer
from connex.core.identity import EndpointName, HandoverId, NodeName, Peer, StreamId, TrafficClass


class ChannelWanted(NamedTuple):
    """Open a channel of this class to the peer. Said again if it is closed or fails while still needed.

    ``node`` is empty where only the locator is known (a seed).
    """

    node: NodeName
    locator: str
    traffic_class: TrafficClass


class EndpointHosted(NamedTuple):
    """The endpoint is served here from now on. After a handover its regions have been restored."""

    endpoint: EndpointName
    epoch: int
    cause: str


class FreezeRequested(NamedTuple):
    """Stop the application of this endpoint, bring its regions up to date, then call ``Node.frozen``."""

    endpoint: EndpointName
    handover: HandoverId


class EndpointThawed(NamedTuple):
    """The handover was aborted before its commit: the application goes on here."""

    endpoint: EndpointName
    epoch: int
    handover: HandoverId


class EndpointReleased(NamedTuple):
    """This node does not own the endpoint any more (handover, fenced, ended, left)."""

    endpoint: EndpointName
    epoch: int
    cause: str


class EndpointResumed(NamedTuple):
    """A handover in doubt has ended here: it never came to its target, and the endpoint goes on here under a new epoch.

    Streams whose other end could not promise have been reset.
    """

    endpoint: EndpointName
    epoch: int
    handover: HandoverId


class FenceChanged(NamedTuple):
    """This node promised a source in doubt not to follow ``epoch`` (``promised``); the source has said how the doubt
    ended (``lifted``); or the source is taken for dead, and the streams concerned were reset (``broken``).
    """

    endpoint: EndpointName
    epoch: int
    source: NodeName
    step: str


class RegionReceived(NamedTuple):
    """Part of a state region has arrived for a handover that is not committed yet (target only)."""

    handover: HandoverId
    endpoint: EndpointName
    region: str
    size: int
    offset: int
    data: Buffer


class HandoverChanged(NamedTuple):
    """A handover took a step: begun, prepared, precopied, frozen, state-sent, commit-sent, committed, completed,
    aborted, doubt.
    """

    handover: HandoverId
    endpoint: EndpointName
    epoch: int
    side: str
    peer: NodeName
    step: str
    cause: str = ""
    moved: int = 0
    """Bytes of state moved so far."""


class RegionsWanted(NamedTuple):
    """Send the dirty blocks of the endpoint's regions with ``Node.send_region``, then call ``Node.precopied``."""

    handover: HandoverId
    endpoint: EndpointName


class StreamOpened(NamedTuple):
    """A stream that ends at a hosted endpoint exists (side ``receiver``), or ours was accepted (side ``sender``)."""

    stream: StreamId
    side: str
    sender: EndpointName
    receiver: EndpointName
    traffic_class: TrafficClass
    label: str


class StreamMoved(NamedTuple):
    """A stream arrived with a handover, with this cursor."""

    stream: StreamId
    side: str
    sender: EndpointName
    receiver: EndpointName
    traffic_class: TrafficClass
    label: str
    message: int
    offset: int


class MessageReady(NamedTuple):
    """A message is complete and in order: ``Node.consume`` takes it."""

    stream: StreamId


class SendSpace(NamedTuple):
    """A stream whose ``send`` had to wait has room again."""

    stream: StreamId


class StreamClosed(NamedTuple):
    """The stream ended at its regular end: all was delivered (both sides get it)."""

    stream: StreamId
    side: str
    messages: int
    offset: int


class StreamWasReset(NamedTuple):
    stream: StreamId
    side: str
    cause: ResetCause
    text: str


class BindingLearned(NamedTuple):
    endpoint: EndpointName
    epoch: int
    node: NodeName
    incarnation: int
    via: str


class FrameRefused(NamedTuple):
    """A frame was not taken: stale-destination, stale-sender, unknown-stream, not-owned."""

    stream: StreamId
    reason: str
    epoch: int
    owned: int
    peer: NodeName


class PeerChanged(NamedTuple):
    """A node became alive, suspected, dead, or left."""

    peer: Peer
    state: str


Event = (
    ChannelWanted
    | EndpointHosted
    | FreezeRequested
    | EndpointThawed
    | EndpointReleased
    | EndpointResumed
    | FenceChanged
    | RegionReceived
    | HandoverChanged
    | RegionsWanted
    | StreamOpened
    | StreamMoved
    | MessageReady
    | SendSpace
    | StreamClosed
    | StreamWasReset
    | BindingLearned
    | FrameRefused
    | PeerChanged
)
