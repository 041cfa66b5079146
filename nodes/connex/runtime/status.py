"""What a node says of itself, and the commands that every node serves on its control socket (the other side is the
testbed).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from connex.core.membership import ALIVE, DEAD, LEAVING, LEFT
from connex.runtime.control import ControlError, ControlServer

if TYPE_CHECKING:
    from connex.runtime.node import Node

_STATES = {ALIVE: "alive", LEAVING: "leaving", LEFT: "left", DEAD: "dead"}


def add_commands(control: ControlServer, node: Node) -> None:
    """Serve the commands that all nodes have; an application adds its own with ``node.control.add``."""

    async def migrate(request: dict[str, Any]) -> dict[str, Any]:
        handover = await node.migrate(_text(request, "endpoint"), to=_text(request, "to"))
        return {"handover": f"{handover.id:016x}", "epoch": handover.epoch}

    async def prepare(request: dict[str, Any]) -> dict[str, Any]:
        handover = await node.prepare(_text(request, "endpoint"), to=_text(request, "to"))
        return {"handover": f"{handover:016x}"}

    async def execute(request: dict[str, Any]) -> dict[str, Any]:
        handover = await node.execute(_identifier(request, "handover"))
        return {"handover": f"{handover.id:016x}", "epoch": handover.epoch}

    async def cancel(request: dict[str, Any]) -> None:
        node.cancel(_identifier(request, "handover"), str(request.get("text", "cancelled")))

    async def leave(request: dict[str, Any]) -> dict[str, Any]:
        moved = await node.leave()
        node.stop()
        return {"moved": moved}

    control.add(
        "hello", lambda _: {"node": node.name, "incarnation": f"{node.me.incarnation:016x}", "pid": os.getpid()}
    )
    control.add("status", lambda _: status(node))
    control.add("metrics", lambda _: node.metrics())
    control.add("migrate", migrate)
    control.add("prepare", prepare)
    control.add("execute", execute)
    control.add("cancel", cancel)
    control.add("leave", leave)
    control.add("stop", lambda _: node.stop())


def status(node: Node) -> dict[str, Any]:
    """Endpoints, streams, members, peers and handovers as this node sees them, ready for JSON."""
    core = node.core
    peers: dict[str, dict[str, Any]] = {}
    for channel in node.channels():
        assert channel.peer is not None
        peer = peers.setdefault(
            channel.peer.node,
            {
                "node": channel.peer.node,
                "incarnation": f"{channel.peer.incarnation:016x}",
                "locator": channel.peer.locator,
                "state": core.peer_state(channel.peer.node),
                "channels": [],
            },
        )
        peer["channels"].append(channel.traffic_class.name)
    return {
        "endpoints": {name: {"epoch": one.epoch, "frozen": one.frozen} for name, one in node.endpoints.items()},
        "streams": [one | {"stream": f"{one['stream']:016x}"} for one in core.streams()],
        "members": [
            {
                "node": one.node,
                "incarnation": f"{one.incarnation:016x}",
                "locator": one.locator,
                "state": _STATES[one.state],
            }
            for one in core.members()
        ],
        "peers": list(peers.values()),
        "handovers": [
            {
                "handover": f"{one.id:016x}",
                "endpoint": one.endpoint,
                "epoch": one.epoch,
                "side": one.side,
                "peer": one.peer.node,
                "phase": one.phase.value,
                "bytes": one.moved,
            }
            for one in core.handovers()
        ],
    }


def _text(request: dict[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise ControlError(f"{request.get('do')}: {key!r} is {value!r}; expected a name")
    return value


def _identifier(request: dict[str, Any], key: str) -> int:
    value = _text(request, key)
    try:
        return int(value, 16)
    except ValueError:
        raise ControlError(f"{request.get('do')}: {key!r} is {value!r}; expected 16 hexadecimal digits") from None
