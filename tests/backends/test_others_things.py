"""What others have made survives everything that the testbed undoes and collects (T12)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.testbed_process import Testbed

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.needs("root", "raw-sockets", "unshare")]

HOST = f"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
exec {sys.executable} "$@"
"""
"""A host of the test's own: a network namespace and a /run that nobody else has."""


def test_decoys_survive(tmp_path: Path) -> None:
    """Bridges, veths, namespaces, shaping, routes, files and processes that look like the testbed's own."""
    child = [str(Path(__file__)), str(tmp_path)]
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", HOST, "sh", *child],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "decoys survived" in done.stdout


FILES = ("0badcafe.json", "0badcafe.run.json", "notes.run.json", "0badcafe.sock")


def make_decoys(folder: Path) -> subprocess.Popen[bytes]:
    """Things of others, named and marked as like the testbed's as can be. Returns a process that is one of them."""
    # Or addresses come and settle by themselves.
    Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
    for command in (
        "ip link set lo up",
        "ip link add testbed-br0 type bridge",
        "ip link set testbed-br0 up alias testbed",
        "ip link add tb0badcafe1 type veth peer name tb0badcafe2",
        "ip link set tb0badcafe1 master testbed-br0 up",
        "ip link set tb0badcafe2 up",
        "ip addr add 10.64.0.1/16 dev tb0badcafe2",
        "ip route add 10.99.0.0/16 via 10.64.0.2",
        "tc qdisc add dev tb0badcafe2 root tbf rate 1mbit burst 10kb latency 50ms",
        "ip netns add testbed-0badcafe",
        "ip -n testbed-0badcafe link add eth1 type veth peer name x0badcafe1",
        "ip -n testbed-0badcafe link set lo up",
    ):
        subprocess.run(command.split(), check=True)
    alias = ["ip", "link", "set", "tb0badcafe1", "alias", "testbed 0badcafe w0:eth1"]
    subprocess.run(alias, check=True)
    until = time.monotonic() + 10
    while not _settled():
        assert time.monotonic() < until, "the decoys do not come up"
    (folder / "state").mkdir()
    for name in FILES:
        (folder / "state" / name).write_text("not yours")
    return subprocess.Popen(["sleep", "600"], env={**os.environ, "TESTBED_RUN": "0badcafe"})


def _settled() -> bool:
    """Whether the kernel has said the last about the states of the interfaces."""
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout)
    return all(link["operstate"] == "UP" for link in links if link["ifname"] != "lo")


def snapshot(folder: Path) -> str:
    """All of it as it is now, without counters."""
    commands = ("ip link", "ip addr", "ip route", "tc qdisc", "ip netns", "ip -n testbed-0badcafe link")
    texts = [subprocess.run(one.split(), capture_output=True, text=True, check=True).stdout for one in commands]
    files = [f"{name}: {(folder / 'state' / name).read_text()}" for name in FILES]
    return "\n".join([*texts, *files])


def main(folder: Path) -> None:
    """On the test's own host: make decoys, come and go in every way, compare."""
    process = make_decoys(folder)
    testbed = Testbed(folder)
    try:
        before = snapshot(folder)
        assert "testbed 0badcafe w0:eth1" in before
        assert testbed.do("up", "pair").status == 0
        assert snapshot(folder) == before, "nothing of the host is touched, not even while it is up"
        assert testbed.do("down").status == 0
        assert testbed.do("up", "pair", "--name", "killed").status == 0
        os.kill(_keeper(folder), signal.SIGKILL)
        assert testbed.do("gc").status == 0
        assert testbed.do("up", "pair", "--name", "forced").status == 0
        done = testbed.do("gc", "--all")
        assert done.status == 0, done
        assert snapshot(folder) == before, f"{before}\n--- became ---\n{snapshot(folder)}"
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    print("decoys survived")


def _keeper(folder: Path) -> int:
    os.environ["TESTBED_STATE"] = str(folder / "state")
    from testbed.registry import find

    return find(None).pid


if __name__ == "__main__":
    main(Path(sys.argv[1]))
