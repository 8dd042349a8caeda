"""What load to make."""

from dataclasses import dataclass
from enum import StrEnum

from partita.core.errors import InvalidInput


class Arrivals(StrEnum):
    """When an open loop sends."""

    POISSON = "poisson"
    """Independent users: gaps are exponentially distributed."""
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """How to load: `concurrency` requests in flight at all times, or `rate` requests each second."""

    concurrency: int | None = None
    rate: float | None = None
    arrivals: Arrivals = Arrivals.POISSON
    duration_s: float = 10.0
    warmup_s: float = 1.0
    drain_s: float = 10.0
    """How long answers are waited for after the window."""
    max_connections: int = 512
    """Of an open loop; a request that finds none free waits, and its wait counts."""
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise InvalidInput("give either a concurrency or a rate")
        if self.concurrency is not None and self.concurrency < 1:
            raise InvalidInput(f"concurrency {self.concurrency}: must be 1 or more")
        if self.rate is not None and not 0 < self.rate < 1e7:
            raise InvalidInput(f"rate {self.rate}: must be above 0 and below 10 million requests a second")
        if not self.duration_s > 0 or self.warmup_s < 0:
            raise InvalidInput("the duration must be above 0 and the warm-up 0 or more, in seconds")
