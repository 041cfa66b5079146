"""The timeline of a run as one SVG picture: faults, owners with their handovers, deliveries and processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from testbed.report.story import BINS, Span, Story

WIDTH = 1120
LEFT = 120
RIGHT = 16
ROW = 22
GAP = 8
HISTOGRAM = 56
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#ff9da7", "#9c755f", "#8cd17d")
"""One for each node, in the order of their names; repeated where there are more nodes."""

PLANNED = frozenset({"migrate", "join", "leave"})
"""Kinds of step that are no faults at all, only changes that must go unnoticed."""


@dataclass(slots=True)
class _Drawing:
    story: Story
    height: int = 0
    parts: list[str] = field(default_factory=list)

    def x(self, t: int) -> float:
        share = (t - self.story.begin) / max(1, self.story.end - self.story.begin)
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)

    def heading(self, text: str) -> None:
        self.height += GAP
        self.parts.append(f'<text class="heading" x="4" y="{self.height + 14}">{escape(text)}</text>')
        self.height += ROW

    def row(self, name: str) -> None:
        """Begin a row. Bars that follow lie in it."""
        self.parts.append(f'<text class="row" x="{LEFT - 8}" y="{self.height + 15}">{escape(name)}</text>')
        self.height += ROW
        self.parts.append(
            f'<line class="rule" x1="{LEFT}" y1="{self.height}" x2="{WIDTH - RIGHT}" y2="{self.height}"/>'
        )

    def bar(self, span: Span, style: str, *, inset: int = 2, text: bool = True) -> None:
        left, right = self.x(span.begin), self.x(span.end)
        width = max(2.0, right - left)
        y = self.height - ROW + inset
        label = escape(span.label) if text and width > 7 * len(span.label) + 6 else ""
        seconds = (span.end - span.begin) / 1e9
        title = escape(f"{span.label}: {seconds:.3f} s. {span.detail}")
        self.parts.append(
            f'<g><title>{title}</title><rect {style} x="{left:.1f}" y="{y}" width="{width:.1f}" '
            f'height="{ROW - 2 * inset}" rx="2"/>'
            + (f'<text class="label" x="{left + 4:.1f}" y="{y + ROW - 2 * inset - 5}">{label}</text>' if label else "")
            + "</g>"
        )


def timeline(story: Story) -> str:
    """The picture, ready to stand in a page. Every bar says its times and details when pointed at."""
    drawing = _Drawing(story)
    colours = _colours(story)
    _axis(drawing)
    if story.faults:
        drawing.heading("faults")
        for lane in _lanes(story.faults):
            drawing.row(lane[0].label)
            for span in lane:
                drawing.bar(span, _fault_style(span))
    drawing.heading("endpoints, by owner")
    for endpoint in sorted({span.row for span in story.owners}):
        drawing.row(endpoint)
        for span in _of(story.owners, endpoint):
            drawing.bar(span, f'fill="{colours.get(span.label, "#888")}"')
        for span in _of(story.handovers, endpoint):
            drawing.bar(span, 'class="handover aborted"' if span.bad else 'class="handover"', inset=5, text=False)
    if story.deliveries:
        drawing.heading("messages delivered")
        for name, counts in story.deliveries.items():
            _histogram(drawing, name, counts)
    drawing.heading("processes")
    for node in sorted({span.row for span in story.processes}, key=_natural):
        drawing.row(node)
        for span in _of(story.processes, node):
            style = 'class="unexpected"' if span.bad else f'fill="{colours.get(node, "#888")}"'
            drawing.bar(span, style, inset=7, text=False)
    _marks(drawing)
    return (
        f'<svg viewBox="0 0 {WIDTH} {drawing.height + GAP}" role="img" aria-label="timeline of the run">'
        + "".join(drawing.parts)
        + "</svg>"
    )


def _colours(story: Story) -> dict[str, str]:
    nodes = sorted({span.row for span in story.processes} | {span.label for span in story.owners}, key=_natural)
    return {node: COLOURS[number % len(COLOURS)] for number, node in enumerate(nodes)}


def _fault_style(span: Span) -> str:
    if span.bad:
        return 'class="unhealed"'
    return 'class="planned"' if span.row in PLANNED else 'class="fault"'


def _natural(name: str) -> tuple[str, int]:
    """Sort w2 before w10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def _of(spans: Iterable[Span], row: str) -> list[Span]:
    return [span for span in spans if span.row == row]


def _lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """Faults of one kind share a row as long as they do not overlap."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.row, span.begin)):
        for lane in lanes:
            if lane[0].row == span.row and lane[-1].end <= span.begin:
                lane.append(span)
                break
        else:
            lanes.append([span])
    return lanes


def _axis(drawing: _Drawing) -> None:
    """Seconds since traffic started."""
    story = drawing.story
    origin = next((t for t, name in story.marks if name == "traffic.started"), story.begin)
    seconds = max(1, (story.end - story.begin) // 1_000_000_000)
    step = next(step for step in (1, 2, 5, 10, 30, 60, 300, 3600) if seconds / step <= 16 or step == 3600)
    drawing.height = ROW
    for number in range(0, seconds + 1, step):
        t = origin + number * 1_000_000_000
        if t <= story.end:
            drawing.parts.append(
                f'<text class="tick" x="{drawing.x(t):.1f}" y="14">{number} s</text>'
                f'<line class="grid" x1="{drawing.x(t):.1f}" y1="18" x2="{drawing.x(t):.1f}" y2="100%"/>'
            )


def _histogram(drawing: _Drawing, name: str, counts: Sequence[int]) -> None:
    most = max(counts) or 1
    step = (WIDTH - LEFT - RIGHT) / BINS
    base = drawing.height + HISTOGRAM - 4
    bars = "".join(
        f"M{LEFT + part * step:.1f} {base}v{-count / most * (HISTOGRAM - 10):.1f}h{step:.2f}V{base}z"
        for part, count in enumerate(counts)
        if count
    )
    rate = most / (drawing.story.bin_ns / 1e9)
    drawing.parts.append(
        f'<text class="row" x="{LEFT - 8}" y="{drawing.height + 24}">{escape(name)}</text>'
        f'<text class="row small" x="{LEFT - 8}" y="{drawing.height + 40}">most {rate:.0f}/s</text>'
        f'<path class="deliveries" d="{bars}"><title>{escape(name)}: {sum(counts)} messages</title></path>'
        f'<line class="rule" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>'
    )
    drawing.height += HISTOGRAM


def _marks(drawing: _Drawing) -> None:
    for t, name in drawing.story.marks:
        x = f"{drawing.x(t):.1f}"
        drawing.parts.append(
            f'<line class="mark" x1="{x}" y1="18" x2="{x}" y2="{drawing.height}"><title>{escape(name)}</title></line>'
        )
