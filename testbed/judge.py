"""From a run folder to its verdict and reports. Only the folder counts, so a run can be judged again."""

from __future__ import annotations

import json
from typing import Any

from testbed.checkers import check
from testbed.report import write_reports
from testbed.report.page import replay_command
from testbed.run_folder import RunFolder, read_lines, write_json


def not_judged(folder: RunFolder) -> None:
    """Write an honest ``result.json`` for a run that may never come to be judged."""
    summary = "the run has not been judged: it is under way, or it was cut off"
    check = {"name": "run", "verdict": "unknown", "summary": summary, "violations": [], "measurements": {}}
    write_json(folder.result, {"verdict": "unknown", "checks": [check], "warnings": []})


def judge(folder: RunFolder) -> dict[str, Any]:
    """Check the run, write ``result.json``, ``junit.xml`` and ``report.html``, and return the result."""
    run = json.loads(folder.resolved.read_text(encoding="utf-8"))
    events = list(read_lines(folder.events)) if folder.events.is_file() else []
    result = {
        **check(folder.path).to_json(),
        "name": run["name"],
        "run_id": run["run_id"],
        "seed": run["seed"],
        "replay": replay_command(run),
        "warnings": [event["text"] for event in events if event["event"] == "run.warning"],
    }
    write_reports(folder, result)
    return result
