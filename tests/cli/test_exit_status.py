"""Exit statuses are a contract (T20): what is wrong is said on standard error, and never with a status of 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.cli import status_of
from testbed.commands import cli
from testbed.exit_status import ExitStatus, of_verdict
from testbed.run_folder import RunFolder, find_run, runs_directory

BROKEN = """\
topology: five
duration: 10s
events:
  - {at: 2s, migrate: {endpoint: stage-9, to: w4}}
  - {at: 20s, pause: {node: w1, for: 300}}
"""


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "state"))


@pytest.mark.parametrize(
    ("verdict", "warnings", "strict", "status"),
    [
        ("pass", False, False, 0),
        ("pass", True, False, 0),
        ("pass", True, True, 3),
        ("pass", False, True, 0),
        ("fail", True, True, 1),
        ("unknown", True, True, 2),
    ],
)
def test_of_a_verdict(verdict: str, warnings: bool, strict: bool, status: int) -> None:
    assert of_verdict(verdict, warnings=warnings, strict=strict) == status


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "No such command"),
        (["run", "--seed", "abc"], "not a valid integer"),
        (["run", "nosuch"], "no scenario 'nosuch'"),
        (["run", "--topology", "nosuch"], "no topology 'nosuch'"),
        (["run", "--name", "No_Such"], "No_Such"),
        (["up", "nosuch"], "no topology 'nosuch'"),
        (["up", "pair", "--name", "a/b"], "a/b"),
        (["down", "nosuch"], "nosuch"),
        (["down"], "nothing is up"),
        (["status", "nosuch"], "nosuch"),
        (["exec", "nosuch", "w0", "--", "true"], "nosuch"),
        (["check", "nosuch"], "no run 'nosuch'"),
        (["logs", "nosuch"], "no run 'nosuch'"),
        (["capture", "show", "nosuch"], "no run 'nosuch'"),
        (["validate"], "--schema"),
        (["validate", "nosuch"], "nosuch"),
    ],
)
def test_mistakes_are_64(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(arguments) == ExitStatus.USAGE
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
    assert not runs_directory().exists(), "nothing may be made before everything is checked"


def test_all_mistakes_of_a_file_are_told_with_their_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(BROKEN)
    assert status_of(["run", str(path)]) == ExitStatus.USAGE
    said = capsys.readouterr().err
    assert f"{path}:5:" in said
    assert "'300' has no unit" in said or "300 has no unit" in said
    path.write_text(BROKEN.replace("300}", "300ms}"))
    assert status_of(["validate", str(path)]) == ExitStatus.USAGE
    said = capsys.readouterr().out
    assert f"{path}:4:" in said
    assert "stage-9" in said
    assert f"{path}:5:" in said
    assert "after the end" in said


def test_a_backend_that_is_not_there_is_4(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["run", "--backend", "nosuch"]) == ExitStatus.CANNOT_RUN
    assert "there is netns" in capsys.readouterr().err
    assert not runs_directory().exists()


@pytest.mark.live
@pytest.mark.needs("raw-sockets")
def test_netem_is_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["run", "--shaper", "netem"]) == ExitStatus.CANNOT_RUN
    assert "netem" in capsys.readouterr().err
    assert not runs_directory().exists()


def test_a_required_gpu_that_is_not_there_is_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology = tmp_path / "gpu.yaml"
    topology.write_text(
        "name: gpu\ntopology:\n  nodes:\n    w0: {}\n    w1: {gpus: {count: 64, required: true}}\n"
        "  links:\n    - {endpoints: [w0:eth1, w1:eth1]}\n"
    )
    assert status_of(["run", "steady", "--topology", str(topology)]) == ExitStatus.CANNOT_RUN
    assert "w1 requires 64 GPUs" in capsys.readouterr().err
    assert not runs_directory().exists()


def test_a_defect_is_70_with_its_trace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("as if")

    monkeypatch.setattr(cli.commands["logs"], "callback", broken)
    assert status_of(["logs", "demo"]) == ExitStatus.INTERNAL
    said = capsys.readouterr().err
    assert "defect of the testbed" in said
    assert "ZeroDivisionError: as if" in said


def test_help_and_version_are_0(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["--version"], *([name, "--help"] for name in cli.commands)):
        assert status_of(arguments) == ExitStatus.PASS
    assert "Exit status: 0 pass, 1 fail, 2 unknown" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["topology", "scenario"])
def test_schemas_are_json(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["validate", "--schema", kind]) == ExitStatus.PASS
    assert json.loads(capsys.readouterr().out)["type"] == "object"


def test_everything_that_comes_with_the_testbed_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[2]
    files = [*root.glob("topologies/*.yaml"), *root.glob("faults/scenarios/*.yaml")]
    assert len(files) >= 11
    assert status_of(["validate", *map(str, files)]) == ExitStatus.PASS, capsys.readouterr().out


def test_json_on_standard_output_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["status", "--format", "json"]) == ExitStatus.PASS
    assert json.loads(capsys.readouterr().out) == []


def test_a_reader_that_goes_away_is_no_defect(hand_made: RunFolder) -> None:
    (hand_made.node("w0") / "stdout.log").write_bytes(b"a line of the node\n" * 100_000)
    command = [sys.executable, "-m", "testbed.cli", "logs", str(hand_made.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"w0 | a line of the node\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(10) == 128 + 13


def test_logs_keep_bytes_that_are_cut_anywhere(hand_made: RunFolder, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    text = "wörk ✓\n".encode()
    (hand_made.node("w1") / "stderr.log").write_bytes(text * 20_000 + b"no end")
    assert status_of(["logs", str(hand_made.path), "w1"]) == ExitStatus.PASS
    sys.stdout.flush()
    shown = capfdbinary.readouterr().out.splitlines()
    assert set(shown[:-1]) == {b"w1 ! " + text.rstrip()}
    assert shown[-1] == b"w1 ! no end"


def test_logs_of_a_node_that_is_not_there(hand_made: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["logs", str(hand_made.path), "w7"]) == ExitStatus.USAGE
    assert "w7" in capsys.readouterr().err


def test_the_name_of_a_run_finds_it_from_the_environment(hand_made: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_RUNS", str(hand_made.path.parents[1]))
    assert find_run("by-hand", runs_directory(os.environ["TESTBED_RUNS"])).path == hand_made.path
    assert status_of(["logs", "by-hand"]) == ExitStatus.PASS
