"""Progress of a run: a live line on a terminal, plain lines elsewhere. Always on standard error."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from testbed.console import is_terminal

SECOND = 1_000_000_000
PLAIN_EVERY = 5.0
"""Seconds between two plain lines while traffic flows."""
QUIET = frozenset({"run.started", "node.started", "wire.stopped", "run.finished", "traffic.started"})
SCHEDULING = frozenset({"t", "event", "id", "kind", "at", "on", "count", "after", "for", "late_ns"})
"""Fields of a fault's beginning that say when, not what."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """How far the workload has come. Times in ns."""

    elapsed: int
    duration: int
    issued: int
    done: int
    failed: int
    tokens: int
    handovers: int
    aborted: int
    faults: tuple[str, ...]

    def sentence(self) -> str:
        faults = ", ".join(self.faults) or "none"
        failed = f", {self.failed} failed" if self.failed else ""
        aborted = f" ({self.aborted} aborted)" if self.aborted else ""
        return (
            f"{self.elapsed / SECOND:.1f} of {self.duration / SECOND:g} s, "
            f"requests {self.done} of {self.issued}{failed}, "
            f"tokens {self.tokens}, handovers {self.handovers}{aborted}, faults active: {faults}"
        )


class Progress(Protocol):
    """Told what goes on; shows it as fits the place."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def phase(self, text: str) -> None: ...
    def event(self, event: Mapping[str, Any]) -> None: ...
    def traffic(self, traffic: Traffic) -> None: ...


def sentence(event: Mapping[str, Any]) -> str | None:
    """One of the run's events as people read it, or nothing where it is not news."""
    name = event["event"]
    if name in QUIET or (name == "node.exited" and event["expected"]):
        return None
    if name.startswith("fault."):
        return _fault(name.removeprefix("fault."), event)
    if name == "traffic.stopped":
        end = "all answered or given up" if event["complete"] else str(event["missing"])
        return f"requests: {event['done']} of {event['issued']} answered, {event['failed']} failed; {end}"
    if "text" in event:
        return f"{name}: {event['text']}"
    fields = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("t", "event"))
    return f"{name}: {fields}" if fields else str(name)


def _fault(step: str, event: Mapping[str, Any]) -> str:
    """Such as ``fault 3, impair: link w4--s0, direction a-to-b, changes {...}, for 3 s``."""
    what = f"fault {event['id']}, {event['kind']}"
    if step != "begun":
        why = event.get("text") or event.get("cause")
        return f"{what}: {step}" + (f" ({why})" if why else "")
    fields = [f"{key} {value}" for key, value in event.items() if key not in SCHEDULING and value is not None]
    if event.get("for"):
        fields.append(f"for {event['for'] / SECOND:g} s")
    return f"{what}: {', '.join(fields)}" if fields else what


class PlainProgress:
    """Lines with the seconds since the beginning."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = time.monotonic()
        self._last = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.flush()

    def phase(self, text: str) -> None:
        self._line(text)

    def event(self, event: Mapping[str, Any]) -> None:
        if text := sentence(event):
            self._line(text)

    def traffic(self, traffic: Traffic) -> None:
        if time.monotonic() - self._last >= PLAIN_EVERY:
            self._last = time.monotonic()
            self._line(traffic.sentence())

    def _line(self, text: str) -> None:
        with suppress(BrokenPipeError):  # nobody reads any more; the run goes on and its folder has everything
            print(f"[{time.monotonic() - self._begun:6.1f}] {text}", file=self._stream, flush=True)


class TerminalProgress:
    """One block that is drawn over itself; events scroll by above it."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._traffic: Traffic | None = None
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def phase(self, text: str) -> None:
        self._traffic = None  # it belongs to the phase before
        self._console.print(Text(f"{time.monotonic() - self._begun:6.1f} s  {text}", style="bold"))
        self._draw()

    def event(self, event: Mapping[str, Any]) -> None:
        if text := sentence(event):
            self._console.print(Text(f"{time.monotonic() - self._begun:6.1f} s  {text}", style="dim"))

    def traffic(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._draw()

    def _draw(self) -> None:
        lines: list[Any] = []
        if self._traffic is not None:
            now = self._traffic
            bar = Table.grid(padding=(0, 2))
            bar.add_row(
                ProgressBar(total=max(1, now.duration), completed=min(now.elapsed, now.duration), width=40),
                f"{now.elapsed / SECOND:.1f} of {now.duration / SECOND:g} s",
            )
            counts = Text(no_wrap=True, overflow="ellipsis")
            counts.append(f"requests {now.done}/{now.issued}  tokens {now.tokens}  handovers {now.handovers}  ")
            counts.append(f"faults: {', '.join(now.faults) or 'none'}", style="red" if now.faults else "dim")
            lines += [bar, counts]
        self._live.update(Group(*lines), refresh=True)


def progress_on(stream: TextIO) -> PlainProgress | TerminalProgress:
    """The kind of progress that fits the stream."""
    return TerminalProgress(stream) if is_terminal(stream) else PlainProgress(stream)
