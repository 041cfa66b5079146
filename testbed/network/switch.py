"""A learning switch: which ports a frame leaves by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed.network.spec import Port

AGE = 300_000_000_000
"""An address not heard from for this long (ns) is forgotten, as IEEE 802.1D has it."""

TABLE_LIMIT = 8192
"""Addresses a switch remembers. Beyond that the one learned longest ago makes room."""

_LINK_LOCAL = bytes.fromhex("0180c20000")


class Switch:
    """Forwards by destination address, learns from source addresses, floods what it does not know.

    Ports that ``close`` takes out carry nothing: that is how loops between switches are cut.
    """

    def __init__(self, name: str, ports: Sequence[Port]) -> None:
        self.name = name
        self._ports = tuple(ports)
        self._table: dict[bytes, tuple[Port, int]] = {}
        self._flood: dict[Port, tuple[Port, ...]] = {}
        self.close(())

    @property
    def addresses(self) -> dict[bytes, Port]:
        """What has been learned: address -> port."""
        return {address: port for address, (port, _) in self._table.items()}

    def close(self, ports: Iterable[Port]) -> None:
        """Use all ports but these, and forget every address: the ways have changed."""
        closed = set(ports)
        usable = [port for port in self._ports if port not in closed]
        self._flood = {port: tuple(other for other in usable if other != port) for port in usable}
        self._table.clear()

    def forget(self, port: Port) -> None:
        """The port went down: what was learned on it no longer holds."""
        for address in [address for address, (at, _) in self._table.items() if at == port]:
            del self._table[address]

    def forward(self, port: Port, destination: bytes, source: bytes, now: int) -> tuple[Port, ...]:
        """Ports by which a frame that came in at ``port`` leaves."""
        others = self._flood.get(port)
        if others is None:
            return ()
        table = self._table
        if not source[0] & 1:
            if len(table) >= TABLE_LIMIT and source not in table:
                del table[next(iter(table))]
            table[source] = (port, now)
        if destination[0] & 1:
            # The 16 link-local group addresses are for the neighbour only (802.1D 7.12.6): never forwarded.
            return () if destination[:5] == _LINK_LOCAL and destination[5] < 16 else others
        known = table.get(destination)
        if known is None:
            return others
        out, heard = known
        if now - heard > AGE:
            del table[destination]
            return others
        return (out,) if out != port and out in self._flood else ()
