"""A capture as people read it: the Connex conversation in it, one line a frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from testbed import frames
from testbed.capture import CaptureReader
from testbed.dissect import Connex
from testbed.reassembly import INBOUND, Flow, Reassembler


class _Told:
    """A sink that turns one flow into lines."""

    def __init__(self, flow: Flow, lines: list[str]) -> None:
        self._flow = flow
        self._lines = lines
        self._time = flow.began
        self._splitter = frames.Splitter(self._frame, from_start=flow.whole)
        self._silent = False

    def data(self, time: int, drained: int, payload: memoryview) -> None:
        self._time = time
        if not self._silent:
            self._splitter.data(time, drained, payload)
        if self._splitter.malformed and not self._silent:
            self._silent = True
            self._say(f"not Connex from here on: {self._splitter.malformed}")

    def hole(self, time: int, length: int) -> None:
        self._time = time
        self._say(f"{length} bytes are not in the capture")
        self._splitter.hole(time, length)

    def _frame(self, frame: frames.Frame) -> None:
        header = frames.pack_header(frame.header)
        layer = Connex(header + b"".join(frame.payload)) if frame.complete else Connex(header)
        self._time = frame.begun
        self._say(layer.mysummary()[0] + ("" if frame.complete else ", not all of it captured"))

    def _say(self, text: str) -> None:
        way = "<" if self._flow.direction == INBOUND else ">"
        seconds, rest = divmod(self._time, 1_000_000_000)
        self._lines.append(f"{seconds}.{rest:09d} {way} {self._flow.name}: {text}")


def describe(path: Path) -> Iterator[str]:
    """The Connex conversation in a capture, one line a frame, in the order of the capture.

    A line begins with the time (UNIX, s) and ``>`` for what the captured node sent, ``<`` for what it received. The
    last lines say what the capture lacks. Raises testbed.capture.CaptureError.
    """
    lines: list[str] = []
    reassembler = Reassembler(lambda flow: _Told(flow, lines))
    with CaptureReader(path) as reader:
        for stamp, direction, data in reader:
            reassembler.packet(stamp, direction, data)
            if lines:
                yield from lines
                lines.clear()
        tally = reassembler.finish()
        yield from lines
        if reader.truncated:
            yield f"the file is cut off: its last {reader.truncated} bytes are no complete record"
        elif not reader.closed:
            yield "the file was not closed by its writer: frames at its end may be missing"
        if reader.dropped:
            yield f"{reader.dropped} frames were not captured"
    for count, what in (
        (tally.snapped, "frames were captured only in part"),
        (tally.corrupt, "segments arrived corrupt"),
        (tally.fragments, "IP fragments were left out"),
        (tally.retransmitted, "segments were sent again"),
    ):
        if count:
            yield f"{count} {what}"
