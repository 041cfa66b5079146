"""Whether a captured TCP segment is one that a kernel would have taken."""

from __future__ import annotations

_TCP = 6


def intact(data: memoryview, ip: int, tcp: int, stop: int) -> bool:
    """Whether a kernel would take this segment: its checksums are right, or its TCP checksum is one that the sender
    left to be finished by hardware which is not there (only the sum of the pseudo-header). Where not all of the segment
    was captured its checksum proves nothing, and it is taken as right.

    A sum of 16-bit words in ones' complement is the remainder by 65535 of the whole as one number.
    """
    if data[ip] >> 4 == 4:
        if int.from_bytes(data[ip:tcp][: 4 * (data[ip] & 15)], "big") % 65535:
            return False
        addresses = int.from_bytes(data[ip + 12 : ip + 20], "big")
    else:
        addresses = int.from_bytes(data[ip + 8 : ip + 40], "big")
    if stop > len(data):
        return True
    pseudo = addresses + _TCP + stop - tcp
    whole = int.from_bytes(data[tcp:stop], "big") << 8 * ((stop - tcp) & 1)
    if not (pseudo + whole) % 65535:
        return True
    field = data[tcp + 16] << 8 | data[tcp + 17]
    return not (pseudo - field) % 65535
