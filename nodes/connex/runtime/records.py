"""Which journal record each event of the core becomes (``docs/history.md``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connex.core import events
from connex.core.identity import EndpointName

Fields = tuple[str, dict[str, Any]]
EpochOf = Callable[[EndpointName], int]
"""The epoch under which this node owns an endpoint; 0 if it does not."""


def record_of(event: events.Event, epoch_of: EpochOf) -> Fields | None:
    """The record's name and fields; None for events that are not history, such as wishes of the core."""
    match event:
        case events.EndpointHosted(endpoint, epoch, cause):
            return "endpoint.hosted", {"endpoint": endpoint, "epoch": epoch, "cause": cause}
        case events.FreezeRequested(endpoint, handover):
            fields = {"endpoint": endpoint, "epoch": epoch_of(endpoint), "handover": identifier(handover)}
            return "endpoint.frozen", fields
        case events.EndpointThawed(endpoint, epoch, handover):
            return "endpoint.thawed", {"endpoint": endpoint, "epoch": epoch, "handover": identifier(handover)}
        case events.EndpointReleased(endpoint, epoch, cause):
            return "endpoint.released", {"endpoint": endpoint, "epoch": epoch, "cause": cause}
        case events.EndpointResumed(endpoint, epoch, handover):
            return "endpoint.resumed", {"endpoint": endpoint, "epoch": epoch, "handover": identifier(handover)}
        case events.FenceChanged(endpoint, epoch, source, step):
            return f"fence.{step}", {"endpoint": endpoint, "epoch": epoch, "source": source}
        case events.PeerChanged(peer, state):
            return f"peer.{state}", {"peer": peer.node, "peer_incarnation": identifier(peer.incarnation)}
        case events.BindingLearned():
            return "binding.learned", _binding(event)
        case events.FrameRefused():
            return "frame.refused", _refusal(event)
        case events.HandoverChanged():
            return f"handover.{event.step}", _handover(event)
        case events.StreamOpened():
            return "stream.opened", _stream(event, epoch_of)
        case events.StreamMoved():
            cursor = {"message": event.message, "offset": event.offset}
            return "stream.moved", _stream(event, epoch_of) | cursor
        case events.StreamClosed():
            return "stream.closed", _end(event) | {"messages": event.messages, "offset": event.offset}
        case events.StreamWasReset():
            return "stream.reset", _end(event) | {"cause": event.cause.label, "text": event.text}
    return None


def identifier(number: int) -> str:
    """A stream, handover or incarnation as it is written in journals: 16 hexadecimal digits."""
    return f"{number:016x}"


def _binding(event: events.BindingLearned) -> dict[str, Any]:
    return {
        "endpoint": event.endpoint,
        "epoch": event.epoch,
        "owner": event.node,
        "owner_incarnation": identifier(event.incarnation),
        "via": event.via,
    }


def _refusal(event: events.FrameRefused) -> dict[str, Any]:
    return {
        "stream": identifier(event.stream),
        "reason": event.reason,
        "epoch": event.epoch,
        "owned": event.owned,
        "peer": event.peer,
    }


def _handover(event: events.HandoverChanged) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "handover": identifier(event.handover),
        "endpoint": event.endpoint,
        "epoch": event.epoch,
        "side": event.side,
        "peer": event.peer,
    }
    if event.moved:
        fields["bytes"] = event.moved
    if event.cause:
        fields["cause"] = event.cause
    return fields


def _stream(event: events.StreamOpened | events.StreamMoved, epoch_of: EpochOf) -> dict[str, Any]:
    return {
        "stream": identifier(event.stream),
        "side": event.side,
        "from": event.sender,
        "to": event.receiver,
        "class": event.traffic_class.name,
        "label": event.label,
        "epoch": epoch_of(event.sender if event.side == "sender" else event.receiver),
    }


def _end(event: events.StreamClosed | events.StreamWasReset) -> dict[str, Any]:
    return {"stream": identifier(event.stream), "side": event.side}
