"""How often one point is run: warm-up, timed iterations, and when its mean is known well enough."""

from dataclasses import dataclass
from math import inf, sqrt
from statistics import median

from partita.planning.noise import PRIOR


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRule:
    """Limits of one visit to one point (Packrat §5: 10 warm-up and 100 timed iterations).

    A visit stops early once the relative standard error of the mean is `relative_error`, or once
    `timed_s` seconds were timed. A first visit always has one warm-up and `min_iterations` timed
    iterations; a later one needs no warm-up where a single iteration takes `warm_up_s` or longer.
    """

    warm_up: int = 10
    warm_up_s: float = 0.03
    min_iterations: int = 2
    max_iterations: int = 100
    relative_error: float = 0.02
    timed_s: float = 2.0
    clip: float = inf
    """An iteration that took longer than so many times the median of its visit was disturbed by something
    else, and counts as if it had taken that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Mean and spread of timed iterations, milliseconds."""

    iterations: int
    mean_ms: float
    variance: float = 0.0
    """Unbiased variance of single iterations, ms²; 0 for one iteration."""

    @property
    def relative_error(self) -> float:
        """Standard error of the mean ÷ mean, by itself: three lucky iterations are not trusted alone."""
        freedom = self.iterations - 1
        prior = PRIOR.weight * (PRIOR.spread * self.mean_ms) ** 2
        spread = (prior + freedom * self.variance) / (PRIOR.weight + freedom)
        return sqrt(spread / self.iterations) / self.mean_ms

    def merged(self, other: "Sample") -> "Sample":
        """Return the sample of both visits together."""
        both = (self, other)
        n = self.iterations + other.iterations
        mean = sum(s.iterations * s.mean_ms for s in both) / n
        squares = sum((s.iterations - 1) * s.variance + s.iterations * (s.mean_ms - mean) ** 2 for s in both)
        return Sample(iterations=n, mean_ms=mean, variance=squares / (n - 1))


class PointRun:
    """One visit to one point: ask `wants_warm_up` and `wants_iteration`, run, record what it took."""

    def __init__(self, rule: IterationRule, *, before: Sample | None = None) -> None:
        self._rule = rule
        self._before = before
        self.warm_ups = 0
        self.warm_up_ms = 0.0
        self.timed_ms = 0.0
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0
        self._times_ms: list[float] = []

    @property
    def wants_warm_up(self) -> bool:
        """Whether the next run should be one whose time does not count."""
        rule, enough_ms = self._rule, self._rule.warm_up_s * 1e3
        if self._count or self.warm_ups >= rule.warm_up:
            return False
        if self._before is not None and self._before.mean_ms >= enough_ms:
            return False
        return not self.warm_ups or self.warm_up_ms < enough_ms

    @property
    def wants_iteration(self) -> bool:
        """Whether one more timed iteration is needed."""
        rule = self._rule
        if self._count < rule.min_iterations:
            return True
        if self._count >= rule.max_iterations or self.timed_ms >= rule.timed_s * 1e3:
            return False
        return self.sample.relative_error > rule.relative_error

    def record_warm_up(self, ms: float) -> None:
        """Count one warm-up run."""
        self.warm_ups += 1
        self.warm_up_ms += ms

    def record(self, ms: float) -> None:
        """Count one timed iteration."""
        self.timed_ms += ms
        self._times_ms.append(ms)
        if self._rule.clip == inf:
            self._add(ms)
            return
        most_ms = self._rule.clip * median(self._times_ms)
        self._count, self._mean, self._squares = 0, 0.0, 0.0
        for one in self._times_ms:
            self._add(min(one, most_ms))

    def _add(self, ms: float) -> None:
        self._count += 1
        off = ms - self._mean
        self._mean += off / self._count
        self._squares += off * (ms - self._mean)

    @property
    def iterations(self) -> int:
        """Timed iterations of this visit."""
        return self._count

    @property
    def visit_mean_ms(self) -> float:
        """Mean of this visit's timed iterations alone."""
        return self._mean

    @property
    def sample(self) -> Sample:
        """Everything known of the point: this visit and those before."""
        assert self._count, "no iteration recorded yet"
        variance = self._squares / (self._count - 1) if self._count > 1 else 0.0
        now = Sample(iterations=self._count, mean_ms=self._mean, variance=variance)
        return now if self._before is None else self._before.merged(now)
