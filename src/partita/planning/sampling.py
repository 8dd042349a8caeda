"""Lazy profiling: which ⟨t, b⟩ to measure next, and when the table is good enough.

The paper measures the whole grid (Packrat §3.2). Here promising points are looked at once, briefly, the cheap
ones first. Then time goes where it can still change a plan. The optimizer takes points at their mean plus one
standard error, so that no plan is chosen for its luck; what remains to fear is that a better plan looked bad.
So for every batch B the plan that would be chosen now is compared with the best that there would be if
everything were as fast as is plausible. Where the two differ, the points on which both spend their time are
worth measuring, or measuring again; where they agree for all B, nothing that is left can matter. How much
single iterations differ, and so how well a mean is known, is learnt from all points together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InvalidInput
from partita.planning.noise import learnt
from partita.planning.sampling_bounds import plausible, second_opinion
from partita.planning.sampling_frontier import UNKNOWN_MS, Floats, FrontierSolver
from partita.planning.sampling_iterations import IterationRule, Sample

_SERIOUS = 0.05
"""A regret that hurts. While one is plausible, batches least certain count much more than many nearly so;
then all that may be better count, for what is left is a few near ties that decide most batches."""
_SERIOUS_POWER, _MILD_POWER = 16, 4
_UNKNOWN_GAIN = 0.3
"""Most that measuring an unknown point is taken to sharpen its bound, as a fraction."""
_DISCOUNT = 0.7
"""A first look is worth it unless the point is slower per item than a smaller one by more than this."""
_TYPICAL_ITERATIONS = 6
LEAST_LOOK_S = 0.1
"""A first look may take so long, however little time there is."""
_REVISIT_GAIN = 1.25
"""Each later visit narrows the standard error by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSettings:
    """What to profile, and how well.

    Plans are wanted for every B = 1..`max_items` (default `max_batch`) and every point ⟨t, b⟩ with t up to
    `cores` and b in `sizes` (default the powers of two up to `max_batch`). A point is worth no more time
    once the regret of no B can be above `tolerance`.
    """

    cores: int
    max_batch: int = 1024
    sizes: tuple[int, ...] = ()
    max_items: int = 0
    tolerance: float = 0.01
    confidence: float = 3.0
    """Standard errors that a measured mean may plausibly be off."""
    guess_confidence: float = 1.25
    """Spreads that the guess for a point not measured may plausibly be off."""
    known_error: float = 0.004
    """Relative standard error at which a point is not measured again."""
    look: IterationRule = field(
        default_factory=lambda: IterationRule(relative_error=0.01, timed_s=0.25, min_iterations=1)
    )
    again: IterationRule = field(default_factory=lambda: IterationRule(min_iterations=1))
    look_share: float = 0.2
    """Of the budget, loading not counted, for first looks."""
    look_limit: float = 0.01
    """Of the budget, for one first look, where that is more than an even share of the time for all."""
    always_look: float = 0.003
    """Of the budget: a look that costs less needs no promise."""
    least_gain: float = -inf
    """Per item, as a fraction: larger batches than one that gained less on the one below are left out."""
    start_s: float = 0.0
    """What the first point of a thread count costs beforehand: its worker must load."""

    def __post_init__(self) -> None:
        if self.cores < 1 or self.max_batch < 1:
            raise InvalidInput(f"cores {self.cores}, largest batch {self.max_batch}: both must be 1 or more")
        if not self.sizes:
            object.__setattr__(self, "sizes", tuple(1 << k for k in range(self.max_batch.bit_length())))
        if not self.max_items:
            object.__setattr__(self, "max_items", max(self.max_batch, self.sizes[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Instruction: visit ⟨threads, batch⟩ under this rule and `record` the outcome, or `fail`."""

    threads: int
    batch: int
    rule: IterationRule
    expected_s: float


class LazySampler:
    """Ask `next`, measure, `record`; `samples` is a usable table at every moment.

    To go on with an earlier table, give the points that it holds as `measured`.
    """

    def __init__(
        self,
        settings: SamplerSettings,
        *,
        budget_s: float,
        measured: Iterable[tuple[int, int, Sample]] = (),
    ) -> None:
        self._settings = settings
        self._budget_s = budget_s
        shape = (settings.cores, len(settings.sizes))
        self._column = {size: k for k, size in enumerate(settings.sizes)}
        self._mean_ms = np.full(shape, np.nan)
        self._error = np.full(shape, np.nan)
        self._iterations = np.full(shape, float(_TYPICAL_ITERATIONS))
        self._variance = np.full(shape, np.nan)
        self._failed: NDArray[np.bool_] = np.zeros(shape, dtype=bool)
        self._samples: dict[tuple[int, int], Sample] = {}
        self._solver = FrontierSolver(
            cores=settings.cores, sizes=settings.sizes, max_items=settings.max_items
        )
        for threads, batch, sample in measured:
            if threads <= settings.cores and batch in self._column:
                self.record(threads, batch, sample)

    @property
    def samples(self) -> Mapping[tuple[int, int], Sample]:
        """All points measured, by (threads, batch)."""
        return MappingProxyType(self._samples)

    def record(self, threads: int, batch: int, sample: Sample) -> None:
        """Take what a visit found; `sample` holds the earlier visits as well."""
        at = (threads - 1, self._column[batch])
        self._samples[threads, batch] = sample
        self._mean_ms[at] = sample.mean_ms
        self._iterations[at] = sample.iterations
        self._variance[at] = sample.variance / sample.mean_ms**2
        self._leave_out(*at)

    def _leave_out(self, row: int, column: int) -> None:
        """Look at no larger batches where this one is hardly better than that below: it is used instead."""
        sizes = self._settings.sizes
        if column == 0 or np.isnan(self._mean_ms[row, column - 1]):
            return
        each = self._mean_ms[row, column] / sizes[column]
        if each > (1.0 - self._settings.least_gain) * self._mean_ms[row, column - 1] / sizes[column - 1]:
            self._failed[row, column + 1 :] |= np.isnan(self._mean_ms[row, column + 1 :])

    def fail(self, threads: int, batch: int) -> None:
        """Take that the point cannot be run: it, and larger batches with as many threads, are left out."""
        self._failed[threads - 1, self._column[batch] :] = True

    def next(self, left_s: float) -> Measure | None:
        """Return what to measure in the `left_s` seconds that are left; None when nothing is worth it."""
        if left_s <= 0:
            return None
        guess, spread = plausible(self._mean_ms, self._settings.sizes)
        self._judge()
        return self._first(guess) or self._look(guess, left_s) or self._sharpen(guess, spread, left_s)

    @property
    def _room_s(self) -> float:
        """The budget without what loading took of it."""
        loaded = int(np.any(~np.isnan(self._mean_ms), axis=1).sum())
        return max(0.0, self._budget_s - loaded * self._settings.start_s)

    @property
    def _fair_s(self) -> float:
        """An even share for each point of the time for first looks."""
        return max(LEAST_LOOK_S, self._settings.look_share * self._room_s / self._failed.size)

    def _judge(self) -> None:
        """Work out how well the mean of each point is known, by what all have shown of the noise."""
        known = ~np.isnan(self._mean_ms)
        noise = learnt(self._iterations[known], self._variance[known])
        self._error = noise.error(self._iterations, self._variance)

    def _first(self, guess: Floats) -> Measure | None:
        """Return the smallest batch for a thread count without any, far from those that have one."""
        missing = np.flatnonzero(np.isnan(self._mean_ms[:, 0]) & ~self._failed[:, 0])
        if not missing.size:
            return None
        begun = np.flatnonzero(~np.isnan(self._mean_ms[:, 0]))
        row = int(missing[-1])
        if begun.size:
            far = np.abs(missing[:, None] - begun[None, :]).min(axis=1)
            row = int(missing[far.argmax()])
        expected_ms = guess[row, 0] if np.isfinite(guess[row, 0]) else 0.0
        return self._measure(row, 0, expected_ms / 1e3)

    def _look(self, guess: Floats, left_s: float) -> Measure | None:
        """Return the cheapest promising point that nobody has looked at yet."""
        settings = self._settings
        cost_s = self._costs_s(guess, settings.look)
        room_s = left_s - (1 - settings.look_share) * self._room_s
        wanted = np.isnan(self._mean_ms) & ~self._failed & (cost_s <= room_s)
        wanted &= cost_s <= max(settings.look_limit * self._budget_s, self._fair_s)
        sizes = np.asarray(settings.sizes)
        least = np.fmin.reduce(self._mean_ms / sizes, axis=1, initial=np.inf)[:, None]  # ms per item
        wanted &= (guess * _DISCOUNT / sizes < least) | (cost_s <= settings.always_look * self._budget_s)
        if not wanted.any():
            return None
        row, column = divmod(int(np.where(wanted, cost_s, np.inf).argmin()), len(sizes))
        return self._measure(row, column, float(cost_s[row, column]))

    def _sharpen(self, guess: Floats, spread: Floats, left_s: float) -> Measure | None:
        """Return the point that settles most uncertainty of plans for its time."""
        settings = self._settings
        known = ~np.isnan(self._mean_ms)
        middle, error = second_opinion(self._mean_ms, self._error, settings.sizes)
        more = self._more_iterations(guess)
        gain = settings.confidence * (error - self._narrowed(error, more))
        gain = np.where(known, gain, settings.guess_confidence * np.minimum(spread, _UNKNOWN_GAIN))
        gain[known & (self._error <= settings.known_error)] = 0.0
        middle = np.where(known, middle, np.log(guess))
        off = np.where(known, settings.confidence * error, settings.guess_confidence * spread)
        look_s = self._costs_s(guess * np.exp(np.minimum(spread, 1.0)), settings.look)
        cost_s = np.where(known, more * guess / 1e3, look_s)
        score = np.where((cost_s <= left_s) & ~self._failed, self._weights(middle - off) * gain / cost_s, 0.0)
        if not score.max() > 0.0:
            return None
        row, column = divmod(int(score.argmax()), score.shape[1])
        return self._measure(row, column, float(cost_s[row, column]), int(more[row, column]))

    def _more_iterations(self, guess: Floats) -> Floats:
        """Return how many iterations a further visit has, (threads, sizes)."""
        rule = self._settings.again
        wanted = np.ceil(self._iterations * (_REVISIT_GAIN**2 - 1.0))
        in_time = np.ceil(rule.timed_s / (guess / 1e3))
        more: Floats = np.clip(np.minimum(wanted, in_time), rule.min_iterations, rule.max_iterations)
        return more

    def _narrowed(self, error: Floats, more: Floats) -> Floats:
        """Return what is left of the standard errors after so many iterations more."""
        single = self._error * np.sqrt(self._iterations)
        narrowed: Floats = 1.0 / np.sqrt(1.0 / error**2 + more / single**2)
        return narrowed

    def _weights(self, least: Floats) -> Floats:
        """Return how much each point's latency matters to batches whose plan is in doubt, (threads, sizes).

        `least` is the logarithm of what each point takes at its plausible best.
        """
        known = ~np.isnan(self._mean_ms)
        fast = self._solver.solve(np.where(~self._failed | known, np.exp(least), UNKNOWN_MS))
        chosen = self._solver.solve(np.where(known, self._mean_ms * (1.0 + self._error), UNKNOWN_MS))
        excess = np.zeros(len(fast.latency_ms))
        excess[1:] = self._excess(chosen.latency_ms[1:], fast.latency_ms[1:])
        return fast.spent(excess) + chosen.spent(excess)

    def _excess(self, chosen_ms: Floats, fast_ms: Floats) -> Floats:
        """Return how badly each batch may fare: its plan with caution, against the best at the fastest."""
        gap = np.log(chosen_ms / fast_ms)
        power = _SERIOUS_POWER if gap.max() > _SERIOUS else _MILD_POWER
        excess: Floats = np.where(gap > self._settings.tolerance, gap, 0.0) ** power
        return excess

    def _costs_s(self, guess: Floats, rule: IterationRule) -> Floats:
        """Return the seconds that a visit under this rule takes, (threads, sizes)."""
        one_s = guess / 1e3
        known = ~np.isnan(self._mean_ms)
        warm = np.clip(np.ceil(rule.warm_up_s / one_s), 1, rule.warm_up)
        warm = np.where(known & (one_s >= rule.warm_up_s), 0, warm)
        in_time = np.maximum(np.ceil(rule.timed_s / one_s), rule.min_iterations)
        iterations = np.minimum(np.minimum(self._iterations, in_time), rule.max_iterations)
        begun = known.any(axis=1)[:, None]
        cost: Floats = (warm + iterations) * one_s + np.where(begun, 0.0, self._settings.start_s)
        return cost

    def _measure(self, row: int, column: int, expected_s: float, iterations: int = 0) -> Measure:
        threads, batch = row + 1, self._settings.sizes[column]
        rule = self._settings.look
        if (threads, batch) in self._samples:
            rule = replace(self._settings.again, relative_error=0.0, max_iterations=iterations)
        return Measure(threads=threads, batch=batch, rule=rule, expected_s=expected_s)
