"""Being an ordinary user for the length of a command, also where tests run as root."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

USER = 65534
"""Nobody: a user who owns nothing and may do nothing special."""
_NEEDED = (Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[2])
"""What a command needs to read: the interpreter, the installed packages, this project."""


def as_ordinary_user(folder: Path) -> Sequence[str]:
    """What to put before a command so that an ordinary user runs it; nothing, if one does anyway.

    Where the interpreter or the project lies in a folder that is closed to others (root's home, often), the command
    sees just these two there, in a mount namespace of its own. ``folder``: for a mount point, an empty one.
    """
    if os.geteuid() != 0:
        return ()
    lines = ["umask 022", "mount --make-rprivate /"]
    for closed, inside in _closed().items():
        lines += [f"mount --rbind '{closed}' '{folder}'", f"mount -t tmpfs -o mode=755 tmpfs '{closed}'"]
        for path in inside:
            lines += [f"mkdir -p '{path}'", f"mount --rbind '{folder}/{path.relative_to(closed)}' '{path}'"]
        lines.append(f"umount -l '{folder}'")
    lines.append(f'exec setpriv --reuid={USER} --regid={USER} --clear-groups "$@"')
    return ("unshare", "--mount", "sh", "-ec", "\n".join(lines), "sh")


def _closed() -> dict[Path, list[Path]]:
    """Folders that others may not enter, with what they need of each."""
    found: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(path.resolve() for path in _NEEDED):
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & 0o001:
                found.setdefault(parent, []).append(path)
                break
    return found
