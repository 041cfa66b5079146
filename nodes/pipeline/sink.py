"""Where tokens come out: counts them and hands each back to the source, which asks for the next."""

from __future__ import annotations

import struct

from pipeline import saved
from pipeline.clock import Clock
from pipeline.link import Link
from pipeline.port import Buffer, Endpoint, Outbound, Service

_STATE = struct.Struct("!Q?")
"""Tokens so far, whether the stream to the source was open."""


class Sink:
    """Keeps tokens that the source cannot be given yet: there are at most as many as requests in flight."""

    name = "sink"

    def __init__(self, endpoint: Endpoint, clock: Clock, arrived: bool) -> None:
        self.tokens = 0
        self._endpoint = endpoint
        self._next = Link(endpoint, clock, "source", Service.TOKEN, _nothing)
        if arrived:
            self._restore()
        else:
            self._next.connect()

    def take(self, sender: str, message: Buffer) -> None:
        self.tokens += 1
        self._next.put(bytes(message))

    def freeze(self) -> None:
        self._next.suspend()
        saved.save(self._endpoint.region(saved.STATE), [_STATE.pack(self.tokens, self._next.was_open)])
        saved.save(self._endpoint.region(saved.PENDING), self._next.unsent())

    def thaw(self) -> None:
        self._next.resume()

    def release(self, cause: str) -> None:
        self._next.suspend()

    def stream_opened(self, stream: Outbound) -> None:
        self._next.opened(stream)

    def stream_settled(self, stream: Outbound) -> None:
        self._next.settled(stream)

    def stream_lost(self, stream: Outbound, why: str) -> None:
        """The source sees it too, and gives up all that it waits for."""
        self._next.lost(stream, why)

    def sender_lost(self, sender: str, why: str) -> None:
        """The last stage tells the source what was lost, or the one before it does."""

    def _restore(self) -> None:
        (state,) = saved.load(self._endpoint.region(saved.STATE))
        self.tokens, was_open = _STATE.unpack(state)
        self._next.arrive(was_open, saved.load(self._endpoint.region(saved.PENDING)))


def _nothing() -> None:
    """The sink never waits for room."""
