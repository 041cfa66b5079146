"""An application that moves, and notices when a message is missing, repeated or out of order."""

from __future__ import annotations

import zlib

import connex


class Counter:
    """An application whose state is what it has seen: a count and a checksum, kept in a region when it freezes."""

    def __init__(self, endpoint: connex.Endpoint) -> None:
        self.endpoint = endpoint
        self.region = endpoint.region("seen", 16)
        self.count = int.from_bytes(self.region.view[:8], "big")
        self.sum = int.from_bytes(self.region.view[8:], "big")
        self.hooks: list[str] = []
        endpoint.application = self
        endpoint.on_freeze(self.freeze)
        endpoint.on_thaw(lambda: self.hooks.append("thaw"))
        endpoint.on_release(lambda cause: self.hooks.append(f"release {cause}"))
        endpoint.on_message(self.take)

    def take(self, message: connex.Message) -> None:
        assert message.number == self.count, "out of order, or not once"
        self.count += 1
        self.sum = add(self.sum, message.payload)

    def freeze(self) -> None:
        self.hooks.append("freeze")
        self.region.write(0, self.count.to_bytes(8, "big") + self.sum.to_bytes(8, "big"))


def add(total: int, payload: bytes | bytearray | memoryview) -> int:
    """The checksum of all messages so far and one more."""
    return (total * 31 + zlib.crc32(payload)) % (1 << 64)
