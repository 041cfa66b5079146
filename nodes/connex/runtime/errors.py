"""What can go wrong at the edge between an application and its node, beside the errors of the core."""

from __future__ import annotations

from connex.core.errors import ConnexError, LocalProtocolError
from connex.core.identity import EndpointName, NodeName


class EndpointMoved(ConnexError):
    """The endpoint is not served by this node any more, so its streams cannot be used here.

    ``node`` says where it is now (empty if it is gone), ``cause`` why it left: ``handover``, ``fenced`` or
    ``ended``. What had been handed over to ``send`` before is not lost: it moved with the endpoint.
    """

    def __init__(self, endpoint: EndpointName, node: NodeName, cause: str) -> None:
        where = f"it is served by {node} now" if node else "nobody is known to serve it"
        super().__init__(f"endpoint {endpoint} is not served here any more ({cause}): {where}")
        self.endpoint = endpoint
        self.node = node
        self.cause = cause


class WouldWait(LocalProtocolError):
    """``send_nowait`` found no room; ``await stream.send(…)`` waits for it."""


class NodeClosed(ConnexError):
    """The node was closed while something waited for it, or before."""
