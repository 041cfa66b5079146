"""The doctor tries things for real; what is missing is told with how to mend it, and ends with status 4."""

from __future__ import annotations

import json
import os
import socket

import pytest

from testbed import doctor
from testbed.backends.privilege import how_to_allow
from testbed.cli import status_of
from testbed.doctor import Finding, examine, fit
from testbed.errors import CannotRun
from testbed.exit_status import ExitStatus


@pytest.mark.live
@pytest.mark.needs("raw-sockets")
def test_this_machine_is_looked_at_and_left_as_it_was() -> None:
    interfaces, descriptors = socket.if_nameindex(), os.listdir("/proc/self/fd")
    findings = {finding.name: finding for finding in examine()}
    assert {"privilege", "ordinary users", "network namespaces", "veth", "IPv6", "packet sockets"} <= set(findings)
    assert {"real-time scheduling", "netem", "bridge netfilter", "open files", "processes"} <= set(findings)
    assert fit(list(findings.values()))
    assert all(finding.mend for finding in findings.values() if finding.state == "missing")
    assert socket.if_nameindex() == interfaces
    assert os.listdir("/proc/self/fd") == descriptors


@pytest.mark.live
@pytest.mark.needs("raw-sockets")
def test_what_is_needed_and_missing_is_status_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> int:
        raise CannotRun("cannot make a network namespace: as if")

    monkeypatch.setattr(doctor, "new_namespace", refused)
    assert status_of(["doctor", "--format", "json"]) == ExitStatus.CANNOT_RUN
    told = json.loads(capsys.readouterr().out)
    assert told["fit"] is False
    missing = {finding["name"]: finding for finding in told["findings"] if finding["state"] == "missing"}
    assert {"network namespaces", "veth", "packet sockets"} <= set(missing)
    assert "as if" in missing["veth"]["detail"]
    assert status_of(["doctor"]) == ExitStatus.CANNOT_RUN
    assert "this machine cannot run the testbed" in capsys.readouterr().err


def test_what_is_only_handy_is_not_needed() -> None:
    assert fit([Finding("ping", "absent", "not installed"), Finding("veth", "ok", "can be made")])
    assert not fit([Finding("ping", "ok", ""), Finding("veth", "missing", "no")])


def test_how_to_allow_user_namespaces_names_a_command_or_says_that_there_is_none() -> None:
    said = how_to_allow()
    assert "sysctl" in said or "run as root" in said
