"""The same commands for an ordinary user, who needs no sudo: in a user namespace of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ordinary import USER, as_ordinary_user

from tests.cli.testbed_process import Testbed, marked_processes

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.needs("unshare", "setpriv")]


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of that user's own, where every user may come."""
    with tempfile.TemporaryDirectory(prefix="testbed-test-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("home", "mount"):
            (folder / part).mkdir()
        if os.geteuid() == 0:
            os.chown(folder / "home", USER, USER)
        yield folder / "home"


@pytest.fixture
def testbed(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Testbed]:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    testbed = Testbed(home, as_ordinary_user(home.parent / "mount"))
    yield testbed
    if testbed.records():
        testbed.do("gc", "--all")


def test_the_testbed_runs_without_privilege(testbed: Testbed) -> None:
    up = testbed.do("up", "pair", "--format", "json")
    assert up.status == 0, up
    made = json.loads(up.out)
    (entry,) = json.loads(testbed.do("status", "--format", "json").out)
    uid = os.geteuid() or USER
    for pid in (entry["pid"], *entry["nodes"].values()):
        assert Path(f"/proc/{pid}").stat().st_uid == uid
    host, _, port = made["nodes"]["w1"]["locator"].partition(":")
    code = f"import socket; socket.create_connection(('{host}', {port}), timeout=2)"
    reached = testbed.do("exec", "pair", "w0", "--", sys.executable, "-c", code)
    assert reached.status == 0, reached
    assert testbed.do("down").status == 0
    assert (testbed.records(), marked_processes([made["run_id"]])) == ([], [])
    wire = json.loads((Path(made["folder"]) / "wire.json").read_text())
    assert wire["sched"] == "other", "real time is not for ordinary users, and the run says so"


def test_what_a_kill_leaves_is_collected_by_the_same_user(testbed: Testbed) -> None:
    made = json.loads(testbed.do("up", "pair", "--format", "json").out)
    left = testbed.do("exec", "pair", "w0", "--", "sh", "-c", "setsid sleep 60 </dev/null >/dev/null 2>&1 &")
    assert left.status == 0, left
    (entry,) = json.loads(testbed.do("status", "--format", "json").out)
    os.kill(entry["pid"], signal.SIGKILL)
    assert testbed.do("gc").status == 0
    assert (testbed.records(), marked_processes([made["run_id"]])) == ([], [])


def test_doctor_says_what_an_ordinary_user_has(testbed: Testbed) -> None:
    done = testbed.do("doctor", "--format", "json")
    assert done.status == 0, done
    told = json.loads(done.out)
    states = {finding["name"]: finding["state"] for finding in told["findings"]}
    assert told["fit"] is True
    assert states["privilege"] == states["packet sockets"] == "ok"
    assert states["real-time scheduling"] == "absent"


def test_where_user_namespaces_are_forbidden_it_says_so_with_status_4(testbed: Testbed, home: Path) -> None:
    """Forbidden here by a limit of one's own: inside a user namespace in which no further one may be made."""
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
    prefix = (
        *as_ordinary_user(home.parent / "mount"),
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-ec",
        forbid,
        "sh",
    )
    forbidden = Testbed(home, prefix)
    done = forbidden.do("up", "pair")
    assert done.status == 4, done
    assert "cannot make a user namespace" in done.err
    assert forbidden.records() == []
    doctor = forbidden.do("doctor", "--format", "json")
    assert doctor.status == 4, doctor
    findings = {finding["name"]: finding for finding in json.loads(doctor.out)["findings"]}
    assert findings["privilege"]["state"] == "missing"
    assert "sysctl user.max_user_namespaces" in findings["privilege"]["mend"]


def test_a_subprocess_of_the_prefix_is_really_somebody_else(home: Path) -> None:
    prefix = as_ordinary_user(home.parent / "mount")
    said = subprocess.run([*prefix, "id", "-u"], capture_output=True, text=True, check=True)
    assert int(said.stdout) == (os.geteuid() or USER)
