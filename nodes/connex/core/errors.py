"""What can go wrong, told apart by whose fault it is."""

from __future__ import annotations

from enum import IntEnum


class ResetCause(IntEnum):
    """Why a stream ended other than by its close (the numbers are those of ``docs/wire.md``)."""

    ENDPOINT_UNKNOWN = 1
    OWNER_DIED = 2
    OWNER_RESTARTED = 3
    ENDPOINT_ENDED = 4
    CANCELLED = 5
    LIMIT_EXCEEDED = 6
    PROTOCOL_ERROR = 7
    HANDOVER_IN_DOUBT = 8
    FENCED = 9
    UNKNOWN_STREAM = 10
    NODE_LEFT = 11
    UNREACHABLE = 12

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


class ConnexError(Exception):
    """Base of all that Connex raises."""


class LocalProtocolError(ConnexError):
    """This side asked for something that its state does not allow."""


class RemoteProtocolError(ConnexError):
    """The peer sent something that the protocol does not allow."""


class LimitExceeded(LocalProtocolError):
    """A limit of ``config.py`` would be exceeded."""


class UnknownEndpoint(LocalProtocolError):
    """No node is known to own the endpoint."""


class StreamReset(ConnexError):
    """The stream was ended explicitly, with a cause; what was acknowledged stays delivered."""

    def __init__(self, cause: ResetCause, text: str = "") -> None:
        super().__init__(f"stream reset: {cause.label}" + (f": {text}" if text else ""))
        self.cause = cause
        self.text = text


class HandoverFailed(ConnexError):
    """A planned handover was aborted, and the source serves on."""


class ChannelRefused(ConnexError):
    """The two sides of a channel do not fit: version, cluster or proof."""
