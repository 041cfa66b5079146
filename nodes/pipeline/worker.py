"""A node of the testbed: one process that plays its part in the pipeline, or waits for a part to come to it.

``main(["node.json"])`` runs until SIGTERM, SIGINT or a control request ends it. Importing this module starts nothing:
no event loop, no thread, no socket, so that a process forked from one that has imported it begins at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import connex
from pipeline.adapters.connex import ConnexMessenger
from pipeline.adapters.tcp import TcpMessenger
from pipeline.application import Application
from pipeline.clock import Clock
from pipeline.parameters import ParameterError
from pipeline.port import Messenger
from pipeline.settings import Settings, SettingsError, load

_log = logging.getLogger("pipeline")

OK = 0
FAILED = 1
MISUSED = 64


class _Node(Protocol):
    """What the two kinds of node have in common."""

    async def start(self) -> object: ...

    async def stopped(self) -> None: ...

    async def close(self) -> None: ...

    def stop(self) -> None: ...


def main(argv: list[str]) -> int:
    """Run a node as ``argv[0]``, a ``node.json``, says. Returns the exit status: 0 after it was stopped, 1 if it
    could not go on, 64 if it was told nonsense.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if len(argv) != 1:
        _log.error("expected one argument, the path of node.json, but got %r", argv)
        return MISUSED
    try:
        settings = load(Path(argv[0]))
        for endpoint in settings.endpoints:
            Application.check(endpoint, settings.parameters)
        overrides = _overrides(settings.connex)
    except (SettingsError, ParameterError, OSError) as error:
        _log.error("%s", error)
        return MISUSED
    return connex.run(_run(settings, overrides))


async def _run(settings: Settings, config: connex.Config) -> int:
    failures: list[BaseException] = []
    clock = Clock()
    messenger, node = _tcp(settings) if settings.adapter == "tcp" else _connex(settings, config)
    application = Application(messenger, clock, settings.parameters)
    _watch(asyncio.get_running_loop(), node.stop, failures)
    try:
        await node.start()
        try:
            await _serve(application, node, settings)
        finally:
            await node.close()
    except (OSError, connex.ConnexError) as error:
        _log.error("%s: %s", settings.name, error)
        return FAILED
    finally:
        clock.close()
    return FAILED if failures else OK


def _tcp(settings: Settings) -> tuple[Messenger, _Node]:
    node = TcpMessenger(
        settings.name, settings.bind, settings.static, journal=settings.journal, control=settings.control
    )
    return node, node


def _connex(settings: Settings, config: connex.Config) -> tuple[Messenger, _Node]:
    node = connex.Node(
        settings.name,
        listen=settings.bind,
        locator=settings.locator,
        secret=settings.secret,
        cluster=settings.cluster,
        seeds=settings.seeds,
        journal=settings.journal,
        control=settings.control,
        config=config,
    )
    return ConnexMessenger(node), node


async def _serve(application: Application, node: _Node, settings: Settings) -> None:
    """Host what is to be hosted here, and go on until the node is stopped."""
    _log.info("%s at %s, by %s", settings.name, settings.bind, settings.adapter)
    hosting = asyncio.ensure_future(_host(application, settings))
    stopped = asyncio.ensure_future(node.stopped())
    try:
        await asyncio.wait((hosting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            hosting.result()
        await stopped
    finally:
        hosting.cancel()
        await asyncio.gather(hosting, return_exceptions=True)


async def _host(application: Application, settings: Settings) -> None:
    for endpoint in settings.endpoints:
        try:
            await application.host([endpoint])
        except connex.LocalProtocolError as error:
            # It has moved to another node since this one was told to serve it, which is as good.
            _log.warning("%s is not served here: %s", endpoint, error)
        else:
            _log.info("serves %s", endpoint)


def _watch(loop: asyncio.AbstractEventLoop, stop: Callable[[], None], failures: list[BaseException]) -> None:
    """Stop on signals, and on errors that nobody has expected: a node in an unknown state must not go on."""

    def unexpected(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        _log.error("%s", context.get("message", "unexpected error"), exc_info=error)
        if error is not None and not isinstance(error, OSError):
            failures.append(error)
            stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.set_exception_handler(unexpected)


def _overrides(fields: Any) -> connex.Config:
    """Raises SettingsError of a field that Connex's configuration has not got."""
    try:
        return dataclasses.replace(connex.Config(), **fields)
    except TypeError as error:
        raise SettingsError(f"connex: {error}; expected fields of connex.Config") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
