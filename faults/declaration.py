"""How people write down what a link does, in topologies and in scenarios alike; and the rules for all such models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from faults.units import Duration, Probability, Rate, Size

Flag = StrictBool
Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]


def _dashed(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


class Strict(BaseModel):
    """Base of all models of files: unknown keys are errors, keys are written with dashes."""

    model_config = ConfigDict(
        extra="forbid",
        alias_generator=_dashed,
        populate_by_name=False,
        frozen=True,
        use_attribute_docstrings=True,  # so that editors show them
    )


def mistakes(found: Iterable[tuple[tuple[str | int, ...], str]]) -> None:
    """Raise what is wrong inside a model as mistakes at their places in it: (keys that lead there, message)."""
    errors = [
        InitErrorDetails(type=PydanticCustomError("value_error", "{text}", {"text": text}), loc=place, input=None)
        for place, text in found
    ]
    if errors:
        raise ValidationError.from_exception_data("model", errors)


class ImpairmentSpec(Strict):
    """One direction of a link. What is left out stays as it is; delays are one way."""

    delay: Duration | None = None
    jitter: Duration | None = None
    """Added delay, drawn anew for each frame; their order is kept."""
    loss: Probability | None = None
    loss_burst: Annotated[float, Field(strict=True, ge=1.0, le=1e6)] | None = None
    """Mean number of frames lost in a row."""
    duplicate: Probability | None = None
    reorder: Probability | None = None
    reorder_by: Duration | None = None
    """How long such a frame is held back, so that later ones overtake it."""
    corrupt: Probability | None = None
    rate: Rate | None = None
    queue: Annotated[Size, Field(ge=1)] | None = None
    """Bytes that may wait for the line. Left out: enough to lose nothing."""
    down: Flag | None = None
    """Nothing crosses."""

    def changes(self) -> dict[str, int | float | bool]:
        """What is written down, by the names of ``Impairment``."""
        names = self.model_fields_set & set(ImpairmentSpec.model_fields)
        return {name: getattr(self, name) for name in ImpairmentSpec.model_fields if name in names}


class DirectedImpairment(Strict):
    """Both directions of a link, each with its own impairment."""

    a_to_b: ImpairmentSpec = ImpairmentSpec()
    b_to_a: ImpairmentSpec = ImpairmentSpec()
