"""Each test that the contract names exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "contract.md").read_text(encoding="utf-8")


def test_each_sentence_of_the_contract_has_the_test_that_it_names() -> None:
    named = re.findall(r"`([a-z_/]+\.py)(?:::([a-z_0-9]+))?`", PAGE)
    assert len(named) > 20
    for file, test in named:
        content = (TESTS / file).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in content, f"{file}::{test}"
