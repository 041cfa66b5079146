"""Progress and tables: alive on a terminal, plain lines everywhere else."""

from __future__ import annotations

import io
import os
import pty
import select

import pytest

from testbed.console import is_terminal, print_result, print_table
from testbed.progress import PlainProgress, TerminalProgress, Traffic, progress_on

SECOND = 1_000_000_000
HALF_WAY = Traffic(
    elapsed=5 * SECOND,
    duration=10 * SECOND,
    issued=250,
    done=248,
    failed=0,
    tokens=2000,
    handovers=3,
    aborted=0,
    faults=("impair",),
)

EVENTS = (
    {"t": 1, "event": "fault.begun", "id": 1, "kind": "impair", "at": 5, "for": 2 * SECOND, "link": "w0--s0",
     "direction": None, "changes": {"delay": 1}, "late_ns": 7},
    {"t": 2, "event": "fault.target-gone", "id": 1, "kind": "impair", "text": "w0 has ended"},
    {"t": 3, "event": "traffic.stopped", "complete": False, "missing": "w0 does not answer", "issued": 10, "done": 9,
     "failed": 0, "tokens": 72},
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_elsewhere_it_is_plain_lines() -> None:
    stream = io.StringIO()
    with progress_on(stream) as progress:
        assert isinstance(progress, PlainProgress)
        progress.phase("making the network")
        for event in EVENTS:
            progress.event(event)
        progress.event({"t": 1, "event": "node.started", "node": "w0", "pid": 7})
        progress.event({"t": 1, "event": "node.exited", "node": "w1", "status": 1, "expected": False})
        for _ in range(100):
            progress.traffic(HALF_WAY)
    lines = stream.getvalue().splitlines()
    assert [line.partition("] ")[2] for line in lines] == [
        "making the network",
        "fault 1, impair: link w0--s0, changes {'delay': 1}, for 2 s",
        "fault 1, impair: target-gone (w0 has ended)",
        "requests: 9 of 10 answered, 0 failed; w0 does not answer",
        "node.exited: node w1, status 1, expected False",
        "5.0 of 10 s, requests 248 of 250, tokens 2000, handovers 3, faults active: impair",
    ]
    assert not any(character in stream.getvalue() for character in "\r\x1b")


def test_on_a_terminal_it_is_drawn_over_itself() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        with progress_on(terminal) as progress:
            assert isinstance(progress, TerminalProgress)
            progress.phase("traffic")
            progress.traffic(HALF_WAY)
        terminal.flush()
        shown = ""
        while "requests 248/250" not in shown and select.select([ours], [], [], 10)[0]:
            shown += os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "requests 248/250" in shown
    assert "\x1b[" in shown


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_a_terminal_that_nobody_looks_at_is_none(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        assert is_terminal(terminal)
        monkeypatch.setenv(name, value)
        assert not is_terminal(terminal)
    os.close(ours)


def test_tables_are_aligned_and_their_cells_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["node", "state"], [["w0", "running"], ["worker-ten", "gone\nand more"]])
    assert capsys.readouterr().out.splitlines() == [
        "node        state",
        "w0          running",
        "worker-ten  gone",
    ]


def test_an_empty_table_says_so_beside_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["node"], [], empty="nothing is up")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "nothing is up\n")


def test_a_result_names_its_violations_and_ends_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    violation = {"what": "message 3 of stream 0b was never delivered", "where": {"node": "w1"}, "evidence": {}}
    check = {"name": "delivery", "verdict": "fail", "summary": "1 lost", "violations": [violation] * 12}
    print_result({"verdict": "fail", "checks": [check], "warnings": ["not real time"]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "verdict: fail"
    assert lines[-2] == "warning: not real time"
    assert sum("never delivered" in line for line in lines) == 10
