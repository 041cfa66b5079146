"""A node in a process of its own that takes counting stages; commanded over its control socket.

python -m tests.runtime.worker '{"name": "w1", "listen": "127.0.0.1:0", "seeds": [], "control": "control.sock"}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import connex
from tests.runtime.counter import Counter
from tests.runtime.lab import SECRET, config


async def main(options: dict[str, Any]) -> None:
    node = connex.Node(
        options["name"],
        listen=options["listen"],
        secret=SECRET,
        seeds=options["seeds"],
        control=Path(options["control"]),
        config=config(),
    )
    node.on_arrival("stage", Counter)

    async def host(request: dict[str, Any]) -> None:
        endpoint = await node.host(request["endpoint"])
        Counter(endpoint)
        size = request.get("state", 0)
        if size:
            endpoint.region("bulk", size).write(0, b"\x5a" * size)

    def seen(request: dict[str, Any]) -> dict[str, Any]:
        counter = node.endpoints[request["endpoint"]].application
        return {"count": counter.count, "sum": counter.sum}

    node.control.add("host", host)
    node.control.add("seen", seen)
    async with node:
        await node.stopped()


if __name__ == "__main__":
    connex.run(main(json.loads(sys.argv[1])))
