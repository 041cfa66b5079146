"""Run folders: made, named, found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.errors import UsageError
from testbed.run_folder import (
    EventLog,
    RunFolder,
    find_run,
    new_run_id,
    read_lines,
    runs_directory,
    write_json,
)


def make(runs: Path, name: str = "demo") -> RunFolder:
    folder = RunFolder.create(runs, name, new_run_id())
    write_json(folder.resolved, {"name": name})
    return folder


def test_latest_is_the_last_one_made(tmp_path: Path) -> None:
    first, second = make(tmp_path), make(tmp_path)
    assert first.path != second.path
    assert (tmp_path / "demo" / "latest").resolve() == second.path
    assert [path.name for path in (tmp_path / "demo").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("how", ["name", "path", "id", "stamp", "latest"])
def test_a_run_is_found_by(how: str, tmp_path: Path) -> None:
    folder = make(tmp_path)
    reference = {
        "name": "demo",
        "path": str(folder.path),
        "id": folder.path.name.rpartition("-")[2],
        "stamp": f"demo/{folder.path.name}",
        "latest": str(tmp_path / "demo" / "latest"),
    }[how]
    assert find_run(reference, tmp_path).path == folder.path


def test_an_unknown_run_is_told_with_what_there_is(tmp_path: Path) -> None:
    make(tmp_path, "one")
    make(tmp_path, "two")
    with pytest.raises(UsageError, match=r"no run 'three'.*one, two"):
        find_run("three", tmp_path)


def test_the_runs_directory_is_what_was_given_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_RUNS", str(tmp_path / "environment"))
    assert runs_directory(tmp_path / "given") == tmp_path / "given"
    assert runs_directory() == tmp_path / "environment"
    monkeypatch.delenv("TESTBED_RUNS")
    monkeypatch.chdir(tmp_path)
    assert runs_directory() == tmp_path / "runs"


def test_a_run_folder_that_cannot_be_made_is_a_mistake_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--runs"):
        RunFolder.create(tmp_path / "file", "demo", new_run_id())


def test_events_are_written_at_once_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    heard = []
    log.listener = heard.append
    log.record("run.started", seed=42)
    assert [event["seed"] for event in read_lines(path)] == [42]
    assert heard == list(read_lines(path))
    log.close()
    with path.open("ab") as file:
        file.write(b'{"t":1,"event":"run.fin')
    assert [event["event"] for event in read_lines(path)] == ["run.started"]


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"verdict": "pass"})
    with pytest.raises(TypeError):
        write_json(path, {"verdict": object()})
    assert json.loads(path.read_text()) == {"verdict": "pass"}
