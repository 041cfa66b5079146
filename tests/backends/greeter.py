"""The smallest node there is: answers ``hello`` on its control socket, and ends as its configuration says."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path


def main(argv: list[str]) -> int:
    """Serve until SIGTERM; ``exit`` in the configuration ends it at once with that status."""
    config = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    print("greeter", config["name"], os.environ.get("TESTBED_RUN"), flush=True)
    if "exit" in config:
        print("as told", file=sys.stderr)
        return int(config["exit"])
    if config.get("silent"):
        time.sleep(60)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("control.sock")
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as stream:
                for line in stream:
                    request = json.loads(line)
                    answer = {"id": request["id"], "ok": True, "node": config["name"], "pid": os.getpid()}
                    stream.write(json.dumps(answer).encode() + b"\n")
                    stream.flush()
