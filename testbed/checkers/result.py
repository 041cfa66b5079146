"""What a checker says: pass, fail or unknown, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["pass", "fail", "unknown", "skipped"]
SHOWN = 50
"""Findings of one check that are listed; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong, or that keeps a check from knowing."""

    what: str
    where: str
    evidence: Any = None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one checker says of one run."""

    name: str
    verdict: Verdict
    summary: str
    violations: Sequence[Violation] = ()
    """For a fail what is wrong; for an unknown what keeps it from being known."""
    measurements: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "violations": [asdict(one) for one in self.violations]}


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict on a run: fail if any check fails, else unknown if any is unknown, else pass."""

    checks: Sequence[CheckResult]

    @property
    def verdict(self) -> Verdict:
        said = {check.verdict for check in self.checks}
        order: tuple[Verdict, ...] = ("fail", "unknown", "pass")
        return next((verdict for verdict in order if verdict in said), "unknown")

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "checks": [check.to_json() for check in self.checks]}


class Findings:
    """Collects what a checker finds, and turns it into its result."""

    def __init__(self, name: str, lateness: str = "") -> None:
        """``lateness``: why no time that was measured says anything; empty if it does."""
        self.name = name
        self._lateness = lateness
        self.fails: list[Violation] = []
        self.doubts: list[Violation] = []
        self.measurements: dict[str, Any] = {}

    def fail(self, what: str, where: str, evidence: Any = None) -> None:
        """Something is wrong."""
        self.fails.append(Violation(what, where, evidence))

    def doubt(self, what: str, where: str, evidence: Any = None) -> None:
        """Something cannot be known."""
        self.doubts.append(Violation(what, where, evidence))

    def unless(self, gaps: str, what: str, where: str, evidence: Any = None) -> None:
        """Something is wrong, unless the evidence has ``gaps``: then it cannot be known."""
        if gaps:
            self.doubt(f"{what}; but {gaps}", where, evidence)
        else:
            self.fail(what, where, evidence)

    def overdue(self, what: str, where: str, evidence: Any = None) -> None:
        """Something took too long, unless the emulation itself lost time: then it cannot be known (case T46)."""
        self.unless(self._lateness, what, where, evidence)

    def result(self, passed: str, *, exercised: bool = True, nothing: str = "nothing was exercised") -> CheckResult:
        """``passed`` is the summary of a pass; without anything ``exercised`` the verdict is unknown."""
        if self.fails:
            return self._said("fail", self.fails)
        if not exercised:
            self.doubts.insert(0, Violation(nothing, "the whole run"))
        if self.doubts:
            return self._said("unknown", self.doubts)
        return CheckResult(self.name, "pass", passed, (), self.measurements)

    def skipped(self, why: str) -> CheckResult:
        return CheckResult(self.name, "skipped", why, (), self.measurements)

    def _said(self, verdict: Verdict, found: list[Violation]) -> CheckResult:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        shown = found[:SHOWN]
        if len(found) > SHOWN:
            shown = [*shown, Violation(f"{len(found) - SHOWN} more of these are not listed", "the whole run")]
        return CheckResult(self.name, verdict, f"{found[0].what}{more}", shown, self.measurements)


def percentile(values: Sequence[int], share: float) -> int:
    """The value that ``share`` of all values do not exceed. ``values`` must not be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * len(ordered) * 1_000_000) // 1_000_000) - 1))]


def milliseconds(ns: int) -> str:
    return f"{ns / 1e6:.2f} ms"
