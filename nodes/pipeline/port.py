"""What the pipeline needs of whatever carries its messages, and what it offers in return.

An adapter implements ``Messenger``, ``Endpoint``, ``Outbound`` and ``Region``; the pipeline implements ``Role``. All
calls are made in one event loop. An adapter calls a role in the order in which things happen and never while a call
into the adapter that did not come from it is under way, except from ``Outbound.put``: a message to an endpoint of the
same process may be delivered within it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, Protocol

Buffer = bytes | bytearray | memoryview
Command = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Answers one control request; raises CommandError to say no."""


class Service(Enum):
    """What a stream carries: tokens in a hurry, or activations in bulk."""

    TOKEN = "TOKEN"
    ACTIVATION = "ACTIVATION"


class CommandError(Exception):
    """A control request that cannot be carried out; the text says what to do instead."""


class Region(Protocol):
    """Bytes that move with an endpoint; zero at first."""

    def __len__(self) -> int: ...

    @property
    def view(self) -> memoryview:
        """All bytes, read-only. Shows later writes, but not what follows a ``resize``."""
        ...

    def write(self, offset: int, data: Buffer, /) -> None: ...

    def resize(self, size: int, /) -> None: ...


class Outbound(Protocol):
    """The sending side of a stream from an endpoint to another."""

    @property
    def receiver(self) -> str: ...

    @property
    def is_open(self) -> bool:
        """The receiver has accepted it, and it has not ended."""
        ...

    @property
    def waiting(self) -> list[bytes]:
        """Messages that were put and have not left the endpoint's own state, oldest first; exact at every moment.

        When the endpoint moves, these are the role's to take along: they do not leave any more.
        """
        ...

    def put(self, message: bytes, /) -> None:
        """Send the message after those put before, now or as soon as there is room. Of an ended stream: it is lost,
        and the role has been or will be told.
        """
        ...


class Role(Protocol):
    """What an endpoint is to the pipeline: source, stage or sink."""

    def take(self, sender: str, message: Buffer, /) -> None:
        """A message was delivered."""
        ...

    def freeze(self) -> None:
        """Stop at once and bring the regions up to date: the endpoint is about to move."""
        ...

    def thaw(self) -> None:
        """It does not move after all: go on."""
        ...

    def release(self, cause: str, /) -> None:
        """The endpoint is not served here any more."""
        ...

    def stream_opened(self, stream: Outbound, /) -> None: ...

    def stream_settled(self, stream: Outbound, /) -> None:
        """Nothing of it is waiting any more."""
        ...

    def stream_lost(self, stream: Outbound, why: str, /) -> None:
        """It has ended, and what was on it may or may not have arrived."""
        ...

    def sender_lost(self, sender: str, why: str, /) -> None:
        """A stream from that endpoint has ended, and what was on it is lost."""
        ...


class Endpoint(Protocol):
    """An endpoint as its role holds it. Streams are told apart by receiver: a role has one to each."""

    @property
    def name(self) -> str: ...

    def find(self, receiver: str, /) -> Outbound | None:
        """The stream to that endpoint, if there is one: so a role finds those that moved with it."""
        ...

    def hears(self, sender: str, /) -> bool:
        """Whether a stream from that endpoint is there."""
        ...

    def open(self, receiver: str, service: Service, /) -> Outbound:
        """Begin to open a stream; ``Role.stream_opened`` or ``Role.stream_lost`` follows."""
        ...

    def region(self, name: str, size: int = 0, /) -> Region:
        """The region of that name, made with ``size`` zero bytes if there is none."""
        ...


RoleFactory = Callable[[Endpoint], Role]


class Messenger(Protocol):
    """One process among those that run the pipeline."""

    @property
    def node(self) -> str: ...

    async def host(self, name: str, make: RoleFactory, /) -> None:
        """Serve an endpoint here, played by what ``make`` returns."""
        ...

    def on_arrival(self, make: RoleFactory, /) -> None:
        """Accept endpoints that move here. ``make`` is called with regions and streams in place, before anything is
        delivered.
        """
        ...

    def on_command(self, name: str, command: Command, /) -> None:
        """Answer control requests of that name."""
        ...

    def record(self, event: str, **fields: Any) -> None:
        """Write an event of the application into the node's journal."""
        ...
