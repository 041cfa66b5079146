"""C1, C2, C6: every message is delivered in order, exactly once, with its own bytes, or its stream is reset openly."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.checkers.captures import Captures
from testbed.checkers.expectations import Expectations
from testbed.checkers.result import CheckResult, Findings
from testbed.history import FOREVER, Ended, History, Life, Message, Stream

HANG = 10_000_000_000
"""A message that was neither delivered nor given up for so long (ns) hangs, whether or not traffic came to its end."""
LAST_MESSAGES = 1_000_000_000
"""Messages sent within this time (ns) before the end of traffic may be in flight when the nodes are stopped."""
TELL_WITHIN = 5_000_000_000
"""The other end of a stream must know of its reset within this time (ns)."""


def check_delivery(history: History, captures: Captures, expected: Expectations) -> CheckResult:
    """Judge all streams by the journals; what was acknowledged is taken from the captures."""
    found = Findings("delivery")
    if not expected.connex:
        return found.skipped(f"the workload ran on {expected.adapter}")
    if not expected.delivery:
        return found.skipped("the scenario expects neither order nor exactly once")
    counts = dict.fromkeys(("sent", "delivered", "given_up_by_reset", "lost_with_both_ends", "sent_after_the_end"), 0)
    for what in history.missing:
        found.doubt(f"missing evidence: {what}", "the run folder")
    for stream in history.streams.values():
        judge = _Judge(history, captures, stream, found, counts)
        judge.names()
        judge.sending()
        judge.line()
        judge.ends()
        judge.undelivered()
    found.measurements |= {"streams": len(history.streams), **counts}
    return found.result(
        f"{counts['delivered']} messages on {len(history.streams)} streams, in order, each once",
        exercised=counts["delivered"] > 0,
        nothing="no message was delivered",
    )


class _Judge:
    """One stream."""

    def __init__(
        self, history: History, captures: Captures, stream: Stream, found: Findings, counts: dict[str, int]
    ) -> None:
        self._history = history
        self._stream = stream
        self._found = found
        self._counts = counts
        self._sent: dict[int, Message] = {}
        self._delivered: set[int] = set()
        self._senders = self._lives("sender")
        self._receivers = self._lives("receiver")
        role = captures.sent.get(stream.id)
        self._acknowledged = max((ack.message for ack in role.acks), default=0) if role else 0

    def _lives(self, side: str) -> list[Life]:
        """Every life that was at this end of the stream, as far as the journals say, by epoch."""
        stream, lives = self._stream, self._history.lives
        endpoint = stream.sender if side == "sender" else stream.receiver
        if endpoint:
            return self._history.lives_of(endpoint)
        messages = stream.sent if side == "sender" else stream.delivered
        return [lives[index] for index in dict.fromkeys(message.life for message in messages)]

    def _say(self, what: str, evidence: object, lives: list[Life]) -> None:
        """A fail, unless the journals that speak against it are not whole."""
        self._found.unless(self._history.gaps(lives), what, self._stream.name, evidence)

    def names(self) -> None:
        """All that speak of the stream must mean the same."""
        routes = {one[3:7] for one in self._stream.opened}
        if len(routes) > 1:
            self._found.fail("its ends differ about what it is", self._stream.name, sorted(routes))

    def sending(self) -> None:
        """The sent messages, whichever nodes the sender lived on, are one sequence."""
        number = offset = 0
        for message in _line(self._stream.sent):
            if message.number in self._sent:
                self._found.fail(
                    f"message {message.number} was sent twice",
                    self._stream.name,
                    _pair(self._sent[message.number], message),
                )
            elif (message.number, message.offset) != (number, offset):
                self._say(
                    f"message {message.number} at offset {message.offset} was sent next after message {number - 1},"
                    f" which ends at {offset}",
                    message, self._senders,
                )  # fmt: skip
            self._sent[message.number] = message
            number, offset = message.number + 1, message.end
        self._counts["sent"] += len(self._sent)

    def line(self) -> None:
        """Deliveries of successive owners, put one after the other, are the sent messages in their order."""
        expected = 0
        for message in _line(self._stream.delivered):
            self._counts["delivered"] += 1
            number = message.number
            if number in self._delivered:
                self._found.fail(f"message {number} was delivered twice", self._stream.name, message)
            elif number < expected:
                self._found.fail(
                    f"message {number} was delivered after message {expected - 1}: out of order",
                    self._stream.name,
                    message,
                )
            elif number > expected:
                what = f"message {number} was delivered next after message {expected - 1}: {number - expected} missing"
                self._say(what, message, self._receivers)
            self._delivered.add(number)
            expected = max(expected, number + 1)
            self._compare(message)

    def _compare(self, message: Message) -> None:
        sent = self._sent.get(message.number)
        if sent is None:
            self._say(f"message {message.number} was delivered and never sent", message, self._senders)
        elif message.hash != sent.hash or message.size != sent.size:
            self._found.fail(
                f"message {message.number} was delivered with other bytes than were sent",
                self._stream.name,
                _pair(sent, message),
            )
        elif message.offset != sent.offset:
            self._found.fail(
                f"message {message.number} was delivered at another offset", self._stream.name, _pair(sent, message)
            )

    def ends(self) -> None:
        """A regular end comes after all messages; a reset reaches both ends."""
        ended = self._stream.ended
        for end in ended:
            if end.cause:
                continue
            messages = self._sent if end.side == "sender" else self._delivered
            if end.messages != len(messages):
                lives = self._senders if end.side == "sender" else self._receivers
                self._say(
                    f"closed at its {end.side} after {end.messages} messages: there are {len(messages)}", end, lives
                )
            if end.side == "sender" and end.messages > len(self._delivered):
                self._say(
                    f"closed as all delivered, but only {len(self._delivered)} of {end.messages} were",
                    end,
                    self._receivers,
                )
        resets = [end for end in ended if end.cause]
        sides = {end.side for end in ended}
        if resets and len(sides) == 1:
            other = "receiver" if "sender" in sides else "sender"
            holder = self._holder(other)
            told_by = resets[0].t + TELL_WITHIN
            if holder is not None and holder.ended > told_by and self._history.end > told_by:
                what = f"reset ({resets[0].cause}) at its {next(iter(sides))}, but its {other} never learned"
                self._say(what, resets[0], [holder])

    def _holder(self, side: str) -> Life | None:
        """The life that last had this end of the stream; a later life of its endpoint's owner knows nothing of it."""
        stream = self._stream
        held = [(one.t, one.life) for one in stream.opened if one.side == side]
        held += [(one.t, one.life) for one in stream.moved if one.side == side]
        if not held and side == "sender":
            held = [(message.t, message.life) for message in stream.sent]
        return self._history.lives[max(held)[1]] if held else None

    def undelivered(self) -> None:
        """What was sent and not delivered, after the last that was (gaps before it have been told)."""
        last = max(self._delivered, default=-1)
        for number, message in self._sent.items():
            if number > last:
                self._missing(message)

    def _missing(self, message: Message) -> None:
        what = f"message {message.number} was never delivered"
        if message.number < self._acknowledged:
            self._say(f"{what}, but acknowledged as delivered", message, self._receivers)
        elif any(self._excuses(end, message) for end in self._stream.ended):
            self._counts["given_up_by_reset"] += 1
        elif self._nobody_left():
            self._counts["lost_with_both_ends"] += 1
        else:
            self._overdue(what, message)

    def _excuses(self, end: Ended, message: Message) -> bool:
        """Whether the message was given up openly. That nodes end their streams when they are stopped excuses only what
        was sent just before."""
        finished = self._history.finished
        return bool(end.cause) and (finished is None or end.t <= finished or message.t > finished - LAST_MESSAGES)

    def _nobody_left(self) -> bool:
        """Whether those who would have to say that the stream is over are gone themselves."""
        sender, receiver = self._holder("sender"), self._holder("receiver")
        return sender is not None and _killed(sender) and (receiver is None or _killed(receiver))

    def _overdue(self, what: str, message: Message) -> None:
        finished = self._history.finished
        lives = [*self._senders, *self._receivers]
        if finished is not None and message.t > finished:
            self._counts["sent_after_the_end"] += 1
        elif finished is not None:
            self._say(f"{what}, although traffic came to its end", message, lives)
        elif self._waited(message) > HANG:
            self._say(f"{what} nor given up, for {self._waited(message) / 1e9:.1f} s: it hangs", message, lives)
        else:
            self._found.doubt(f"{what}: it was in flight when the run was ended", self._stream.name, message)

    def _waited(self, message: Message) -> int:
        """How long the message has waited while both of its ends lived and no fault was active."""
        ends = [life.ended for life in (self._holder("sender"), self._holder("receiver")) if life is not None]
        healed = [event["t"] for event in self._history.all("fault.healed", "fault.target-gone")]
        begun = max([message.t, *healed, *(moved.t for moved in self._stream.moved)])
        stopped = self._history.first("traffic.stopped")
        until = stopped["t"] if stopped is not None else self._history.end
        return min(int(until), *ends) - int(begun)


def _killed(life: Life) -> bool:
    return life.ended < FOREVER and (life.status or 0) < 0


def _line(messages: list[Message]) -> Iterator[Message]:
    """Messages by epoch, and within an epoch in the order in which the journal has them."""
    return iter(sorted(messages, key=lambda message: message.epoch))


def _pair(first: Message, second: Message) -> dict[str, object]:
    return {"sent": first._asdict(), "then": second._asdict()}
