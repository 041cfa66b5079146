"""What the parts of a node share: who it is, its limits, its timers, its channels, and how it says what happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from connex.core.config import Config
from connex.core.events import Event
from connex.core.frames import Buffer, Flag, Frame, FrameType
from connex.core.identity import NodeName, Peer, TrafficClass
from connex.core.scheduler import Scheduler
from connex.core.timers import Key, Timers

_CONTROL = TrafficClass.CONTROL


class Context:
    """Shared by all parts of one node; holds no protocol state of its own."""

    def __init__(self, me: Peer, config: Config, draw: Callable[[int], int]) -> None:
        self.me = me
        self.config = config
        self.draw = draw
        self.events: deque[Event] = deque()
        self.emit = self.events.append
        self.timers = Timers()
        self.locators: dict[NodeName, str] = {me.node: me.locator}
        self.scheduler = Scheduler(me.node, config, self.emit, self.locators.get)
        self.post = self.scheduler.post
        self._alarms: dict[str, Callable[[Key, int], None]] = {}
        self._repeats: dict[Key, _Repeat] = {}
        self.on_alarm("repeat", self._repeat_due)
        self.on_alarm("channel", self._channel_due)

    def control(
        self,
        node: NodeName,
        kind: FrameType,
        body: Buffer = b"",
        *,
        flags: Flag = Flag.NONE,
        handover: int = 0,
        epoch: int = 0,
        destination: int = 0,
        message: int = 0,
        offset: int = 0,
    ) -> None:
        """Queue a frame on the peer's CONTROL channel."""
        self.post(node, Frame(kind, flags, _CONTROL, handover, message, offset, 0, epoch, destination, body))

    def on_alarm(self, kind: str, handler: Callable[[Key, int], None]) -> None:
        """Who handles the deadlines whose key begins with ``kind``."""
        self._alarms[kind] = handler

    def handle_timer(self, now: int) -> None:
        while (key := self.timers.take_due(now)) is not None:
            self._alarms[key[0]](key, now)

    def repeat(
        self,
        what: str,
        about: int | str,
        whom: str,
        send: Callable[[int], None],
        now: int,
        *,
        most: int | None = None,
    ) -> None:
        """Call ``send`` now, and again with growing waits until ``settle``; ``most`` bounds the number of calls."""
        key = ("repeat", f"{what} {about}", whom)
        self._repeats[key] = _Repeat(send, self.config.control_retry, most)
        self._repeat_due(key, now)

    def settle(self, what: str, about: int | str, whom: str) -> None:
        """The answer has come: stop repeating."""
        key = ("repeat", f"{what} {about}", whom)
        if self._repeats.pop(key, None) is not None:
            self.timers.clear(key)

    def settle_all(self, whom: str) -> None:
        """Stop repeating anything to that node."""
        for key in [key for key in self._repeats if key[2] == whom]:
            del self._repeats[key]
            self.timers.clear(key)

    def channel_failed(self, node: NodeName, traffic_class: TrafficClass, now: int) -> None:
        """Ask for the channel again after a while, if it is still needed then."""
        self.scheduler.failed(node, traffic_class)
        if self.scheduler.needed(node, traffic_class):
            self.timers.set(("channel", node, traffic_class.name), now + self.config.control_retry)

    def _channel_due(self, key: Key, now: int) -> None:
        node, traffic_class = str(key[1]), TrafficClass[key[2]]
        if self.scheduler.needed(node, traffic_class):
            self.scheduler.want(node, traffic_class)

    def _repeat_due(self, key: Key, now: int) -> None:
        repeat = self._repeats[key]
        if repeat.left is not None:
            if repeat.left == 0:
                del self._repeats[key]
                return
            repeat.left -= 1
        self.timers.set(key, now + repeat.wait)
        repeat.wait = min(2 * repeat.wait, self.config.retransmit_most)
        repeat.send(now)


class _Repeat:
    __slots__ = ("left", "send", "wait")

    def __init__(self, send: Callable[[int], None], wait: int, left: int | None) -> None:
        self.send = send
        self.wait = wait
        self.left = left
