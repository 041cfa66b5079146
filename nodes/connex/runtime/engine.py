"""The one loop that drives the core: whatever touches the node, this carries out what follows before anything else
touches it.

Events go to their handlers, the journal is written, and only then frames leave. One timer stands for all deadlines of
the core. It is moved only when a nearer deadline appears, because a timer costs more than a look at the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from connex.core.config import Config
from connex.core.drain import drain
from connex.core.events import Event
from connex.core.frames import Frame, FrameType
from connex.core.identity import NodeName, StreamId
from connex.core.node import Node
from connex.core.scheduler import Outgoing
from connex.runtime.journal import Journal

_DATA = int(FrameType.DATA)
_MILLISECOND = 1_000_000
_NEVER = 1 << 62


class Receiver(Protocol):
    """Something that receives a payload directly into its place: a channel."""

    def revoke(self) -> None:
        """The place is not to be written to any more; the frame is dropped."""
        ...


class Engine:
    """The core of one node, its clock, and its drain."""

    def __init__(
        self, core: Node, config: Config, journal: Journal, loop: asyncio.AbstractEventLoop, poll_ns: int = 0
    ) -> None:
        self.core = core
        self.config = config
        self.journal = journal
        self.loop = loop
        self.on_event: Callable[[Event], None] = _nobody
        self.on_write: Callable[[Outgoing], None] = _nobody
        self.on_settled: Callable[[], None] | None = None
        """Called after every drain, while somebody waits for one."""
        self.on_failure: Callable[[Exception], None] = _nobody
        """Called when the journal cannot be written: the node must not go on."""
        self.drains = 0
        self.direct: dict[StreamId, Callable[[int, int, bytes], None]] = {}
        """Who takes messages of a stream at once, by number, offset and payload; must not raise."""
        self._receive = core.receive_frame
        self._receive_message = core.receive_message
        self._placed: dict[StreamId, Receiver] = {}
        """Who receives into a place of the core just now: one for a stream, so that no late writer touches a buffer in
        use.
        """
        self.draining = False
        """Whether a drain is running: it will carry out what is touched now."""
        self._closed = False
        self.polling = False
        """Whether the event loop is kept from sleeping just now."""
        self._poll_ns = poll_ns
        self._poll_until = 0
        self.moment = 0
        """The time of the running drain."""
        self._timer: asyncio.TimerHandle | None = None
        self._early = _NEVER
        """A deadline before this moment is worth a new timer: a millisecond before the present one."""

    def now(self) -> int:
        """The time to pass to the core, in ns: that of the running drain, or of the clock."""
        return self.moment if self.draining else time.monotonic_ns()

    # Frames

    def receive(self, node: NodeName, frame: Frame, now: int) -> None:
        """Take one frame from a channel and carry out what follows. Raises RemoteProtocolError."""
        if frame[0] == _DATA:
            stream = frame[3]
            if self._placed:
                self.revoke(stream)
            deliver = self.direct.get(stream)
            if deliver is not None:
                payload = self._receive_message(node, frame, now)
                if payload is not None:
                    self.moment = now
                    self.draining = True
                    try:
                        deliver(frame[4], frame[5], payload)
                    finally:
                        self.draining = False
                    self.touched(now)
                    return
        try:
            self._receive(node, frame, now)
        finally:
            self.touched(now)

    def placement(self, node: NodeName, header: Frame, length: int, receiver: Receiver) -> memoryview | None:
        """Where the payload of this DATA frame may be received directly; ``placed`` or ``revoke`` ends that."""
        self.revoke(header.stream)
        view = self.core.placement(node, header, length)
        if view is not None:
            self._placed[header.stream] = receiver
        return view

    def placed(self, stream: StreamId) -> None:
        """The payload is complete; its frame follows."""
        self._placed.pop(stream, None)

    def revoke(self, stream: StreamId) -> None:
        """Whoever receives directly for the stream stops doing so."""
        receiver = self._placed.pop(stream, None)
        if receiver is not None:
            receiver.revoke()

    # The drain

    def touched(self, now: int) -> None:
        """The core was touched: carry out what follows. Inside a drain, that drain does it."""
        if self.draining or self._closed:
            return
        if self._poll_ns:
            self._stay_awake(now)
        self._carry_out(now)

    def _carry_out(self, now: int) -> None:
        self.draining = True
        self.moment = now
        self.drains += 1
        try:
            deadline = drain(self.core, now, self.on_event, self.on_write)
            if self.journal.pending:
                self.flush()
        finally:
            self.draining = False
        if self.on_settled is not None:
            self.on_settled()
        if deadline is not None and deadline < self._early:
            self._arm(deadline, now)

    def close(self) -> None:
        """Stop: nothing is carried out any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def flush(self) -> None:
        """Write the journal: before any frame of this drain leaves. Raises OSError, and stops the node."""
        try:
            self.journal.flush()
        except OSError as error:
            self.close()
            self.on_failure(error)
            raise

    def _arm(self, deadline: int, now: int) -> None:
        # The loop counts in whole milliseconds: round up, so that it does not wake before there is anything to do.
        wait = max(1, (deadline - now + _MILLISECOND - 1) // _MILLISECOND)
        if self._timer is not None:
            self._timer.cancel()
        self._early = now + (wait - 1) * _MILLISECOND
        self._timer = self.loop.call_later(wait / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        self._early = _NEVER
        if self._closed:
            return
        now = time.monotonic_ns()
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= now:
            self.core.handle_timer(now)
            self._carry_out(now)
        elif deadline is not None:
            self._arm(deadline, now)

    # Polling

    def _stay_awake(self, now: int) -> None:
        """Keep the event loop looking for input instead of sleeping: waking up takes longer than most messages do."""
        self._poll_until = now + self._poll_ns
        if not self.polling:
            self.polling = True
            self.loop.call_soon(self._poll)

    def _poll(self) -> None:
        if self._closed or time.monotonic_ns() >= self._poll_until:
            self.polling = False
        else:
            self.loop.call_soon(self._poll)

    # The application's own code

    def guard(self, hook: Callable[..., object], *arguments: object) -> None:
        """Call a hook of the application; what it raises is reported, because it must not stop the protocol."""
        try:
            hook(*arguments)
        except Exception as error:  # noqa: BLE001 - the application's, reported and not ours to judge
            self.report(getattr(hook, "__qualname__", repr(hook)), error)

    def report(self, where: str, error: BaseException) -> None:
        """Tell the event loop's exception handler of an error that has no caller."""
        context: dict[str, Any] = {"message": f"connex node {self.core.me.node}: {where} raised", "exception": error}
        self.loop.call_exception_handler(context)


def _nobody(*_: object) -> None:
    """Until somebody listens."""
