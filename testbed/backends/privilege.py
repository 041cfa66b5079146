"""Being allowed to make namespaces: as root one is; any other user becomes root of a user namespace of their own.

Nothing here needs sudo. In such a namespace real-time scheduling is not allowed, which the wire says in its statistics.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from testbed.errors import CannotRun

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_CAPABILITIES = ("CapEff:", (12, 13, 21))
"""CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN."""
_libc = ctypes.CDLL(None, use_errno=True)


def privileged() -> bool:
    """Whether this process may make and fill network namespaces as it is."""
    label, needed = _CAPABILITIES
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(label):
            held = int(line.split()[1], 16)
            return all(held >> bit & 1 for bit in needed)
    return False


def ensure_namespaces() -> None:
    """Become able to make network namespaces, if this process is not.

    Call it early: before threads, event loops and anything that caches the user id. Files that are made afterwards
    belong to the user as before. Raises CannotRun with what the machine refuses and how to allow it.
    """
    if privileged():
        return
    if threading.active_count() > 1:
        raise RuntimeError("a user namespace must be entered before any thread is started")
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWUSER) != 0:
        raise CannotRun(f"cannot make a user namespace: {os.strerror(ctypes.get_errno())}; {how_to_allow()}")
    try:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1", encoding="ascii")
    except OSError as error:
        raise CannotRun(f"cannot become root of a user namespace: {error.strerror}; {how_to_allow()}") from error
    if _libc.unshare(_CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise CannotRun(f"cannot make a network namespace inside a user namespace: {reason}; {how_to_allow()}")


_SWITCHES = (
    ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def how_to_allow() -> str:
    """What to do where user namespaces are refused."""
    for name, refusing, command in _SWITCHES:
        path = Path("/proc/sys") / name
        if path.exists() and path.read_text(encoding="ascii").strip() == refusing:
            switch = name.replace("/", ".")
            return f"this machine forbids it ({switch} is {refusing}); an administrator allows it with: {command}"
    return "a container may forbid it (seccomp); run as root, or outside of it"
