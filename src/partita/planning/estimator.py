"""The batch-size estimator (Packrat §3.8): which batch size B̃ the load calls for, smoothed twice.

The depth Q̂ (items queued and in flight) is smoothed exponentially, Q̃ ← α·Q̂ + (1 − α)·Q̃; the next lower power
of two of Q̃ is an estimate B̂; the mode of the last n estimates is B̃, which is compared with the plan's B after
each reconfiguration interval. Pure: time is an argument, and the same samples give the same B̃ at any time.

Two things are added to the paper. Q̃ nears a steady depth from below and, in exact numbers, never reaches it,
so that a depth of 64 would be estimated as 32: a power of two counts as reached from `tolerance` below it.
And B̂ is of that part of the depth which the load itself brings about: what only gathered is cut (`backlog`).
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import frexp, isfinite

from partita.core.errors import InvalidInput

_ON_TIME = 1e-9
"""An interval of which this many seconds are missing has passed: sums of times are not exact."""


class Trigger(StrEnum):
    """Why a plan is looked at again."""

    DEPTH = "depth"
    """B̃ is no longer the plan's B."""
    TIMEOUTS = "timeouts"
    """Batches are mostly formed by the batch timeout, and not because they are full: B is too large."""
    DELAYS = "delays"
    """Items wait long before they are dispatched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorRules:
    """How the batch size is estimated. Raises `InvalidInput` for values that cannot be."""

    alpha: float = 0.6
    """Weight of the newest depth, above 0 and at most 1."""
    window: int = 8
    """n, the number of estimates that the mode is taken of."""
    interval_s: float = 5.0
    """The reconfiguration interval: how often B̃ is compared with B."""
    samples: int = 10
    """Samples in an interval."""
    tolerance: float = 0.05
    """A power of two counts as reached from this share below it."""
    max_batch: int = 1024
    """Largest B̃."""
    timeout_share: float = 0.5
    """Share of an interval's batches, from which on timeouts are frequent."""
    long_delay: float = 2.0
    """A mean queueing delay is long from this many times the plan's latency on."""

    def __post_init__(self) -> None:
        _require(0.0 < self.alpha <= 1.0, f"alpha {self.alpha:g}: above 0, at most 1")
        _require(self.window >= 1, f"window {self.window}: at least 1 estimate")
        _require(
            isfinite(self.interval_s) and self.interval_s > 0, f"interval {self.interval_s:g} s: above 0"
        )
        _require(self.samples >= 1, f"samples {self.samples}: at least 1 in an interval")
        _require(0.0 <= self.tolerance < 0.5, f"tolerance {self.tolerance:g}: 0 or more, below 0.5")
        _require(self.max_batch >= 1, f"largest batch {self.max_batch}: at least 1")
        _require(0.0 < self.timeout_share <= 1.0, f"timeout share {self.timeout_share:g}: above 0, at most 1")
        _require(self.long_delay > 0.0, f"long delay {self.long_delay:g}: above 0")

    @property
    def sample_s(self) -> float:
        """Time from one sample to the next, seconds."""
        return self.interval_s / self.samples


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise InvalidInput(f"batch-size estimator: {text}")


class BatchSizeEstimator:
    """Follows one model's depth. Make a sample every `rules.sample_s`, and compare after each interval."""

    def __init__(self, rules: EstimatorRules, *, batch: int, now_s: float) -> None:
        self.rules = rules
        self.depth: float | None = None
        """Q̃, with what has gathered; None before the first sample."""
        self._carried: float | None = None
        """Q̃ of what the load itself brings about, which estimates are made of."""
        self._estimates: deque[int] = deque(maxlen=rules.window)
        self._batch = batch
        self._compared_s = now_s

    @property
    def agrees(self) -> bool:
        """Whether the newest estimate is B̃; where it is not, the depth may be on its way elsewhere."""
        return bool(self._estimates) and self._estimates[-1] == self._batch

    @property
    def batch(self) -> int:
        """B̃: the mode of the last n estimates; what was given before any sample."""
        return self._batch

    def observe(self, depth: float, carried: float | None = None) -> None:
        """Take one sample of the depth, items queued and in flight; `carried` is it without what gathered."""
        if not (isfinite(depth) and depth >= 0.0):
            raise InvalidInput(f"depth {depth}: must be 0 or more")
        self.depth = self._smoothed(self.depth, depth)
        self._carried = self._smoothed(self._carried, depth if carried is None else min(carried, depth))
        self._estimates.append(self._power_of_two(self._carried))
        self._batch = _mode(self._estimates, self._batch)

    def _smoothed(self, before: float | None, depth: float) -> float:
        alpha = self.rules.alpha
        return depth if before is None else alpha * depth + (1.0 - alpha) * before

    def _power_of_two(self, depth: float) -> int:
        """Return B̂, the next lower power of two, at least 1."""
        _, exponent = frexp(depth / (1.0 - self.rules.tolerance))
        return min(1 << max(0, exponent - 1), self.rules.max_batch)

    def is_due(self, now_s: float) -> bool:
        """Whether a reconfiguration interval has passed since the last comparison."""
        return now_s - self._compared_s >= self.rules.interval_s - _ON_TIME

    def compared(self, now_s: float) -> None:
        """The comparison was made: the next one is due an interval from now."""
        self._compared_s = now_s


def _mode(estimates: Sequence[int], before: int) -> int:
    """Return the most frequent value; of several, the one from before, else the newest."""
    count = Counter(estimates)
    most = max(count.values())
    if count[before] == most:
        return before
    return next(value for value in reversed(estimates) if count[value] == most)
