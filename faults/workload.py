"""What runs while faults are injected, and the settings of Connex that a scenario may change."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, model_validator

from faults.declaration import Count, Strict, mistakes
from faults.units import Duration, Frequency, Size

GIB = 1024**3
_Message = Annotated[Size, Field(ge=1, le=GIB)]
_Time = Annotated[Duration, Field(ge=1)]
_Bytes = Annotated[Size, Field(ge=1)]


class Workload(Strict):
    """The pipeline (nodes/pipeline): requests enter at the source, pass the stages, and tokens reach the sink."""

    kind: Literal["pipeline"] = "pipeline"
    stages: Annotated[StrictInt, Field(ge=1, le=64)] = 3
    requests: Frequency = 50.0
    tokens: Annotated[StrictInt, Field(ge=1, le=100_000)] = 8
    """Tokens that each request brings forth."""
    activation: _Message = 8192
    token: _Message = 64
    kv: Annotated[Size, Field(le=64 * GIB)] = 1024 * 1024
    """State that moves with a stage."""
    kv_dirty: Size = 4096
    """State that each request changes at every step."""
    compute: Duration = 500_000
    """Of a stage for one step."""
    concurrency: Annotated[StrictInt, Field(ge=1, le=65_535)] = 64
    """Requests in flight at most."""
    adapter: Literal["connex", "tcp"] = "connex"

    @model_validator(mode="after")
    def _state_fits(self) -> Self:
        part = self.kv // self.concurrency
        if self.kv_dirty > part:
            where = "kv-dirty" if "kv_dirty" in self.model_fields_set else "kv"
            text = (
                f"a request changes {self.kv_dirty} B (kv-dirty) of its part of the state, which has only {part} B"
                f" (kv {self.kv} B / concurrency {self.concurrency}): enlarge kv, or lower kv-dirty or concurrency"
            )
            mistakes([((where,) if self.model_fields_set & {"kv", "kv_dirty"} else ("concurrency",), text)])
        return self

    @property
    def endpoints(self) -> tuple[str, ...]:
        return ("source", *(f"stage-{number}" for number in range(1, self.stages + 1)), "sink")


class ConnexSettings(Strict):
    """Settings of Connex (connex.Config), for all nodes of a run. What is left out keeps its default."""

    message: _Bytes | None = None
    send_buffer: _Bytes | None = None
    region: _Bytes | None = None
    precopy_goal: _Bytes | None = None
    block: _Bytes | None = None

    ack_delay: _Time | None = None
    lease: _Time | None = None
    retransmit: _Time | None = None
    retransmit_most: _Time | None = None
    control_retry: _Time | None = None
    heartbeat: _Time | None = None
    suspect_after: _Time | None = None
    dead_after: _Time | None = None
    exchange: _Time | None = None
    resolve_for: _Time | None = None
    handover_timeout: _Time | None = None

    streams: Count | None = None
    endpoints: Count | None = None
    handovers: Count | None = None
    members: Count | None = None
    bindings: Count | None = None
    precopy_rounds: Count | None = None

    def overrides(self) -> dict[str, int]:
        """What is written down, by the names of ``connex.Config``, in ns and bytes."""
        return self.model_dump(exclude_none=True)
