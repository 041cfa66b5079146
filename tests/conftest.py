"""What all tests share: capabilities of this machine, asked for by name.

A test that needs a capability says ``@pytest.mark.needs("raw-sockets")``. Where it is missing the test is skipped by
name; with ``TESTBED_REQUIRE_ALL=1`` (CI) a missing capability is a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable

import pytest


def _root() -> str | None:
    return None if os.geteuid() == 0 else "needs root"


def _raw_sockets() -> str | None:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except OSError as error:
        return f"cannot open an AF_PACKET socket: {error.strerror}"
    return None


def _tool(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else f"{name} is not installed"


CAPABILITIES: dict[str, Callable[[], str | None]] = {
    "root": _root,
    "raw-sockets": _raw_sockets,
    "tcpdump": _tool("tcpdump"),
    "ping": _tool("ping"),
    "tshark": _tool("tshark"),
    "unshare": _tool("unshare"),
    "setpriv": _tool("setpriv"),
    "spin": _tool("spin"),
    "gcc": _tool("gcc"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write tests/transcripts anew from what happens now")


def pytest_configure(config: pytest.Config) -> None:
    # Whoever started this may ignore signals (nohup, a shell's background); what the tests start must not inherit that.
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    config.addinivalue_line(
        "markers", "needs(capability, ...): skipped by name where this machine lacks it, a failure in CI"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            missing = CAPABILITIES[name]()
            if missing is None:
                continue
            if os.environ.get("TESTBED_REQUIRE_ALL") == "1":
                pytest.fail(f"capability {name}: {missing}", pytrace=False)
            pytest.skip(f"capability {name}: {missing}")
