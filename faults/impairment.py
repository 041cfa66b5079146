"""What a link does to the frames that cross it, one direction at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Impairment:
    """The behaviour of one direction of a link. Times in ns, sizes in bytes, probabilities in [0, 1]."""

    delay: int = 0
    jitter: int = 0
    """Added delay, uniform in [0, jitter]; the order of frames is kept."""
    loss: float = 0.0
    loss_burst: float = 1.0
    """Mean number of frames lost in a row (1: independent losses). Gilbert's two-state model."""
    duplicate: float = 0.0
    reorder: float = 0.0
    """Probability that a frame is held back by ``reorder_by`` so that later ones overtake it."""
    reorder_by: int = 0
    corrupt: float = 0.0
    """Probability that one random bit of a frame is flipped."""
    rate: int = 0
    """Bits per second; 0: not limited."""
    queue: int = 0
    """Bytes that may wait for the line; 0: sized by the network to hold delay x rate, so that nothing is lost unless
    asked for.
    """
    down: bool = False
    """Nothing crosses."""

    def merge(self, changes: Mapping[str, int | float | bool]) -> Impairment:
        """This impairment with the named parameters changed and all others kept."""
        known = {field.name for field in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ValueError(
                f"impairment: unknown parameter {', '.join(unknown)}; expected one of {', '.join(sorted(known))}"
            )
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def in_flight(self) -> int:
        """Bytes that the line holds when it is busy: delay x rate."""
        return self.delay * self.rate // 8 // 1_000_000_000

    @property
    def per_frame(self) -> bool:
        """Whether frames are lost, doubled, reordered or corrupted one by one, so that offloaded super-frames must
        not occur.
        """
        return bool(self.loss or self.duplicate or self.reorder or self.corrupt)
