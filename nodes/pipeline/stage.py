"""One stage of the model: takes activations, computes for a while, changes its KV state and passes on what follows
from both.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline import kv, message, saved
from pipeline.clock import Clock, Timer
from pipeline.link import Link
from pipeline.message import DIGEST_SIZE, Header, Kind
from pipeline.parameters import Parameters
from pipeline.port import Buffer, Endpoint, Outbound, Service
from pipeline.units import Units


@dataclass(slots=True)
class _Sequence:
    """The request that has a slot."""

    life: int
    request: int
    next_step: int = 0
    chain: bytes = b""
    """The digest of all its steps so far."""
    failed_step: int = 0
    notice: str = ""
    """Why that step was given up. Kept until the request goes on or its slot is another's, and told again whenever
    the stream to the source is new.
    """


_ROW = struct.Struct(f"!HIIIB{DIGEST_SIZE}sIH")
"""Slot, life, request, next step, length of the chain, chain, failed step, length of the notice."""
_UNSENT, _UNDONE = b"\x00", b"\x01"


class Stage:
    """Stage ``number``, from 1. Its memory is the sequences in their slots and the messages that are not through."""

    def __init__(self, endpoint: Endpoint, number: int, parameters: Parameters, clock: Clock, arrived: bool) -> None:
        self.name = endpoint.name
        self._number = number
        self._parameters = parameters
        self._clock = clock
        self._endpoint = endpoint
        self._frozen = False
        self._running = False
        self._queue: deque[tuple[int, Buffer]] = deque()
        """What has been received and when, and no unit has begun."""
        self._units = Units(parameters.compute_units, parameters.compute_ns)
        self._since = 0
        """No step begins before: from then on the network takes what comes of it."""
        self._in_service: dict[Timer, Buffer] = {}
        self._sequences: dict[int, _Sequence] = {}
        self._kv = kv.KvState(endpoint.region(kv.REGION, parameters.kv_bytes), parameters)
        last = number == parameters.stages
        receiver, service = ("sink", Service.TOKEN) if last else (f"stage-{number + 1}", Service.ACTIVATION)
        self._kind = Kind.TOKEN if last else Kind.ACTIVATION
        self._size = parameters.token_bytes if last else parameters.activation_bytes
        self._next = Link(endpoint, clock, receiver, service, self._next_ready, self._next_lost)
        self._source = Link(endpoint, clock, "source", Service.TOKEN, self._tell_all)
        if arrived:
            self._restore()
        else:
            self._kv.fill()
            self._next.connect()

    # Role

    def take(self, sender: str, message: Buffer) -> None:
        self._queue.append((self._clock.now(), message))
        self._work()

    def freeze(self) -> None:
        self._stop()
        sequences = self._sequences
        notices = [s.notice.encode() for s in sequences.values()]
        rows = [
            (slot, s.life, s.request, s.next_step, len(s.chain), s.chain, s.failed_step, len(notice))
            for (slot, s), notice in zip(sequences.items(), notices, strict=True)
        ]
        flags = bytes((self._next.was_open, not self._source.idle))
        table = b"".join([_ROW.pack(*row) for row in rows])
        saved.save(self._endpoint.region(saved.STATE), [flags, table, b"".join(notices)])
        pending = [_UNSENT + part for part in self._next.unsent()]
        pending += [_UNDONE + part for part in self._unfinished()]
        saved.save(self._endpoint.region(saved.PENDING), pending)

    def thaw(self) -> None:
        self._frozen = False
        # What computes did not stand still: otherwise attempts to move could keep a step from ever being done.
        waiting, self._in_service = self._in_service, {}
        for timer, received in waiting.items():
            self._serve(received, timer.when)
        if not self._source.idle:
            self._source.resume()
        self._tell_all()
        self._next.resume()
        self._work()

    def release(self, cause: str) -> None:
        self._stop()
        self._kv.let_go()

    def stream_opened(self, stream: Outbound) -> None:
        self._next.opened(stream)
        self._source.opened(stream)

    def stream_settled(self, stream: Outbound) -> None:
        self._next.settled(stream)

    def stream_lost(self, stream: Outbound, why: str) -> None:
        self._next.lost(stream, why)
        self._source.lost(stream, why)

    def sender_lost(self, sender: str, why: str) -> None:
        """What was lost is known to the sender's side: the source itself, or the stage before, which tells the
        source.
        """

    # Work

    def _work(self) -> None:
        """Take up as much as there are units for. Output goes to the network before more is taken up."""
        if self._running:
            return
        self._running = True
        try:
            while self._queue and not self._frozen and self._next.ready:
                if not self._parameters.compute_ns:
                    self._finish(self._queue.popleft()[1])
                    continue
                if len(self._in_service) >= self._units.count:
                    return
                received_at, received = self._queue.popleft()
                done = self._units.begin(max(received_at, self._since))
                if done <= self._clock.now():
                    self._finish(received)
                else:
                    self._serve(received, done)
        finally:
            self._running = False

    def _serve(self, received: Buffer, until: int) -> None:
        def done() -> None:
            del self._in_service[timer]
            self._finish(received)
            self._work()

        timer = self._clock.call_at(until, done)
        self._in_service[timer] = received

    def _next_ready(self) -> None:
        self._since = self._clock.now()
        self._work()

    def _unfinished(self) -> list[Buffer]:
        return [*self._in_service.values(), *(received for _, received in self._queue)]

    def _requeue(self, messages: Iterable[Buffer]) -> None:
        """Begin with these anew."""
        now = self._clock.now()
        self._queue = deque((now, message) for message in messages)
        self._in_service.clear()
        self._units = Units(self._parameters.compute_units, self._parameters.compute_ns)

    def _finish(self, received: Buffer) -> None:
        """One step of one request: from here to its end nothing else happens in between."""
        header, content = message.parse(received)
        sequence, trouble = self._sequence_of(header)
        if sequence is None:
            self._give_up(header, trouble)
            return
        parts = self._kv.read(header.slot, header.request, header.step)
        digest = message.derive(
            self._parameters.seed, self._number, header.request, header.step, sequence.chain, content, *parts
        )
        self._kv.write(header.slot, header.step, digest)
        sequence.chain = digest
        sequence.next_step = header.step + 1
        sequence.notice = ""
        self._next.put(message.compose(header._replace(kind=self._kind), digest, self._size))

    def _sequence_of(self, header: Header) -> tuple[_Sequence | None, str]:
        """The state that the step builds on; none, and why, if it was lost."""
        known = self._sequences.get(header.slot)
        same = known is not None and (known.life, known.request) == (header.life, header.request)
        if known is not None and same and header.step <= known.next_step:
            # One that comes a second time is computed again, on what the first time has left: all bytes show it.
            return known, ""
        if header.step:
            return (
                None,
                f"{self.name} has not got the KV state of request {header.request} after step {header.step - 1}",
            )
        if known is not None and known.life == header.life and known.request > header.request:
            return None, f"{self.name} has given the KV slot of request {header.request} to a later one"
        self._sequences[header.slot] = fresh = _Sequence(header.life, header.request)
        return fresh, ""

    # Failures

    def _give_up(self, header: Header, why: str) -> None:
        """Tell the source that the request cannot go on."""
        known = self._sequences.get(header.slot)
        if known is None or (known.life, known.request) != (header.life, header.request):
            if known is not None and known.life == header.life and known.request > header.request:
                return  # the source has given the slot to another request, so it knows
            known = self._sequences[header.slot] = _Sequence(header.life, header.request)
        known.failed_step, known.notice = header.step, why
        self._tell(header.slot, known)

    def _next_lost(self, why: str, was_open: bool) -> None:
        """Each request that has passed here may have lost a message, or its state beyond. What waits for a stage that
        nobody finds is given up, too.
        """
        text = f"the stream from {self.name} to {self._next.receiver} was lost: {why}"
        for slot, sequence in self._sequences.items():
            if sequence.next_step and not sequence.notice:
                sequence.failed_step, sequence.notice = sequence.next_step - 1, text
                self._tell(slot, sequence)
        if was_open or self._frozen:
            return
        self._next.drop_held()
        for timer in self._in_service:
            timer.cancel()
        stuck = self._unfinished()
        self._requeue(())
        for received in stuck:
            self._give_up(message.parse(received)[0], text)

    def _tell(self, slot: int, sequence: _Sequence) -> None:
        if self._frozen:
            return  # told when it goes on, here or where it arrives
        if self._source.was_open:
            header = Header(sequence.life, sequence.request, sequence.failed_step, slot, Kind.FAILED)
            self._source.put(message.failure(header, sequence.notice))
        elif self._source.idle:
            self._source.connect()

    def _tell_all(self) -> None:
        """The stream to the source is there: say what may have been lost with the one before. The source takes no
        harm from hearing it twice.
        """
        for slot, sequence in self._sequences.items():
            if sequence.notice:
                self._tell(slot, sequence)

    # Moving

    def _stop(self) -> None:
        self._frozen = True
        for timer in self._in_service:
            timer.cancel()
        self._next.suspend()
        self._source.suspend()

    def _restore(self) -> None:
        flags, table, notices = saved.load(self._endpoint.region(saved.STATE))
        start = 0
        for slot, life, request, next_step, size, chain, failed_step, length in _ROW.iter_unpack(table):
            notice = notices[start : start + length].decode()
            self._sequences[slot] = _Sequence(life, request, next_step, chain[:size], failed_step, notice)
            start += length
        pending = saved.load(self._endpoint.region(saved.PENDING))
        self._requeue(part[1:] for part in pending if part[:1] == _UNDONE)
        if flags[1]:
            self._source.arrive(False, [])
        self._next.arrive(bool(flags[0]), [part[1:] for part in pending if part[:1] == _UNSENT])
        self._work()
