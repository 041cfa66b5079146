"""What a judged run leaves for people and machines: ``result.json``, ``junit.xml`` and ``report.html``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from testbed.report.junit import junit
from testbed.report.page import page
from testbed.run_folder import RunFolder, write_json

__all__ = ["write_reports"]


def write_reports(folder: RunFolder, result: Mapping[str, Any]) -> None:
    """Write all three. The verdict comes first: a defect of the page must not hide it."""
    write_json(folder.result, result)
    name = json.loads(folder.resolved.read_text(encoding="utf-8"))["name"]
    folder.junit.write_bytes(junit(name, result))
    folder.report.write_text(page(folder, result), encoding="utf-8")
