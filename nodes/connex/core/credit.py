"""How much a sender may send: always an absolute byte offset, never an increment."""

from __future__ import annotations


class ReceiveCredit:
    """The limit that a receiver grants on one stream.

    It stays a window ahead of what the application has taken. A message larger than that is let in whole once it
    stands alone, so that it always makes progress; memory is then bounded by the window plus the largest message.
    """

    __slots__ = ("advertised", "limit", "step", "window")

    def __init__(self, window: int, limit: int = 0) -> None:
        self.window = window
        self.limit = max(limit, window)
        self.step = window // 4
        self.advertised = 0

    def update(self, delivered: int, alone_until: int) -> bool:
        """Raise the limit; say whether the news is large enough to be worth a frame of its own.

        ``delivered`` is the offset up to which the application has taken the stream; ``alone_until`` the end of a
        message that is being received with nothing complete before it (0 if there is none).
        """
        limit = delivered + self.window
        if alone_until > limit:
            limit = alone_until
        if limit > self.limit:
            self.limit = limit
        return self.limit - self.advertised >= self.step

    def advertise(self) -> int:
        """The limit to put into an ACK that is sent now."""
        self.advertised = self.limit
        return self.limit
