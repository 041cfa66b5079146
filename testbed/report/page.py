"""The report of a run: one page that needs nothing else, to be opened from the run folder or sent around."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from testbed.report.story import tell
from testbed.report.timeline import timeline
from testbed.run_folder import RunFolder, read_lines


def page(folder: RunFolder, result: Mapping[str, Any]) -> str:
    """The page for a run that has been judged."""
    run = json.loads(folder.resolved.read_text(encoding="utf-8"))
    events = list(read_lines(folder.events)) if folder.events.is_file() else []
    story = tell(folder)
    counters = folder.captures / "counters.json"
    environment = Environment(
        loader=PackageLoader("testbed.report", "."),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters.update(ms=_milliseconds, measured=_measured, text=_text)
    return environment.get_template("page.html.j2").render(
        run=run,
        result={"warnings": [], **result},
        replay=replay_command(run),
        folder=shlex.quote(str(folder.path)),
        wire=next((event for event in events if event["event"] == "wire.stopped"), None),
        troubles=[event["text"] for event in events if event["event"] == "run.error"],
        timeline=Markup(timeline(story)),
        faults=story.faults,
        handovers=story.handovers,
        origin=next((t for t, name in story.marks if name == "traffic.started"), story.begin),
        captures=json.loads(counters.read_text(encoding="utf-8")) if counters.is_file() else {},
    )


def replay_command(run: Mapping[str, Any]) -> str:
    """The command that draws the same schedule again."""
    words = ["testbed", "run", str(run["replay"]["scenario"]), "--seed", str(run["seed"])]
    for option in ("topology", "capture", "backend"):
        if (value := run["replay"].get(option)) is not None:
            words += [f"--{option}", str(value)]
    return shlex.join(words)


def _milliseconds(ns: int | float) -> str:
    return f"{ns / 1e6:,.2f} ms"


def _measured(value: Any, name: str) -> str:
    """A measurement as people read it; its unit is in its name."""
    if name.endswith("_ns") and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _milliseconds(value)
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
