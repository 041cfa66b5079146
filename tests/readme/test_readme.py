"""The examples of the README run, and its files are right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("number", "printed"), [(0, "b'hello'\n"), (1, "b'one more' 41\n")])
def test_the_examples_of_the_library_print_what_they_should(number: int, printed: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", blocks("python")[number]],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, printed), ran.stderr


def test_every_example_is_tested() -> None:
    assert len(blocks("python")) == 2


def test_the_files_shown_are_valid(tmp_path: Path) -> None:
    names = []
    for text in blocks("yaml"):
        name = text.split()[1]
        (tmp_path / name).write_text(text, encoding="utf-8")
        names.append(name)
    assert names == ["my-topology.yaml", "my-scenario.yaml"]
    ran = subprocess.run(
        [sys.executable, "-m", "testbed.cli", "validate", *names],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_commands_shown_exist() -> None:
    shown = {line.split()[1] for block in blocks("sh") for line in block.splitlines() if line.startswith("testbed ")}
    helped = subprocess.run(
        [sys.executable, "-m", "testbed.cli", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert shown <= {line.split()[0] for line in helped.stdout.splitlines() if line.startswith("  ") and line.strip()}
    goals = {
        word
        for block in blocks("sh")
        for line in block.splitlines()
        if line.startswith("make ")
        for word in line.split("#")[0].split()[1:]
    }
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{goal}:", makefile, re.MULTILINE) for goal in goals)
