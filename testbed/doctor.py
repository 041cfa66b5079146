"""Whether this machine can run the testbed: each thing is tried, not guessed, and what is missing says how to mend
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import IPRoute, NetlinkError

from testbed.backends.namespace import WITHOUT_DAD, inside, new_namespace
from testbed.backends.privilege import ensure_namespaces, how_to_allow, privileged
from testbed.errors import CannotRun

_SOL_PACKET, _PACKET_VNET_HDR = 263, 15
_FILES_WANTED = 4096
_PROCESSES_WANTED = 1024
_NOBODY = 65534
_PR_SET_DUMPABLE = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: str
    """``ok``; ``missing`` (needed); ``absent`` (the testbed does without, or something is slower or skipped)."""
    detail: str
    mend: str = ""


def examine() -> list[Finding]:
    """Look at everything. Makes a few namespaces of its own and lets go of them; call ``ensure_namespaces`` before."""
    return [_guarded(name, look) for name, look in _CHECKS]


def fit(findings: list[Finding]) -> bool:
    """Whether nothing that is needed is missing."""
    return all(finding.state != "missing" for finding in findings)


def _guarded(name: str, look: Callable[[str], Finding]) -> Finding:
    try:
        return look(name)
    except (OSError, CannotRun, NetlinkError) as error:
        return Finding(name, "missing", str(error), "see the message; a container may forbid it")


def _python(name: str) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(name, "ok", f"{version}, kernel {os.uname().release}, {os.cpu_count()} cores")


def _privilege(name: str) -> Finding:
    if not privileged():
        return Finding(name, "missing", "this process may not make network namespaces", how_to_allow())
    mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    who = "root" if mapped[2] != "1" else "an ordinary user, in a user namespace"
    return Finding(name, "ok", who)


def _ordinary_users(name: str) -> Finding:
    """Tried as a user who is nobody, by a process that becomes one; as oneself, where one is not root."""

    def become_root_of_a_namespace() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            # As after an exec; else the files in /proc by which a user namespace is set up stay root's.
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        ensure_namespaces()

    if not _works_in_a_child(become_root_of_a_namespace):
        return Finding(
            name, "absent", "they may not make user namespaces: only root can run the testbed", how_to_allow()
        )
    return Finding(name, "ok", "need no sudo: they may make user namespaces")


def _namespaces(name: str) -> Finding:
    os.close(new_namespace())
    return Finding(name, "ok", "can be made")


def _veth(name: str) -> Finding:
    _in_new_namespace(lambda ip: ip.link("add", ifname="doctor0", kind="veth", peer={"ifname": "doctor1"}))
    return Finding(name, "ok", "can be made")


def _ipv6(name: str) -> Finding:
    def bind(ip: IPRoute) -> None:
        ip.link("add", ifname="doctor0", kind="veth", peer={"ifname": "doctor1"})
        index = ip.link_lookup(ifname="doctor0")[0]
        ip.addr("add", index=index, address="fd00::1", prefixlen=64, flags=WITHOUT_DAD)
        ip.link("set", index=index, state="up")
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as one:
            one.bind(("fd00::1", 0))

    try:
        _in_new_namespace(bind)
    except (NetlinkError, OSError) as error:
        return Finding(name, "missing", f"no address can be used: {error}", "boot without ipv6.disable=1")
    return Finding(name, "ok", "an address can be bound at once")


def _packet_sockets(name: str) -> Finding:
    namespace = new_namespace()
    try:
        with inside(namespace), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
            raw.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    finally:
        os.close(namespace)
    return Finding(name, "ok", "AF_PACKET with virtio headers")


def _real_time(name: str) -> Finding:
    if _works_in_a_child(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))):
        return Finding(name, "ok", "SCHED_FIFO is allowed")
    return Finding(
        name,
        "absent",
        "SCHED_FIFO is not allowed: on a busy machine the emulation may lose time, which makes verdicts unknown",
        "run as root, or on an idle machine",
    )


def _netem(name: str) -> Finding:
    def add(ip: IPRoute) -> None:
        ip.link("add", ifname="doctor0", kind="veth", peer={"ifname": "doctor1"})
        ip.tc("add", "netem", ip.link_lookup(ifname="doctor0")[0], "1:", delay=1000)

    try:
        _in_new_namespace(add)
    except (NetlinkError, OSError) as error:
        return Finding(name, "absent", f"the kernel refuses it ({error}); the wire shapes instead")
    return Finding(name, "ok", "present; the wire is used all the same")


def without_netem() -> str:
    """Why netem cannot shape a run here: tried, not guessed."""
    finding = _guarded("netem", _netem)
    if finding.state == "ok":
        return "the kernel has netem, but the testbed does not shape with it yet: leave out --shaper, the wire does it"
    return f"there is no netem on this machine: {finding.detail}"


def _bridge_filter(name: str) -> Finding:
    """The wire is no bridge, so its frames pass no netfilter, whatever Docker has set up on this machine."""
    present = Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
    return Finding(name, "ok", "loaded, not in the way: no bridge is used" if present else "not loaded")


def _open_files(name: str) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES_WANTED <= hard:
        return Finding(name, "ok", f"{soft}, may be raised to {hard}")
    if hard < _FILES_WANTED:
        return Finding(name, "absent", f"{hard} at most: networks of about {hard // 10} nodes", "ulimit -n 65536")
    return Finding(name, "ok", str(soft))


def _processes(name: str) -> Finding:
    """How many more this user may start, by whatever limits them first."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = {"ulimit -u": soft} if soft != resource.RLIM_INFINITY else {}
    for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            limits[path] = int(Path(path).read_text(encoding="ascii"))
    if not limits:
        return Finding(name, "ok", "not limited")
    what, most = min(limits.items(), key=lambda limit: limit[1])
    if most < _PROCESSES_WANTED:
        return Finding(name, "absent", f"{most} by {what}: few nodes fit", f"raise {what} to {_PROCESSES_WANTED}")
    return Finding(name, "ok", f"{most} by {what}")


