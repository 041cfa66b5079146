"""Connex: messages between endpoints that move.

An endpoint is a named, mobile identity, such as a stage of an inference pipeline. Nodes (processes) host endpoints;
streams of messages run between endpoints and stay in order, complete and free of duplicates while these move from node
to node::

    import connex

    async def main():
        async with connex.Node("w0", secret=b"s3cret") as first:
            async with connex.Node("w1", secret=b"s3cret", seeds=[first.locator]) as second:
                stage = await second.host("stage-1")
                source = await first.host("source")
                stream = await source.open_stream("stage-1", connex.TrafficClass.TOKEN)
                await stream.send(b"hello")
                message = await stage.receive()
                print(bytes(message.payload))

    connex.run(main())

**Receiving.** ``async for message in endpoint``, ``await endpoint.receive()``, or the fastest:
``endpoint.on_message(callback)``. Taking a message is its delivery; what nobody takes stops its own sender, by credit.

**Buffers.** ``bytes`` are sent without a copy. Any other buffer is copied, unless it is lent with ``borrow=True``: then
it must not change until ``await stream.flush()`` has returned. A receiver may provide the buffers of large messages
by ``stream.receive_into(allocate)``.

**State.** What an endpoint has to take along lives in its regions: ``endpoint.region("kv", size)``. They are copied
while it serves; ``endpoint.on_freeze(hook)`` is the last moment to bring them up to date. A node takes endpoints whose
names fit a pattern: ``node.on_arrival("stage-*", factory)``.

**Moving.** ``await node.migrate("stage-1", to="w1")``, or ``prepare`` ahead of time and ``execute`` when needed.
``await node.leave()`` moves everything away.

**Errors.** A stream goes on, or both sides get StreamReset with its cause. EndpointMoved says that the endpoint is
served elsewhere now. All errors are ConnexError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from connex.core.config import ClassLimits, Config
from connex.core.errors import (
    ChannelRefused,
    ConnexError,
    HandoverFailed,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    ResetCause,
    StreamReset,
    UnknownEndpoint,
)
from connex.core.identity import Peer, TrafficClass
from connex.runtime.control import ControlError
from connex.runtime.endpoint import Endpoint
from connex.runtime.errors import EndpointMoved, NodeClosed, WouldWait
from connex.runtime.journal import JournalError
from connex.runtime.locator import LocatorError
from connex.runtime.moves import Handover
from connex.runtime.node import ListenError, Node
from connex.runtime.region import StateRegion
from connex.runtime.stream import InboundStream, Message, OutboundStream, Stream

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on a new uvloop, as ``asyncio.run`` does on a plain one."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


__all__ = [
    "ChannelRefused",
    "ClassLimits",
    "Config",
    "ConnexError",
    "ControlError",
    "Endpoint",
    "EndpointMoved",
    "Handover",
    "HandoverFailed",
    "InboundStream",
    "JournalError",
    "LimitExceeded",
    "ListenError",
    "LocalProtocolError",
    "LocatorError",
    "Message",
    "Node",
    "NodeClosed",
    "OutboundStream",
    "Peer",
    "RemoteProtocolError",
    "ResetCause",
    "StateRegion",
    "Stream",
    "StreamReset",
    "TrafficClass",
    "UnknownEndpoint",
    "WouldWait",
    "run",
]
