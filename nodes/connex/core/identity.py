"""Who is who: nodes, their lives, and traffic classes."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

NodeName = str
EndpointName = str
StreamId = int
HandoverId = int


class TrafficClass(IntEnum):
    """What a stream carries; each class has its own channel between two nodes."""

    CONTROL = 0
    TOKEN = 1
    ACTIVATION = 2
    KV = 3


class Life(NamedTuple):
    """One life of a node: its name and the number drawn at its start."""

    node: NodeName
    incarnation: int


class Peer(NamedTuple):
    """One life of a node, and where it is reached (``host:port``)."""

    node: NodeName
    incarnation: int
    locator: str

    @property
    def life(self) -> Life:
        return Life(self.node, self.incarnation)
