"""The whole grid of Packrat §3.2, in random order, behind the same questions as lazy profiling."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from partita.planning.sampling import Measure
from partita.planning.sampling_iterations import IterationRule, Sample

PAPER_RULE = IterationRule(warm_up_s=float("inf"), timed_s=float("inf"), min_iterations=5)
"""10 warm-up and up to 100 timed iterations, fewer once the mean is known to 2 %."""


class GridSampler:
    """Every ⟨t, b⟩ once, for t up to `cores` and all `sizes`; drawn by `rng`: drift spreads evenly."""

    def __init__(
        self,
        *,
        cores: int,
        sizes: tuple[int, ...],
        rng: np.random.Generator,
        rule: IterationRule = PAPER_RULE,
        measured: Iterable[tuple[int, int, Sample]] = (),
    ) -> None:
        points = [(t, b) for t in range(1, cores + 1) for b in sizes]
        self._rule = rule
        self._samples = {(t, b): sample for t, b, sample in measured}
        self._left = [points[i] for i in rng.permutation(len(points)) if points[i] not in self._samples]

    @property
    def samples(self) -> Mapping[tuple[int, int], Sample]:
        """All points measured, by (threads, batch)."""
        return MappingProxyType(self._samples)

    @property
    def points_left(self) -> int:
        """Points still to be measured."""
        return len(self._left)

    def next(self, left_s: float) -> Measure | None:
        """Return the next point while there is time; None at the end."""
        if left_s <= 0 or not self._left:
            return None
        threads, batch = self._left[-1]
        return Measure(threads=threads, batch=batch, rule=self._rule, expected_s=0.0)

    def record(self, threads: int, batch: int, sample: Sample) -> None:
        """Take what a visit found."""
        self._samples[threads, batch] = sample
        self._left = [point for point in self._left if point != (threads, batch)]

    def fail(self, threads: int, batch: int) -> None:
        """Take that the point cannot be run: it, and larger batches with as many threads, are left out."""
        self._left = [(t, b) for t, b in self._left if t != threads or b < batch]
