"""The one loop that carries out what a node wants after it has been touched, shared by all that drive a core."""

from __future__ import annotations

from collections.abc import Callable

from connex.core.events import Event
from connex.core.frames import decode_header
from connex.core.node import Node
from connex.core.scheduler import Outgoing


def drain(
    node: Node, now: int, on_event: Callable[[Event], None], on_outgoing: Callable[[Outgoing], None]
) -> int | None:
    """Take all events, then all frames, until there is neither; returns the next deadline.

    ``on_event`` may call commands of the node. ``on_outgoing`` must not. Streams between endpoints of one node are
    handed straight back to it.
    """
    me = node.me.node
    events = node.events
    frames_to_send = node.frames_to_send
    while True:
        while events:
            on_event(events.popleft())
        batches = frames_to_send(now)
        if not batches:
            return node.next_deadline()
        for outgoing in batches:
            if outgoing.node == me:
                _hand_back(node, outgoing, now)
            else:
                on_outgoing(outgoing)


def _hand_back(node: Node, outgoing: Outgoing, now: int) -> None:
    buffers = iter(outgoing.buffers)
    for header in buffers:
        frame, length = decode_header(header)
        node.receive_frame(outgoing.node, frame._replace(payload=next(buffers)) if length else frame, now)
