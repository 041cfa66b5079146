"""What happened in a simulated run, for people: steps, frames that decide, and what the nodes made of them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from connex.core import events
from connex.core.events import Event
from connex.core.frames import Frame, FrameType
from testbed.simulation.player import Player

_DULL_FRAMES = {FrameType.HEARTBEAT, FrameType.JOIN, FrameType.DATA, FrameType.ACK}
_DULL_EVENTS = (
    events.ChannelWanted,
    events.MessageReady,
    events.SendSpace,
    events.RegionsWanted,
    events.RegionReceived,
    events.FreezeRequested,
    events.BindingLearned,
)


def tell(player: Player, *, everything: bool = False) -> Iterator[str]:
    """Line by line, in the order of virtual time (ms since the schedule's beginning)."""
    schedule, cluster = player.schedule, player.cluster
    yield f"seed {schedule.seed}, nodes {', '.join(schedule.names)}, {schedule.weather}"
    for endpoint, home in schedule.endpoints:
        yield f"  {endpoint} is hosted on {home}"
    for number, (sender, receiver, kind) in enumerate(schedule.streams):
        ident = f"{player.streams[number]:016x}" if number < len(player.streams) else "never opened"
        yield f"  stream {number} from {sender} to {receiver}, {kind.name}: {ident}"
    lines: list[tuple[int, int, str]] = []
    for step in schedule.steps:
        skipped = " (could not be done)" if step in player.skipped else ""
        lines.append((player.started + step.at * 1_000_000, 0, f"* {str(step)[11:]}{skipped}"))
    for at, here, there, frame in cluster.frames:
        if everything or frame.type not in _DULL_FRAMES:
            lines.append((at, 1, f"  {here} > {there}  {describe_frame(frame)}"))
    for at, name, event in cluster.log:
        if everything or not isinstance(event, _DULL_EVENTS):
            lines.append((at, 2, f"  {name}: {describe_event(event)}"))
    for delivered in (one for stream in cluster.delivered.values() for one in stream):
        if everything:
            what = f"message {delivered.number} of {delivered.stream:016x} under epoch {delivered.endpoint_epoch}"
            lines.append((delivered.at, 3, f"  {delivered.node}: took {what}"))
    for at, _, line in sorted(lines, key=lambda entry: entry[:2]):
        yield f"{(at - player.started) / 1e6:10.3f}  {line}"


def describe_frame(frame: Frame) -> str:
    """Its type, what it is about, and the epochs of the two ends."""
    words = [FrameType(frame.type).name]
    if frame.flags & 1:
        words.append("reply")
    if frame.stream:
        words.append(f"{frame.stream:016x}")
    if frame.type in (FrameType.DATA, FrameType.ACK):
        words.append(f"message {frame.message} offset {frame.offset}")
    if frame.sender_epoch or frame.destination_epoch:
        words.append(f"epochs {frame.sender_epoch} > {frame.destination_epoch}")
    return " ".join(words)


def describe_event(event: Event) -> str:
    """Its name and its fields, without those that say nothing."""
    words = []
    fields: list[Any] = list(event)
    for name, value in zip(event._fields, fields, strict=True):
        if name in ("stream", "handover", "incarnation"):
            words.append(f"{name}={value:016x}")
        elif value not in ("", 0):
            words.append(f"{name}={value.name if isinstance(value, IntEnum) else str(value)}")
    return f"{type(event).__name__} {' '.join(words)}"