def _works_in_a_child(work: Callable[[], object]) -> bool:
    """Whether something is allowed that would change this process for good, so that a child tries it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except (OSError, CannotRun):
            os._exit(1)
        except BaseException:  # noqa: BLE001 - a child must not go on as its parent
            traceback.print_exc()
            os._exit(70)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _tool(command: str, use: str, package: str) -> Callable[[str], Finding]:
    def look(name: str) -> Finding:
        path = shutil.which(command, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if path is None:
            return Finding(name, "absent", f"not installed: {use}", f"apt-get install {package}")
        return Finding(name, "ok", path)

    return look


def _gpu(name: str) -> Finding:
    found = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    if not found:
        return Finding(name, "absent", "none: nodes that ask for one without requiring it run on the CPU")
    names = ""
    if shutil.which("nvidia-smi"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
            names = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    return Finding(name, "ok", names.replace("\n", ", ") or ", ".join(found))


def _in_new_namespace(work: Callable[[IPRoute], object]) -> None:
    namespace = new_namespace()
    try:
        with inside(namespace), IPRoute() as ip:
            work(ip)
    finally:
        os.close(namespace)


_CHECKS: tuple[tuple[str, Callable[[str], Finding]], ...] = (
    ("python", _python),
    ("privilege", _privilege),
    ("ordinary users", _ordinary_users),
    ("network namespaces", _namespaces),
    ("veth", _veth),
    ("IPv6", _ipv6),
    ("packet sockets", _packet_sockets),
    ("real-time scheduling", _real_time),
    ("netem", _netem),
    ("bridge netfilter", _bridge_filter),
    ("open files", _open_files),
    ("processes", _processes),
    ("ping", _tool("ping", "handy with testbed exec", "iputils-ping")),
    ("tcpdump", _tool("tcpdump", "handy for looking at captures", "tcpdump")),
    ("gpu", _gpu),
)
