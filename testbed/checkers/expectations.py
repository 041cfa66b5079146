"""What a run is judged against: the ``expect`` part of its scenario, and the limits it was made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from connex.core.config import Config

CUTOVER_LIMIT = 1_000_000_000
"""Cutover of any planned handover where the scenario says nothing stricter, ns (contract C4)."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """Times in ns, shares in [0, 1]. None where the scenario expects nothing."""

    delivery: bool = True
    """Whether order and exactly once are expected; a run that expects neither is not judged on them."""
    cutover: Mapping[str, int] = field(default_factory=dict)
    """``p50``, ``p99``, ``max`` -> limit."""
    goodput: float | None = None
    resets: Mapping[str, Any] | None = None
    """``max``: how many streams may be reset; ``causes``: with which causes (absent: any)."""
    faults_may_fail: bool = False
    """Whether a planned change may be refused or fail."""
    lease: int = Config().lease
    lag_budget: int | None = None
    adapter: str = "connex"
    """What the workload runs on: the contract is Connex's."""

    @property
    def connex(self) -> bool:
        return self.adapter == "connex"


def read_expectations(run: Mapping[str, Any]) -> Expectations:
    """From ``resolved.json``. Raises ValueError where a quantity cannot be understood."""
    expect = _plain((run.get("scenario") or {}).get("expect") or {})
    workload = run.get("workload") or {}
    delivery = expect.get("delivery") or {}
    goodput = (expect.get("goodput") or {}).get("min")
    cutover = {name: limit for name, limit in (expect.get("cutover") or {}).items() if limit is not None}
    return Expectations(
        delivery=bool(delivery.get("ordered", True) or delivery.get("exactly_once", True)),
        cutover={name: _number(limit) for name, limit in cutover.items()},
        goodput=None if goodput is None else float(_number(goodput)),
        resets=_resets(expect.get("resets")),
        faults_may_fail=expect.get("faults") == "may-fail",
        lease=int((workload.get("connex") or {}).get("lease") or Config().lease),
        lag_budget=run.get("lag_budget_ns"),
        adapter=workload.get("adapter") or "connex",
    )


def _plain(value: Any) -> Any:
    """Keys with ``_`` for ``-``, and without the ``_`` at the end of words that Python takes for itself."""
    if isinstance(value, Mapping):
        return {str(key).replace("-", "_").rstrip("_"): _plain(one) for key, one in value.items()}
    return value


def _number(value: Any) -> Any:
    """A resolved scenario holds plain numbers, in ns and shares."""
    if isinstance(value, (int, float)):
        return value
    raise ValueError(f"expect: {value!r}: expected a number, as resolved.json has them")


def _resets(value: Any) -> Mapping[str, Any] | None:
    if value is None or isinstance(value, Mapping):
        return value
    if isinstance(value, (bool, int)):
        return {} if value is True else {"max": int(value)}
    raise ValueError(f"expect.resets: {value!r}: expected a number or the keys max and causes")
