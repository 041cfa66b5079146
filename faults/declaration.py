"""How people write down what a link does, in topologies and in scenarios alike."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from faults.units import Duration, Probability, Rate, Size


def _dashed(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


class Strict(BaseModel):
    """Base of all models of files: unknown keys are errors, keys are written with dashes."""

    model_config = ConfigDict(extra="forbid", alias_generator=_dashed, populate_by_name=False, frozen=True)


class ImpairmentSpec(Strict):
    """One direction of a link. What is left out stays as it is; delays are one way."""

    delay: Duration | None = None
    jitter: Duration | None = None
    loss: Probability | None = None
    loss_burst: float | None = Field(default=None, ge=1.0, le=1e6)
    """Mean number of frames lost in a row."""
    duplicate: Probability | None = None
    reorder: Probability | None = None
    reorder_by: Duration | None = None
    corrupt: Probability | None = None
    rate: Rate | None = None
    queue: Size | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.reorder and not self.reorder_by:
            raise ValueError("reorder needs reorder-by: how long a frame is held back so that later ones overtake it")
        if self.loss_burst is not None and self.loss is None:
            raise ValueError("loss-burst says how losses come together: it needs loss beside it")
        if self.queue == 0:
            raise ValueError("a queue of 0B would lose every frame; leave it out to have it hold delay x rate")
        return self

    def changes(self) -> dict[str, int | float | bool]:
        """What is written down, by the names of ``Impairment``."""
        return self.model_dump(exclude_none=True)

    @property
    def empty(self) -> bool:
        return not self.changes()


class DirectedImpairment(Strict):
    """Both directions of a link, each with its own impairment."""

    a_to_b: ImpairmentSpec = ImpairmentSpec()
    b_to_a: ImpairmentSpec = ImpairmentSpec()
