"""The events of nodes that a step can wait for, and their fields (docs/history.md)."""

from __future__ import annotations

from collections.abc import Mapping

_HANDOVER = frozenset({"handover", "endpoint", "epoch", "side", "peer", "bytes", "cause"})
_FENCE = frozenset({"endpoint", "epoch", "source"})
_FROZEN = frozenset({"endpoint", "epoch", "handover"})
_MESSAGE = frozenset({"stream", "message", "offset", "size", "hash", "epoch"})
_PEER = frozenset({"peer", "peer_incarnation"})

EVENTS: Mapping[str, frozenset[str]] = {
    "node.started": frozenset({"incarnation", "locator", "pid", "cluster", "time"}),
    "node.stopping": frozenset({"cause"}),
    "endpoint.hosted": frozenset({"endpoint", "epoch", "cause"}),
    "endpoint.frozen": _FROZEN,
    "endpoint.thawed": _FROZEN,
    "endpoint.resumed": _FROZEN,
    "fence.promised": _FENCE,
    "fence.lifted": _FENCE,
    "fence.broken": _FENCE,
    "endpoint.released": frozenset({"endpoint", "epoch", "cause"}),
    "binding.learned": frozenset({"endpoint", "epoch", "owner", "owner_incarnation", "via"}),
    "stream.opened": frozenset({"stream", "side", "from", "to", "class", "label", "epoch"}),
    "stream.moved": frozenset({"stream", "side", "from", "to", "class", "label", "epoch", "message", "offset"}),
    "message.sent": _MESSAGE,
    "message.delivered": _MESSAGE,
    "stream.closed": frozenset({"stream", "side", "messages", "offset"}),
    "stream.reset": frozenset({"stream", "side", "cause", "text"}),
    "frame.refused": frozenset({"stream", "reason", "epoch", "owned", "peer"}),
    "handover.begun": _HANDOVER,
    "handover.prepared": _HANDOVER,
    "handover.precopied": _HANDOVER,
    "handover.frozen": _HANDOVER,
    "handover.state-sent": _HANDOVER,
    "handover.commit-sent": _HANDOVER,
    "handover.committed": _HANDOVER,
    "handover.completed": _HANDOVER,
    "handover.aborted": _HANDOVER,
    "handover.doubt": _HANDOVER,
    "peer.alive": _PEER,
    "peer.suspected": _PEER,
    "peer.dead": _PEER,
    "peer.left": _PEER,
    "channel.refused": frozenset({"peer", "text"}),
    "app.request": frozenset({"request"}),
    "app.token": frozenset({"request", "token", "size", "hash"}),
    "app.done": frozenset({"request", "tokens", "hash"}),
    "app.failed": frozenset({"request", "cause"}),
}
"""Event -> the fields that it has beside ``node``."""

NODE_FIELDS = frozenset({"node", "peer", "owner"})
"""Fields that name a node."""
ENDPOINT_FIELDS = frozenset({"endpoint", "from", "to"})
"""Fields that name an endpoint."""
