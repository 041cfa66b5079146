"""What must hold of a simulated run, judged from outside: by what applications sent and took, by what nodes announced
and by the frames on their way; never by the protocol's own books.

Each oracle raises ``Violation``. Which sentence of the contract it stands for is said at each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

from connex.core import events
from connex.core.credit import ReceiveCredit
from connex.core.frames import Frame, FrameType
from connex.core.handover import Handover, Phase
from connex.core.identity import TrafficClass
from connex.core.node import Node
from testbed.simulation.cluster import Cluster, Delivered, Ending

_DATA, _ACK = int(FrameType.DATA), int(FrameType.ACK)
_FRAMES_PER_SECOND = 20_000
"""More than this of one cluster, on average, is a storm."""


class Violation(AssertionError):
    """The protocol broke its contract."""


class Oracles:
    """Watches a cluster while it runs, and judges it at its end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._begun = cluster.now
        self._windows = {kind: limits.window for kind, limits in cluster.config.classes.items()}
        self.routes: dict[int, tuple[str, str, TrafficClass]] = {}
        """stream -> sender, receiver, class."""
        self._owned: dict[tuple[str, str], int] = {}
        """(node, endpoint) -> the epoch under which it serves."""
        self._owners: dict[tuple[str, int], str] = {}
        self._taken: dict[int, int] = defaultdict(int)
        """stream -> offset up to which an application has taken it."""
        self._granted: dict[int, int] = defaultdict(int)
        """stream -> the highest limit that was put into an ACK."""
        self._ends: dict[int, list[int]] = defaultdict(list)
        """stream -> ends of its messages."""
        self._void: set[tuple[str, int]] = set()
        """(endpoint, epoch) that a source in doubt has gone past: whoever had it never was its owner."""
        self._fenced: set[tuple[str, str]] = set()
        """(node, endpoint) that had to give way to a newer owner."""
        self.handovers = 0
        """Handovers that were committed."""
        self._closed: set[tuple[int, str]] = set()
        """(stream, side) at their regular end."""
        self._heard: set[int] = set()
        """Streams that their receivers know of."""
        cluster.on_event = self._event
        cluster.on_delivery = self._delivery
        cluster.on_arrival = self._arrival

    def opened(self, stream: int, sender: str, receiver: str, kind: TrafficClass) -> None:
        self.routes[stream] = sender, receiver, kind

    def sent(self, stream: int, size: int) -> None:
        ends = self._ends[stream]
        ends.append((ends[-1] if ends else 0) + size)

    def unsent(self, stream: int) -> None:
        """The last message could not be sent."""
        self._ends[stream].pop()

    # While it runs

    def _event(self, node: str, event: events.Event) -> None:
        if isinstance(event, events.EndpointHosted | events.EndpointResumed):
            self._owned[node, event.endpoint] = event.epoch
            owner = self._owners.setdefault((event.endpoint, event.epoch), node)
            if owner != node:
                raise Violation(f"C3: epoch {event.epoch} of {event.endpoint} is owned by {owner} and by {node}")
            if isinstance(event, events.EndpointHosted):
                self.handovers += event.cause == "handover"
            else:
                self._void.add((event.endpoint, event.epoch - 1))
        elif isinstance(event, events.StreamClosed):
            self._closed.add((event.stream, event.side))
        elif isinstance(event, events.StreamOpened):
            if event.side == "receiver":
                self._heard.add(event.stream)
        elif isinstance(event, events.EndpointReleased):
            self._owned.pop((node, event.endpoint), None)
            if event.cause == "fenced":
                self._fenced.add((node, event.endpoint))

    def killed(self, node: str) -> None:
        for key in [key for key in self._owned if key[0] == node]:
            del self._owned[key]

    def frame(self, here: str, there: str, frame: Frame) -> None:
        route = self.routes.get(frame.stream)
        if route is None:
            return
        if frame.type == _ACK:
            self._acknowledgement(here, frame, route)
        elif frame.type == _DATA and frame.offset + len(frame.payload) > max(
            self._granted[frame.stream], self._first_limit(frame.stream)
        ):
            raise Violation(
                f"credit: {here} sent stream {frame.stream:016x} up to {frame.offset + len(frame.payload)};"
                f" granted were {self._granted[frame.stream]}"
            )

    def _acknowledgement(self, here: str, frame: Frame, route: tuple[str, str, TrafficClass]) -> None:
        """C2: nothing is acknowledged as delivered that no application has taken. Credit stays within its window."""
        taken = self._taken[frame.stream]
        if frame.offset > taken:
            raise Violation(
                f"C2: {here} acknowledged stream {frame.stream:016x} as delivered up to {frame.offset};"
                f" taken was {taken}"
            )
        limit = int.from_bytes(frame.payload, "big")
        most = taken + self._windows[route[2]]
        # A message larger than the window is let in whole when it stands alone.
        alone = next((end for end in self._ends[frame.stream] if end > taken), 0)
        if limit > max(most, alone, self._first_limit(frame.stream)):
            raise Violation(f"credit: {here} granted stream {frame.stream:016x} {limit}; its window ends at {most}")
        self._granted[frame.stream] = max(self._granted[frame.stream], limit)

    def _arrival(self, node: str, frame: Frame) -> Callable[[], None] | None:
        """C3: nothing of a frame is taken that was addressed under an epoch which this node does not own."""
        route = self.routes.get(frame.stream)
        if route is None or frame.type != _DATA or self._owned.get((node, route[1])) == frame.destination_epoch:
            return None
        before = self._received(node, frame.stream)

        def check() -> None:
            if self._received(node, frame.stream) > before:
                raise Violation(
                    f"C3: {node} took a frame of stream {frame.stream:016x} that was meant for epoch"
                    f" {frame.destination_epoch} of {route[1]}"
                )

        return check

    def _received(self, node: str, stream: int) -> int:
        streams = self._cluster.nodes[node].streams() if node in self._cluster.nodes else []
        return max(
            (one["received"] for one in streams if one["stream"] == stream and one["side"] == "receiver"), default=0
        )

    def _first_limit(self, stream: int) -> int:
        return ReceiveCredit(self._windows[self.routes[stream][2]]).limit

    def _delivery(self, delivered: Delivered, end: int) -> None:
        """C3: whoever delivers owns the epoch."""
        self._taken[delivered.stream] = max(self._taken[delivered.stream], end)
        receiver = self.routes[delivered.stream][1]
        if delivered.endpoint_epoch and self._owned.get((delivered.node, receiver)) != delivered.endpoint_epoch:
            raise Violation(
                f"C3: {delivered.node} delivered to {receiver} under epoch {delivered.endpoint_epoch}, which it does"
                " not own"
            )

    # At its end

    def settled(self) -> bool:
        """Whether nothing is under way any more."""
        cluster = self._cluster
        owners: set[str] = set()
        for node in cluster.nodes.values():
            hopeless = {one.endpoint for one in node.handovers() if self._hopeless(node, one)}
            if len(hopeless) < len(node.handovers()) or node.joining:
                return False
            for binding in node.owned():
                if binding.endpoint in owners:
                    return False
                if node.is_frozen(binding.endpoint) and binding.endpoint not in hopeless:
                    return False
                owners.add(binding.endpoint)
        return all(self._unsettled(stream) is None for stream in self.routes)

    def _frozen_for_good(self) -> set[str]:
        return {
            handover.endpoint
            for node in self._cluster.nodes.values()
            for handover in node.handovers()
            if handover.phase is Phase.DOUBT and self._hopeless(node, handover)
        }

    def _hopeless(self, node: Node, handover: Handover) -> bool:
        """Whether a commit is in doubt and too many that could say are dead for good: the one case in which an endpoint
        stays frozen, or opens no new streams where it has arrived, as ``docs/contract.md`` says.
        """
        living = {one.me.life for one in self._cluster.nodes.values()}
        if handover.peer.life in living:
            return False
        others = handover.named - {handover.peer.life, node.me.life}
        if handover.phase is Phase.DOUBT:
            return not others & living
        return handover.phase is Phase.COMMITTED and not (others and others <= living)

    def judge(self) -> None:
        """Raises Violation."""
        cluster = self._cluster
        seconds = (cluster.now - self._begun) / 1e9
        if len(cluster.frames) > _FRAMES_PER_SECOND * seconds:
            raise Violation(f"a storm: {len(cluster.frames)} frames in {seconds:.1f} s")
        owners: dict[str, str] = {}
        for name, node in cluster.nodes.items():
            hopeless = {one.endpoint for one in node.handovers() if self._hopeless(node, one)}
            for handover in node.handovers():
                if handover.endpoint not in hopeless:
                    what = f"the handover of {handover.endpoint}: {handover.phase}"
                    raise Violation(f"C6: {name} has not finished {what}")
            for binding in node.owned():
                if node.is_frozen(binding.endpoint) and binding.endpoint not in hopeless:
                    raise Violation(f"C6: {binding.endpoint} is frozen at {name} for good")
                if binding.endpoint in owners:
                    raise Violation(f"{binding.endpoint} is owned by {owners[binding.endpoint]} and by {name}")
                owners[binding.endpoint] = name
        for stream in self.routes:
            self._line(stream)
            trouble = self._unsettled(stream)
            if trouble is not None:
                raise Violation(f"C6: {trouble}")

    def _line(self, stream: int) -> None:
        """C1, C2: what the surviving line of owners took is a prefix of what was sent, byte for byte."""
        cluster = self._cluster
        _, receiver, _ = self.routes[stream]
        delivered = cluster.delivered[stream]
        line = [one for one in delivered if (receiver, one.endpoint_epoch) not in self._void]
        if len(line) < len(delivered) and not self._given_up(stream):
            raise Violation(f"C2: stream {stream:016x} was served under an epoch that was taken back, and goes on")
        if len(line) < len(delivered):
            line = delivered
        sent = cluster.sent[stream]
        for number, one in enumerate(line):
            if one.number != number:
                raise Violation(
                    f"C1, C2: stream {stream:016x}: message {one.number} was delivered at {one.node} as the {number}."
                )
            if number >= len(sent) or one.payload != sent[number]:
                raise Violation(f"C2: stream {stream:016x}: message {number} was delivered with other bytes")
        epochs = [one.endpoint_epoch for one in line if one.endpoint_epoch]
        if any(first > second for first, second in pairwise(epochs)):
            raise Violation(f"C3: stream {stream:016x} was delivered under epochs that fall: {epochs}")

    def _endings(self, stream: int) -> list[Ending]:
        """Resets that count: not those of a node to which the endpoint never came, as it turned out."""
        sender, receiver, _ = self.routes[stream]
        ends = {"sender": sender, "receiver": receiver}
        return [
            one
            for one in self._cluster.endings
            if one.stream == stream and (one.node, ends[one.side]) not in self._fenced
        ]

    def _given_up(self, stream: int) -> bool:
        return any(one.cause == "handover-in-doubt" for one in self._endings(stream))

    def _unsettled(self, stream: int) -> str | None:
        """C6: all is delivered, or each end that still has an owner has been told of the end."""
        cluster = self._cluster
        sender, receiver, _ = self.routes[stream]
        ended = {one.side for one in self._endings(stream)}
        ended |= {side for side in ("sender", "receiver") if (stream, side) in self._closed}
        open_sides = {
            info["side"]: name
            for name, node in cluster.nodes.items()
            for info in node.streams()
            if info["stream"] == stream and not info.get("finished")
        }
        if {sender, receiver} & self._frozen_for_good():
            return None
        if len(ended) != 1 and len(cluster.delivered[stream]) == len(cluster.sent[stream]):
            return None
        for side, endpoint in (("sender", sender), ("receiver", receiver)):
            if side in open_sides:
                return f"stream {stream:016x}: its {side} at {open_sides[side]} waits for ever"
            if side not in ended and cluster.owner(endpoint):
                if side == "receiver" and stream not in self._heard:
                    continue
                return f"stream {stream:016x}: its {side} vanished without a word"
        return None
