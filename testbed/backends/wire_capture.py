"""Captures taken by the wire: it sees every frame, and leaves the writing to a process of its own.

The wire must never wait for a disk, so finished blocks go through a pipe. What the pipe cannot take waits in
memory, up to a limit; beyond that frames are not captured, and counted. If the wire is killed, the other
process still writes down whatever had reached the pipe.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from collections import deque
from pathlib import Path

from testbed import capture
from testbed.backends.wire_stats import CaptureStats
from testbed.network.spec import Port
from testbed.network.vnet import HEADER_BYTES

_PIPE_BYTES = 1024 * 1024
_BACKLOG_LIMIT = 64 * 1024 * 1024
_CHUNK = struct.Struct("<II")
_MOST_BUFFERS = 512


class Tap:
    """The capture of one port. ``add`` is on the fast path: it formats the frame and nothing else."""

    def __init__(self, recorder: Recorder, offset: int) -> None:
        self._recorder = recorder
        self._offset = offset
        self.blocks: list[bytes] = []
        self.frames = 0
        self.bytes = 0
        self.dropped = 0

    def add(self, moment: int, direction: int, frame: bytes) -> None:
        """``moment``: CLOCK_MONOTONIC, ns; ``frame`` begins with the virtio-net header."""
        recorder = self._recorder
        if recorder.backlog > _BACKLOG_LIMIT or recorder.broken:
            self.dropped += 1
            return
        self.append(capture.packet(moment + self._offset, direction, memoryview(frame)[HEADER_BYTES:]))
        self.frames += 1
        self.bytes += len(frame) - HEADER_BYTES

    def close(self, moment: int) -> None:
        self.append(capture.trailer(moment + self._offset, self.frames + self.dropped, self.dropped))

    def append(self, block: bytes) -> None:
        self.blocks.append(block)
        self._recorder.backlog += len(block)

    @property
    def stats(self) -> CaptureStats:
        return CaptureStats(self.frames, self.bytes, self.dropped)


class Recorder:
    """All captures of the wire, and the process that writes them."""

    def __init__(self, files: dict[Port, Path], *, close_in_writer: list[int]) -> None:
        """Raises OSError where a file cannot be made. ``close_in_writer``: descriptors that only the wire may
        hold."""
        self.backlog = 0
        self.broken = False
        self._pending: deque[memoryview] = deque()
        opened = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) for path in files.values()]
        reader, self._pipe = os.pipe()
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.writer = os.fork()
        if self.writer == 0:
            os._exit(_write_files(reader, opened, [self._pipe, *close_in_writer]))
        for fd in [reader, *opened]:
            os.close(fd)
        os.set_blocking(self._pipe, False)
        offset = capture.clock_offset()
        self.taps = {port: Tap(self, offset) for port in files}
        for port, tap in self.taps.items():
            tap.append(capture.header(port.partition(":")[2], offset, f"seen by the wire at {port}"))

    def flush(self) -> None:
        """Hand over what has been captured, as far as the pipe takes it without waiting."""
        for index, tap in enumerate(self.taps.values()):
            if tap.blocks:
                data = b"".join(tap.blocks)
                tap.blocks.clear()
                self._pending.append(memoryview(_CHUNK.pack(index, len(data)) + data))
                self.backlog += _CHUNK.size
        pending = self._pending
        while pending and not self.broken:
            try:
                written = os.writev(self._pipe, [pending[at] for at in range(min(len(pending), _MOST_BUFFERS))])
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._give_up()
                return
            self.backlog -= written
            while pending and written >= len(pending[0]):
                written -= len(pending.popleft())
            if written:
                pending[0] = pending[0][written:]

    def close(self, moment: int) -> None:
        """Write the last blocks, wait until the files are complete, end the writer."""
        for tap in self.taps.values():
            tap.close(moment)
        os.set_blocking(self._pipe, True)
        self.flush()
        os.close(self._pipe)
        _, status = os.waitpid(self.writer, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            self._give_up()

    def _give_up(self) -> None:
        """The writer has ended early (a full disk, a kill): what it had not finished is lost, and said to
        be."""
        self.broken = True
        self._pending.clear()
        for tap in self.taps.values():
            tap.dropped += tap.frames
            tap.frames = tap.bytes = 0
            tap.blocks.clear()


def _write_files(pipe: int, files: list[int], unwanted: list[int]) -> int:
    """The writer: take chunks for files off the pipe until it is closed. Returns the exit status."""
    for fd in unwanted:
        os.close(fd)
    try:
        with os.fdopen(pipe, "rb", buffering=_PIPE_BYTES) as chunks:
            while len(head := chunks.read(_CHUNK.size)) == _CHUNK.size:
                index, length = _CHUNK.unpack(head)
                data = chunks.read(length)
                # Short only if the wire was killed: leave the file with whole blocks.
                _write_all(files[index], data if len(data) == length else data[: capture.whole_blocks(data)])
    except OSError as error:
        print(f"wire: captures end here: {error}", file=sys.stderr, flush=True)  # noqa: T201 - its log
        return 1
    return 0


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
