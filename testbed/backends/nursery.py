"""The warm parent: a process that has imported the nodes' program once and forks it, so that many nodes start fast.

Run as ``python -m testbed.backends.nursery SOCKET PARENT [MODULE...]``. Each message on the SOCK_SEQPACKET socket is
one JSON object. Requests bring descriptors along:

- ``{"start": name, "program": module, "argv": [...], "cwd": path, "env": {...}}`` with [namespace, stdout, stderr]
  calls ``module.main(argv)``;
- ``{"exec": number, "argv": [...], "cwd": path, "env": {...}}`` with [namespace, stdin, stdout, stderr] runs any
  command.

Answers: ``{"started": name, "pid": n}`` with a pidfd, ``{"error": text, "of": name}``, and once it is over
``{"exited": name, "pid": n, "status": wait status}``. Everything it started is killed when it ends, and it is killed
when its parent ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from testbed.backends.wire_linux import die_with_parent, enter_network_namespace

MESSAGE = 256 * 1024
"""Longest message, in bytes."""
_DESCRIPTORS = 4
_ENDED_BY_DEFECT, _NOT_EXECUTABLE, _NOT_FOUND = 70, 126, 127


class _Nursery:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pid = os.getpid()
        self._children: dict[int, tuple[Any, int]] = {}
        """pidfd -> (name, pid)"""
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        """Until the other end closes the socket."""
        while True:
            for fd, _ in self._poll.poll():
                if fd != self._control.fileno():
                    self._bury(fd)
                elif not self._answer():
                    return

    def _answer(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, MESSAGE, _DESCRIPTORS)
        if not data:
            return False
        request = json.loads(data)
        name = request["start"] if "start" in request else request["exec"]
        try:
            pid = os.fork()
            if pid == 0:
                self._become(request, fds)
            pidfd = os.pidfd_open(pid)
            self._children[pidfd] = (name, pid)
            self._poll.register(pidfd, select.POLLIN)
            self._tell({"started": name, "pid": pid}, [pidfd])
        except OSError as error:
            self._tell({"error": f"cannot start {name}: {error}", "of": name})
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _tell(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], fds or [])

    def _bury(self, pidfd: int) -> None:
        name, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._tell({"exited": name, "pid": pid, "status": status})

    def _become(self, request: dict[str, Any], fds: list[int]) -> NoReturn:
        """The child: never returns to the nursery's loop."""
        status = _ENDED_BY_DEFECT
        try:
            namespace, *standard = fds
            if "start" in request:
                standard.insert(0, os.open(os.devnull, os.O_RDONLY))
            for number, fd in enumerate(standard):
                os.dup2(fd, number)
            # By the id from before the fork: afterwards it may be somebody else's child already.
            die_with_parent(self._pid)
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            enter_network_namespace(namespace)
            os.chdir(request["cwd"])
            os.environ.update(request["env"])
            os.closerange(3, 1 + max([*fds, *self._children, self._control.fileno()]))
            if "exec" in request:
                status = self._execute(request["argv"])
            else:
                sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode) for fd, mode in enumerate("rww"))
                status = int(importlib.import_module(request["program"]).main(request["argv"]))
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:  # noqa: BLE001 - told on standard error, where whoever starts nodes looks
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(status)

    @staticmethod
    def _execute(argv: list[str]) -> int:
        """Become another program; returns what a shell would, if that cannot be."""
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
            return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def main(arguments: list[str]) -> int:
    """See the module's text."""
    control, parent, *modules = arguments
    die_with_parent(int(parent))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    with socket.socket(fileno=int(control)) as connection:
        socket.send_fds(connection, [b'{"ready": true}'], [])
        _Nursery(connection).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
