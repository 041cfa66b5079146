"""What happened in a run, as far as a picture shows it: owners, handovers, faults, processes, deliveries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.run_folder import RunFolder, read_lines

BINS = 240
"""Deliveries are counted in this many equal parts of the run."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted. Times in ns, CLOCK_MONOTONIC."""

    row: str
    begin: int
    end: int
    label: str
    detail: str = ""
    bad: bool = False


@dataclass(slots=True)
class Story:
    """One run, ready to be drawn."""

    begin: int
    end: int
    faults: list[Span] = field(default_factory=list)
    owners: list[Span] = field(default_factory=list)
    handovers: list[Span] = field(default_factory=list)
    processes: list[Span] = field(default_factory=list)
    deliveries: dict[str, list[int]] = field(default_factory=dict)
    """Traffic class -> messages delivered in each part of the run."""
    marks: list[tuple[int, str]] = field(default_factory=list)

    @property
    def bin_ns(self) -> int:
        return max(1, (self.end - self.begin) // BINS)


def tell(folder: RunFolder) -> Story:
    """Read the events and journals of a run. Whatever is missing is left out: a run may have been cut off."""
    events = list(read_lines(folder.events)) if folder.events.is_file() else []
    records = sorted(_records(folder), key=lambda record: record["t"])
    times = [event["t"] for event in events] or [record["t"] for record in records] or [0]
    marks = {event["event"]: event["t"] for event in events}
    begin = marks.get("traffic.started", times[0])
    end = marks.get("traffic.stopped", times[-1])
    margin = max(1, (end - begin) // 50)
    story = Story(begin - margin, max(end, begin + 1) + margin)
    story.marks = [(t, name) for name, t in marks.items() if name.startswith("traffic.")]
    story.faults = _faults(events, story.end)
    story.processes = _processes(events, story.end)
    gone = {(span.row, span.end) for span in story.processes}
    story.owners = _owners(records, gone, story.end)
    story.handovers = _handovers(records, story.end)
    story.deliveries = _deliveries(records, story)
    return story


def _records(folder: RunFolder) -> Iterator[Mapping[str, Any]]:
    nodes = folder.path / "nodes"
    for journal in sorted(nodes.glob("*/journal-*.jsonl")):
        yield from _complete(journal)


def _complete(journal: Path) -> Iterator[Mapping[str, Any]]:
    try:
        yield from read_lines(journal)
    except json.JSONDecodeError:
        return  # the checkers say so; a picture of the rest is still of use


def _faults(events: list[Mapping[str, Any]], end: int) -> list[Span]:
    ends = {event["id"]: event for event in events if event["event"] in ("fault.healed", "fault.target-gone")}
    return [
        Span(
            row=str(event.get("kind", "fault")),
            begin=event["t"],
            end=ends[event["id"]]["t"] if event["id"] in ends else end,
            label=str(event.get("kind", "fault")),
            detail=_fields(event),
            bad=event["id"] not in ends,
        )
        for event in events
        if event["event"] == "fault.begun"
    ]


def _fields(event: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in event.items() if name not in ("t", "event", "kind", "id")}
    return ", ".join(f"{name} {_plain(value)}" for name, value in shown.items())


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _processes(events: list[Mapping[str, Any]], end: int) -> list[Span]:
    begun: dict[str, Mapping[str, Any]] = {}
    spans = []
    for event in events:
        if event["event"] == "node.started":
            begun[event["node"]] = event
        elif event["event"] == "node.exited" and event["node"] in begun:
            start = begun.pop(event["node"])
            how = f"pid {start['pid']}, exit status {event['status']}"
            bad = not event["expected"]
            spans.append(Span(event["node"], start["t"], event["t"], event["node"], how, bad))
    spans += [Span(node, start["t"], end, node, f"pid {start['pid']}") for node, start in begun.items()]
    return sorted(spans, key=lambda span: (span.row, span.begin))


def _owners(records: list[Mapping[str, Any]], gone: set[tuple[str, int]], end: int) -> list[Span]:
    """Who served which endpoint when. A node that ended serves nothing from then on."""
    open_: dict[tuple[str, str], Mapping[str, Any]] = {}
    spans = []

    def close(key: tuple[str, str], at: int, why: str) -> None:
        start = open_.pop(key)
        detail = f"epoch {start['epoch']}, from {start['cause']} to {why}"
        spans.append(Span(key[0], start["t"], at, key[1], detail))

    for record in records:
        if record["event"] == "endpoint.hosted":
            open_[record["endpoint"], record["node"]] = record
        elif record["event"] == "endpoint.released":
            key = (record["endpoint"], record["node"])
            if key in open_:
                close(key, record["t"], record["cause"])
    for key in list(open_):
        exits = [at for node, at in gone if node == key[1] and at > open_[key]["t"]]
        close(key, min(exits, default=end), "the end")
    return sorted(spans, key=lambda span: (span.row, span.begin))


def _handovers(records: list[Mapping[str, Any]], end: int) -> list[Span]:
    """Each handover as its source saw it, from begun to completed or aborted."""
    steps: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in records:
        kind, _, step = record["event"].partition(".")
        if kind == "handover" and (record.get("side") == "source" or step == "committed"):
            steps.setdefault(record["handover"], {}).setdefault(step, record)
    spans = []
    for number, seen in steps.items():
        first = min(seen.values(), key=lambda record: record["t"])
        last = seen.get("aborted") or seen.get("completed")
        frozen = seen.get("frozen")
        detail = f"handover {number}: " + ", ".join(
            f"{step} +{(record['t'] - first['t']) / 1e6:.1f} ms"
            for step, record in sorted(seen.items(), key=lambda item: item[1]["t"])
        )
        spans.append(
            Span(
                row=first["endpoint"],
                begin=(frozen or first)["t"],
                end=last["t"] if last else end,
                label=f"to {first.get('peer', '?')}",
                detail=detail,
                bad="aborted" in seen or last is None,
            )
        )
    return sorted(spans, key=lambda span: (span.row, span.begin))


def _deliveries(records: list[Mapping[str, Any]], story: Story) -> dict[str, list[int]]:
    classes: dict[str, str] = {}
    counts: Counter[tuple[str, int]] = Counter()
    for record in records:
        if record["event"] == "stream.opened":
            classes[record["stream"]] = record["class"]
        elif record["event"] == "message.delivered":
            part = min(BINS - 1, max(0, (record["t"] - story.begin) // story.bin_ns))
            counts[classes.get(record["stream"], "?"), part] += 1
    return {name: [counts[name, part] for part in range(BINS)] for name in sorted({name for name, _ in counts})}
