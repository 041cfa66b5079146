"""Locators: where a node is reached, as text (``127.0.0.1:7400``, ``[::1]:7400``)."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from connex.core.errors import ConnexError


class LocatorError(ConnexError, ValueError):
    """The text is not a locator."""


class Address(NamedTuple):
    """An IP address and a TCP port."""

    host: str
    port: int


def parse_locator(text: str) -> Address:
    """The address that the text names. Raises LocatorError, which says what was expected."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
        if not colon or bracketed != (address.version == 6) or not port.isascii() or not port.isdigit():
            raise ValueError
        if not 0 <= int(port) <= 65535:
            raise ValueError
    except ValueError:
        raise LocatorError(
            f"locator {text!r}: expected an IP address and a port, as in 10.0.0.1:7400 or [fd00::1]:7400"
        ) from None
    return Address(str(address), int(port))


def format_locator(host: str, port: int) -> str:
    """The text of an address; IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
