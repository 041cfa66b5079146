"""Lines of journals: what a record must be, as ``docs/history.md`` has it, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
_is_id = re.compile("[0-9a-f]{16}").fullmatch

_ID, _TEXT, _NUMBER = "16 hex digits", "text", "a whole number, 0 or more"
_STREAM = {"stream": _ID, "side": _TEXT}
_MESSAGE = {"stream": _ID, "message": _NUMBER, "offset": _NUMBER, "size": _NUMBER, "hash": _ID, "epoch": _NUMBER}
_HANDOVER = {"handover": _ID, "endpoint": _TEXT, "epoch": _NUMBER, "side": _TEXT, "peer": _TEXT}
_STEPS = (
    "begun",
    "prepared",
    "precopied",
    "frozen",
    "state-sent",
    "commit-sent",
    "committed",
    "completed",
    "aborted",
    "doubt",
)
_OWNED = {"endpoint": _TEXT, "epoch": _NUMBER}

FIELDS: dict[str, dict[str, str]] = {
    "node.started": {"incarnation": _ID, "locator": _TEXT, "pid": _NUMBER},
    "node.stopping": {"cause": _TEXT},
    "endpoint.hosted": {**_OWNED, "cause": _TEXT},
    "endpoint.frozen": {**_OWNED, "handover": _ID},
    "endpoint.thawed": {**_OWNED, "handover": _ID},
    "endpoint.resumed": {**_OWNED, "handover": _ID},
    "endpoint.released": {**_OWNED, "cause": _TEXT},
    "fence.promised": {**_OWNED, "source": _TEXT},
    "fence.lifted": {**_OWNED, "source": _TEXT},
    "fence.broken": {**_OWNED, "source": _TEXT},
    "binding.learned": {**_OWNED, "owner": _TEXT, "via": _TEXT},
    "stream.opened": {**_STREAM, "from": _TEXT, "to": _TEXT, "class": _TEXT, "epoch": _NUMBER},
    "stream.moved": {**_STREAM, "epoch": _NUMBER, "message": _NUMBER, "offset": _NUMBER},
    "message.sent": _MESSAGE,
    "message.delivered": _MESSAGE,
    "stream.closed": {**_STREAM, "messages": _NUMBER, "offset": _NUMBER},
    "stream.reset": {**_STREAM, "cause": _TEXT},
    "frame.refused": {"stream": _ID, "reason": _TEXT, "epoch": _NUMBER, "owned": _NUMBER, "peer": _TEXT},
    **{f"handover.{step}": _HANDOVER for step in _STEPS},
    **{f"peer.{state}": {"peer": _TEXT} for state in ("alive", "suspected", "dead", "left")},
    "channel.refused": {"text": _TEXT},
}
"""Event -> the fields it must have (``docs/history.md``). It may have more."""

_SIDES = ("sender", "receiver", "source", "target")


class HistoryError(Exception):
    """A file of the run is missing or is not what it must be."""


def read_lines(path: Path) -> tuple[list[Record], int]:
    """The objects of a file of lines, and the bytes of an unfinished last line."""
    records: list[Record] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return records, len(line)
            try:
                record = json.loads(line)
            except ValueError as error:
                raise HistoryError(f"{path}:{number}: not JSON: {error}") from error
            if not isinstance(record, dict):
                raise HistoryError(f"{path}:{number}: {type(record).__name__}: expected an object")
            records.append(record)
    return records, 0


def check_record(record: Mapping[str, Any]) -> str:
    """What is wrong with a journal record; nothing if it is right."""
    for name, kind in (("t", int), ("event", str), ("node", str)):
        if not isinstance(record.get(name), kind):
            return f"field {name}: {record.get(name)!r}: expected {kind.__name__}"
    event = record["event"]
    fields = FIELDS.get(event)
    if fields is None:
        return "" if event.startswith("app.") else f"event {event!r}: not one of docs/history.md"
    for name, kind_ in fields.items():
        if not _fits(record.get(name), kind_):
            return f"{event}: field {name}: {record.get(name)!r}: expected {kind_}"
    if "side" in fields and record["side"] not in _SIDES:
        return f"{event}: side {record['side']!r}: expected one of {', '.join(_SIDES)}"
    return ""


def _fits(value: Any, kind: str) -> bool:
    if kind == _NUMBER:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not isinstance(value, str):
        return False
    return kind == _TEXT or _is_id(value) is not None
