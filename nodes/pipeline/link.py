"""The stream from a role to the next one, opened again whenever it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from pipeline.clock import Clock, Timer
from pipeline.port import Endpoint, Outbound, Service

RETRY = 100_000_000
"""Wait in ns before a stream that could not be opened is tried again."""

Lost = Callable[[str, bool], None]
"""Called with why the stream ended, and whether it had been open."""


class Link:
    """Messages put while the stream is not open are held until it is: only what was put on an open stream can be
    lost, and then both ends are told.

    ``on_ready`` is called when the link has become ``ready``.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Clock,
        receiver: str,
        service: Service,
        on_ready: Callable[[], None],
        on_lost: Lost | None = None,
    ) -> None:
        self.receiver = receiver
        self._endpoint = endpoint
        self._clock = clock
        self._service = service
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._stream: Outbound | None = None
        self._was_open = False
        self._held: deque[bytes] = deque()
        self._retry: Timer | None = None
        self._suspended = False

    @property
    def was_open(self) -> bool:
        """Whether the stream has been open: of one that had and is not there where the endpoint arrives, messages are
        lost.
        """
        return self._was_open

    @property
    def ready(self) -> bool:
        """Open, and nothing is waiting."""
        return self._was_open and self._stream is not None and not self._stream.waiting

    @property
    def idle(self) -> bool:
        """No stream is there or on its way: ``connect`` has not been called."""
        return self._stream is None and self._retry is None

    def connect(self) -> None:
        """Begin to open the stream."""
        self._take(self._endpoint.open(self.receiver, self._service))

    def arrive(self, was_open: bool, held: Iterable[bytes]) -> None:
        """Go on where the endpoint has arrived, with the messages that had not left. Calls ``on_lost`` if the stream
        was open and ended on the way.
        """
        self._held.extend(held)
        stream = self._endpoint.find(self.receiver)
        if stream is not None:
            self._take(stream)
            return
        if was_open and self._on_lost is not None:
            self._on_lost("the stream ended while the endpoint moved", True)
        self.connect()

    def put(self, message: bytes) -> None:
        """Send the message, after all that were put before."""
        if self._was_open and self._stream is not None:
            self._stream.put(message)
        else:
            self._held.append(message)

    def unsent(self) -> list[bytes]:
        """What was put and has not left: the role takes it along when its endpoint moves."""
        return [*(self._stream.waiting if self._stream is not None else ()), *self._held]

    def suspend(self) -> None:
        """The endpoint stops: no stream is opened meanwhile."""
        self._suspended = True
        self._cancel_retry()

    def resume(self) -> None:
        """The endpoint goes on where it was."""
        self._suspended = False
        if self._stream is None:
            self.connect()
        elif self.ready:
            self._on_ready()

    # Told by the role

    def opened(self, stream: Outbound) -> None:
        if stream is not self._stream or self._was_open:
            return
        self._was_open = True
        while self._held:
            stream.put(self._held.popleft())
        if self.ready:
            self._on_ready()

    def settled(self, stream: Outbound) -> None:
        if stream is self._stream and self.ready:
            self._on_ready()

    def lost(self, stream: Outbound, why: str) -> None:
        if stream is not self._stream:
            return
        was_open, self._was_open, self._stream = self._was_open, False, None
        self._cancel_retry()
        if not self._suspended:
            self._retry = self._clock.call_in(RETRY, self._try_again)
        if self._on_lost is not None:
            self._on_lost(why, was_open)

    def drop_held(self) -> list[bytes]:
        """Take back what waits for the stream to open."""
        held = list(self._held)
        self._held.clear()
        return held

    def _take(self, stream: Outbound) -> None:
        self._stream = stream
        if stream.is_open:
            self.opened(stream)

    def _try_again(self) -> None:
        self._retry = None
        self.connect()

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
