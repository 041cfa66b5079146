"""The protocol as a story that can be read: commands, a line of dashes, and what the nodes said then.

``pytest tests/transcripts --rewrite`` writes the answers anew; what changed is then seen in the diff. The form is that
of etcd's raft (datadriven tests).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connex.core import events
from connex.core.errors import ConnexError
from connex.core.frames import Frame, FrameType
from connex.core.identity import TrafficClass
from testbed.simulation.cluster import MS, Cluster
from testbed.simulation.transcript import describe_event, describe_frame

FILES = sorted(Path(__file__).parent.glob("*.txt"))
_DASHES = "----"
_HIDDEN_FRAMES = {FrameType.HEARTBEAT}
_HIDDEN_EVENTS = (
    events.ChannelWanted,
    events.MessageReady,
    events.SendSpace,
    events.RegionsWanted,
    events.RegionReceived,
    events.FreezeRequested,
)


class Story:
    """One file's cluster and what has been told of it."""

    def __init__(self) -> None:
        self._cluster = Cluster(("a", "b"))
        self._told: list[tuple[int, str]] = []
        self._streams: list[int] = []
        self._lost: set[tuple[str, str, str]] = set()
        self._names: dict[str, str] = {}
        self._begin = 0

    def do(self, line: str) -> str:
        """Carry out one command; what happened until it was over."""
        verb, *words = line.split()
        self._told.clear()
        try:
            command: Callable[..., None] = getattr(self, f"do_{verb.replace('-', '_')}")
            command(*words)
        except ConnexError as error:
            self._tell(f"refused: {error}")
        return "\n".join(line for _, line in self._told) or "(nothing)"

    def _tell(self, text: str) -> None:
        self._told.append((self._cluster.now, f"{(self._cluster.now - self._begin) / MS:7.2f}  {self._short(text)}"))

    def _short(self, text: str) -> str:
        """Streams and handovers by the order in which they come up."""

        def name(match: re.Match[str]) -> str:
            return self._names.setdefault(match[0], f"#{len(self._names) + 1}")

        return re.sub(r"\b[0-9a-f]{16}\b", name, text)

    # Commands

    def do_cluster(self, *names: str) -> None:
        """Nodes that do not know each other yet."""
        self._cluster = cluster = Cluster(names)
        self._begin = cluster.now
        cluster.on_event = self._event
        cluster.on_frame = self._frame
        cluster.on_delivery = lambda one, end: self._tell(
            f"{one.node}: takes message {one.number} of {one.stream:016x} under epoch {one.endpoint_epoch}:"
            f" {bytes(one.payload[:40]).decode()}"
        )
        cluster.filters.append(lambda here, there, frame: self._keeps(here, there, frame))

    def do_join(self, node: str, seed: str) -> None:
        self._cluster.join(node, self._cluster.nodes[seed].me.locator)

    def do_host(self, node: str, endpoint: str) -> None:
        self._cluster.host(node, endpoint)

    def do_open(self, sender: str, receiver: str) -> None:
        owner = self._cluster.owner(sender)
        self._streams.append(self._cluster.open(owner, sender, receiver, TrafficClass.TOKEN))

    def do_send(self, sender: str, stream: str, *text: str) -> None:
        if not self._cluster.send(sender, self._streams[int(stream)], " ".join(text).encode()):
            self._tell(f"{sender} cannot send now")

    def do_move(self, endpoint: str, target: str, *hold: str) -> None:
        self._cluster.move(endpoint, target, bool(hold))

    def do_cancel(self, endpoint: str) -> None:
        owner = self._cluster.owner(endpoint)
        for handover in self._cluster.nodes[owner].handovers():
            ident = handover.id
            self._cluster.do(owner, lambda node, ident=ident: node.cancel(ident, "no longer wanted", self._cluster.now))  # type: ignore[misc]

    def do_kill(self, node: str) -> None:
        self._cluster.kill(node)

    def do_leave(self, node: str) -> None:
        self._cluster.do(node, lambda one: one.leave(self._cluster.now))

    def do_lose(self, kind: str, here: str, there: str) -> None:
        """From now on such frames are lost on that way; ``*`` for all of them."""
        self._lost.add((kind, here, there))

    def do_heal(self) -> None:
        self._lost.clear()

    def do_run(self, duration: str) -> None:
        self._cluster.run(round(float(duration.removesuffix("ms")) * MS))

    def do_owners(self) -> None:
        for name, node in self._cluster.nodes.items():
            for binding in node.owned():
                state = ", frozen" if node.is_frozen(binding.endpoint) else ""
                self._tell(f"{binding.endpoint} on {name} under epoch {binding.epoch}{state}")

    # What happens

    def _keeps(self, here: str, there: str, frame: Frame) -> bool:
        kind = FrameType(frame.type).name
        lost = (kind, here, there) in self._lost or ("*", here, there) in self._lost
        if lost and frame.type not in _HIDDEN_FRAMES:
            self._tell(f"{here} > {there}  ... is lost")
        return not lost

    def _frame(self, here: str, there: str, frame: Frame) -> None:
        if frame.type not in _HIDDEN_FRAMES:
            self._tell(f"{here} > {there}  {describe_frame(frame)}")

    def _event(self, node: str, event: events.Event) -> None:
        if not isinstance(event, _HIDDEN_EVENTS):
            self._tell(f"{node}: {describe_event(event)}")


def parts(content: str) -> Iterator[tuple[str, str, str]]:
    """(comments and commands, the commands alone, the answer) of each part."""
    for part in re.split(r"\n\n+", content.strip()):
        head, found, answer = part.partition(f"\n{_DASHES}\n")
        commands = "\n".join(line for line in head.splitlines() if line and not line.startswith("#"))
        yield head, commands if found or commands else "", answer


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    story = Story()
    written = []
    for head, commands, expected in parts(path.read_text(encoding="utf-8")):
        if not commands:
            written.append(head)
            continue
        said = "\n".join(story.do(line) for line in commands.splitlines())
        written.append(f"{head}\n{_DASHES}\n{said}")
        if not request.config.getoption("--rewrite"):
            assert said == expected, f"{path.name}, after: {commands}"
    if request.config.getoption("--rewrite"):
        path.write_text("\n\n".join(written) + "\n", encoding="utf-8")


def test_there_is_a_story_of_each_part_of_the_protocol() -> None:
    assert {path.stem for path in FILES} >= {"join", "stream", "stale", "handover", "abort", "doubt"}
