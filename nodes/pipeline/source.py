"""Where requests begin and end: issues them, asks for one token after the other, and keeps what came of each."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from pipeline import message, results, saved
from pipeline.arrivals import gap
from pipeline.clock import Clock, Timer
from pipeline.latency import Latencies
from pipeline.link import Link
from pipeline.message import Header, Kind
from pipeline.parameters import Parameters
from pipeline.port import Buffer, CommandError, Endpoint, Outbound, Service
from pipeline.results import HASH_SIZE, Outcome, Results

Record = Callable[..., None]


@dataclass(slots=True)
class _Request:
    """One in flight."""

    slot: int
    step: int
    hash: bytes
    """Of all its tokens so far."""
    asked: int
    """When its present token was asked for."""


@dataclass(slots=True)
class Counters:
    issued: int = 0
    done: int = 0
    failed: int = 0
    tokens: int = 0
    unexpected: int = 0
    """Tokens that nobody had asked for: of a sound network there are none."""


_COUNTERS = struct.Struct("!I??5Qq?")
"""Life, started, finishing, the counters, time until the next request is due, whether the sink's stream was there."""
_ROW = struct.Struct(f"!IHI{HASH_SIZE}sq")
"""Request, slot, step, hash, time since its token was asked for."""


class Source:
    """``record(event, **fields)`` writes into the journal."""

    name = "source"

    def __init__(self, endpoint: Endpoint, parameters: Parameters, clock: Clock, record: Record, arrived: bool) -> None:
        self._endpoint = endpoint
        self._parameters = parameters
        self._clock = clock
        self._record = record
        self._life = int.from_bytes(os.urandom(4))
        self._started = self._finishing = self._frozen = self._issuing = False
        self._summary_written = False
        self._lost = ""
        """Which stream ended while the endpoint was frozen."""
        self.released = False
        self._counters = Counters()
        self._due = 0
        self._timer: Timer | None = None
        self._requests: dict[int, _Request] = {}
        self._slots = list(range(parameters.concurrency))
        self._latencies = Latencies()
        """From asking for a token to having it, of those that arrived here."""
        self._results = Results(endpoint.region(results.REGION, Results.size(parameters.requests)))
        self._finished: list[asyncio.Future[None]] = []
        self._next = Link(endpoint, clock, "stage-1", Service.ACTIVATION, self._issue, self._next_lost)
        if arrived:
            self._restore()
        else:
            self._next.connect()

    # Commands

    def start(self) -> None:
        """Begin to issue requests. A second time changes nothing."""
        if not self._started:
            self._started = True
            self._due = self._clock.now() + self._gap(0)
            self._issue()

    def progress(self) -> dict[str, Any]:
        """Counters, the digest over the requests issued so far, and latencies in ns."""
        counters = self._counters
        answer: dict[str, Any] = {
            "issued": counters.issued,
            "done": counters.done,
            "failed": counters.failed,
            "tokens": counters.tokens,
            "unexpected": counters.unexpected,
            "digest": self._results.digest(counters.issued),
        }
        if self._latencies.count:
            answer |= {"token_p50_ns": self._latencies.quantile(0.5), "token_p99_ns": self._latencies.quantile(0.99)}
        return answer

    async def finish(self) -> dict[str, Any]:
        """Issue no more, and wait until every request is done or failed. Raises CommandError if the source moves away
        meanwhile.
        """
        self._finishing = True
        self._cancel_timer()
        if self._requests:
            waiter = asyncio.get_running_loop().create_future()
            self._finished.append(waiter)
            await waiter
        answer = self.progress()
        if not self._summary_written:
            self._summary_written = True
            self._record("app.summary", requests=answer["issued"], tokens=answer["tokens"], digest=answer["digest"])
        return answer

    # Role

    def take(self, sender: str, received: Buffer) -> None:
        header, content = message.parse(received)
        if header.life != self._life:
            return  # an earlier source asked for it, and is gone
        if header.kind == Kind.FAILED:
            request = self._requests.get(header.request)
            if request is not None and request.step == header.step:
                self._fail(header.request, bytes(content).decode())
                self._went_on()
        else:
            self._token(header, content)

    def freeze(self) -> None:
        self._stop()
        now = self._clock.now()
        c = self._counters
        state = _COUNTERS.pack(
            self._life, self._started, self._finishing, c.issued, c.done, c.failed, c.tokens, c.unexpected,
            self._due - now,
            self._endpoint.hears("sink"),
        )  # fmt: skip
        rows = [_ROW.pack(n, r.slot, r.step, r.hash, now - r.asked) for n, r in self._requests.items()]
        parts = [state, bytes((self._next.was_open,)), b"".join(rows)]
        saved.save(self._endpoint.region(saved.STATE), parts)
        saved.save(self._endpoint.region(saved.PENDING), self._next.unsent())

    def thaw(self) -> None:
        self._frozen = False
        self._next.resume()
        lost, self._lost = self._lost, ""
        if lost:
            self._fail_all(lost)
        self._went_on()

    def release(self, cause: str) -> None:
        self.released = True
        self._stop()
        waiting, self._finished = self._finished, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(
                    CommandError(f"the source left this node ({cause}); ask the node that serves it now")
                )

    def stream_opened(self, stream: Outbound) -> None:
        self._next.opened(stream)

    def stream_settled(self, stream: Outbound) -> None:
        self._next.settled(stream)

    def stream_lost(self, stream: Outbound, why: str) -> None:
        self._next.lost(stream, why)

    def sender_lost(self, sender: str, why: str) -> None:
        if sender == "sink":
            self._fail_all(f"the stream from sink was lost: {why}")

    # Requests

    def _issue(self) -> None:
        """Issue what is due, as far as the network takes it and the bound on requests in flight allows; come back for
        the next.
        """
        if self._issuing:
            return
        self._issuing = True
        try:
            while self._may_issue():
                now = self._clock.now()
                if now < self._due:
                    self._cancel_timer()
                    self._timer = self._clock.call_at(self._due, self._issue)
                    return
                self._begin(now)
        finally:
            self._issuing = False

    def _may_issue(self) -> bool:
        return (
            self._started
            and not self._finishing
            and not self._frozen
            and bool(self._slots)
            and self._counters.issued < self._parameters.requests
            and self._next.ready
        )

    def _begin(self, now: int) -> None:
        number = self._counters.issued
        self._counters.issued += 1
        self._due += self._gap(number + 1)
        request = self._requests[number] = _Request(self._slots.pop(), 0, bytes(HASH_SIZE), now)
        self._record("app.request", request=number)
        self._ask(number, request, b"")

    def _ask(self, number: int, request: _Request, token: Buffer) -> None:
        """Send the input of the request's next step, which follows from the token before."""
        parameters = self._parameters
        digest = message.derive(parameters.seed, 0, number, request.step, token)
        header = Header(self._life, number, request.step, request.slot, Kind.ACTIVATION)
        self._next.put(message.compose(header, digest, parameters.activation_bytes))

    def _token(self, header: Header, token: memoryview) -> None:
        number = header.request
        request = self._requests.get(number)
        if request is None or header.step != request.step:
            self._unexpected(header, token)
            return
        now = self._clock.now()
        self._latencies.add(now - request.asked)
        self._counters.tokens += 1
        step, request.hash = request.step, _fold(request.hash, token)
        digest = blake2b(token, digest_size=8).hexdigest()
        self._record("app.token", request=number, token=step, size=len(token), hash=digest)
        request.step, request.asked = step + 1, now
        if request.step < self._parameters.tokens:
            self._ask(number, request, token)
            return
        self._counters.done += 1
        self._record("app.done", request=number, tokens=request.step, hash=request.hash.hex())
        self._end(number, Outcome.DONE, request.hash)
        self._went_on()

    def _unexpected(self, header: Header, token: memoryview) -> None:
        """A token that was not asked for. If the request is sound so far it is not any more: it must show in the
        digest.
        """
        number = header.request
        request = self._requests.get(number)
        if request is not None:
            request.hash = _fold(request.hash, token)
        elif number < self._counters.issued and self._results.outcome(number) is Outcome.DONE:
            self._results.set(number, Outcome.DONE, _fold(self._results.hash(number), token))
        elif number < self._counters.issued:
            return  # given up before it came
        self._counters.unexpected += 1
        self._record("app.unexpected", request=number, token=header.step, size=len(token))

    def _fail(self, number: int, why: str) -> None:
        self._counters.failed += 1
        self._record("app.failed", request=number, cause=why)
        self._end(number, Outcome.FAILED, bytes(HASH_SIZE))

    def _fail_all(self, why: str) -> None:
        if self._frozen:
            self._lost = why  # if the endpoint goes on elsewhere, the stream is found missing there
            return
        for number in list(self._requests):
            self._fail(number, why)
        self._went_on()

    def _next_lost(self, why: str, was_open: bool) -> None:
        if was_open:
            self._next.drop_held()
            self._fail_all(f"the stream from source to stage-1 was lost: {why}")

    def _end(self, number: int, outcome: Outcome, digest: bytes) -> None:
        self._slots.append(self._requests.pop(number).slot)
        self._results.set(number, outcome, digest)

    def _went_on(self) -> None:
        if self._finishing and not self._requests and not self._frozen:
            waiting, self._finished = self._finished, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
        self._issue()

    # Inside

    def _gap(self, number: int) -> int:
        return gap(self._parameters.seed, number, self._parameters.requests_per_s)

    def _stop(self) -> None:
        self._frozen = True
        self._cancel_timer()
        self._next.suspend()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _restore(self) -> None:
        state, was_open, rows = saved.load(self._endpoint.region(saved.STATE))
        life, started, finishing, *numbers, due_in, heard_sink = _COUNTERS.unpack(state)
        self._life, self._started, self._finishing = life, started, finishing
        self._counters = Counters(*numbers)
        now = self._clock.now()
        self._due = now + due_in
        for number, slot, step, digest, age in _ROW.iter_unpack(rows):
            self._requests[number] = _Request(slot, step, digest, now - age)
        taken = {request.slot for request in self._requests.values()}
        self._slots = [slot for slot in self._slots if slot not in taken]
        self._next.arrive(bool(was_open[0]), saved.load(self._endpoint.region(saved.PENDING)))
        if heard_sink and not self._endpoint.hears("sink"):
            self._fail_all("the stream from sink was lost while the source moved")
        self._issue()


def _fold(before: bytes, token: Buffer) -> bytes:
    return blake2b(token, digest_size=HASH_SIZE, key=before).digest()
