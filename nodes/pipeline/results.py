"""What has become of each request, in a state region, and the digest of it all."""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b

from pipeline.port import Region

REGION = "results"
HASH_SIZE = 16
_ENTRY = 1 + HASH_SIZE


class Outcome(IntEnum):
    OPEN = 0
    DONE = 1
    FAILED = 2


class Results:
    """One entry for each request, by number."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._view = region.view
        self._settled = 0
        """Requests below have all ended, and are in the running hash."""
        self._running = blake2b(digest_size=16)

    @staticmethod
    def size(requests: int) -> int:
        """Bytes of the region."""
        return requests * _ENTRY

    def outcome(self, request: int) -> Outcome:
        return Outcome(self._view[request * _ENTRY])

    def set(self, request: int, outcome: Outcome, digest: bytes) -> None:
        """Enter how a request ended. A second time (which a sound network never causes) changes the digest, like any
        other byte.
        """
        self._region.write(request * _ENTRY, bytes((outcome,)) + digest[:HASH_SIZE])
        if request < self._settled:
            self._settled = 0
            self._running = blake2b(digest_size=16)

    def hash(self, request: int) -> bytes:
        start = request * _ENTRY + 1
        return bytes(self._view[start : start + HASH_SIZE])

    def digest(self, issued: int) -> str:
        """Over the outcomes of the first ``issued`` requests in order of their numbers, as hexadecimal digits."""
        end = self._settled
        while end < issued and self._view[end * _ENTRY] != Outcome.OPEN:
            end += 1
        self._running.update(self._view[self._settled * _ENTRY : end * _ENTRY])
        self._settled = end
        total = self._running.copy()
        total.update(self._view[end * _ENTRY : issued * _ENTRY])
        return total.hexdigest()
