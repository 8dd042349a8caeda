"""Bounded greedy search over allocation matrices (ensembles paper, algorithm 2), with restarts.

From a matrix, neighbours are assessed by a benchmark and the best one is taken, as long as that is strictly
faster. Two bounds keep it short: `max_neighs` neighbours in one iteration, `max_iter` iterations in all. What
Partita adds: nothing is assessed twice; where a prediction exists, the neighbours that promise most come
first, in the place of any that were drawn; where no single change helps, one iteration looks at matrices with
two workers more or less, or one moved; and while iterations are left, the search begins again elsewhere.
A neighbour that seems faster can be measured again beside the matrix that it would replace before it does.
Single changes alone end in local optima: on a thousand small random machines at 93 % of the best in the mean
and 53 % at worst, with eight restarts at 99.7 % and 76 %, with changes of two as well at 99.9 % and 85 %.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from partita.core.allocation import AllocationMatrix
from partita.planning.matrices import neighbours

Rate = Callable[[AllocationMatrix], float]
"""Items per second of a matrix, measured or predicted; 0 if something does not fit in memory."""
Duel = Callable[[AllocationMatrix, AllocationMatrix], tuple[float, float]]
"""Items per second of two matrices that are measured again, in turns."""
_DUELS = 2
"""Neighbours of one iteration that are measured again at most, each the fastest by what is known then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """How far the search goes."""

    max_iter: int = 60
    """Iterations in all, restarts included; 0 = only the start is assessed."""
    max_neighs: int = 100
    """Neighbours assessed in one iteration."""
    restarts: int = 8
    """How often the search begins again from another matrix once nothing improves."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """One matrix that was assessed, in the order in which that happened."""

    iteration: int
    """0 = a matrix that was begun from."""
    climb: int
    """0 = from the start that was given, 1 = from the first restart, …"""
    matrix: AllocationMatrix
    items_per_s: float
    """By the latest measurement: where it was measured again, that one counts."""
    predicted_items_per_s: float | None

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "climb": self.climb,
            "iteration": self.iteration,
            "matrix": self.matrix.as_lists(),
            "items_per_s": self.items_per_s,
            "predicted_items_per_s": self.predicted_items_per_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best matrix found, never worse than the start, and how it was found."""

    start: AllocationMatrix
    start_items_per_s: float
    matrix: AllocationMatrix
    items_per_s: float
    iterations: int
    log: tuple[Assessment, ...]
    paths: tuple[tuple[AllocationMatrix, ...], ...]
    """Of each climb, the matrices that it went through, the first one included."""
    visited_rate: float
    """Neighbours looked at ÷ neighbours that there were, over all iterations: 1 = nothing was left to chance.

    The paper's max_neighs ÷ total_neighs, at most 1; also 1 where there was no iteration.
    """

    @property
    def assessed(self) -> int:
        """Matrices that were benchmarked."""
        return len(self.log)


def search(
    start: AllocationMatrix,
    batch_sizes: Sequence[int],
    bench: Rate,
    limits: SearchLimits | None = None,
    *,
    predict: Rate | None = None,
    is_over: Callable[[], bool] = lambda: False,
    told: Callable[[Assessment], None] = lambda _: None,
    others: Sequence[AllocationMatrix] = (),
    again: Duel | None = None,
) -> SearchResult:
    """Return the fastest matrix found from `start` with elements 0 or of `batch_sizes`.

    `is_over` is asked before every assessment but the first: once true, the best so far is returned. `told`
    hears of every assessment. `others` are assessed beside the start, and the fastest of them all is begun
    from. With `again` no step is taken that a second measurement does not confirm, so that none is taken any
    more once the search is over; `told` hears of these figures, too.
    A bench that gives the same figures gives the same result for the same seed.
    """
    given = limits or SearchLimits()
    return _Search(start, batch_sizes, bench, given, predict, is_over, told, others, again).run()


@dataclass(slots=True)
class _Search:
    start: AllocationMatrix
    batch_sizes: Sequence[int]
    bench: Rate
    limits: SearchLimits
    predict: Rate | None
    is_over: Callable[[], bool]
    told: Callable[[Assessment], None]
    others: Sequence[AllocationMatrix]
    again: Duel | None
    log: dict[AllocationMatrix, Assessment] = field(default_factory=dict)
    paths: list[tuple[AllocationMatrix, ...]] = field(default_factory=list)
    iterations: int = 0
    looked_at: int = 0
    there_were: int = 0

    def run(self) -> SearchResult:
        rng = np.random.default_rng(self.limits.seed)
        begins = [self.start]
        self._assess(self.start, 0, 0)
        for other in self.others:
            if self.is_over():
                break
            self._assess(other, 0, 0)
            begins.append(other)
        best = self._climb(max(begins, key=self._rate), rng, climb=0)
        for climb in range(1, self.limits.restarts + 1):
            if self._is_spent():
                break
            # By the log: what was measured again meanwhile counts for those found earlier as well.
            best = max(best, self._climb(self._elsewhere(rng), rng, climb=climb), key=self._rate)
        best = max(best, self.start, key=self._rate)
        return SearchResult(
            start=self.start,
            start_items_per_s=self._rate(self.start),
            matrix=best,
            items_per_s=self._rate(best),
            iterations=self.iterations,
            log=tuple(self.log.values()),
            paths=tuple(self.paths),
            visited_rate=self.looked_at / self.there_were if self.there_were else 1.0,
        )

    def _is_spent(self) -> bool:
        return self.iterations >= self.limits.max_iter or self.is_over()

    def _climb(self, matrix: AllocationMatrix, rng: np.random.Generator, *, climb: int) -> AllocationMatrix:
        """Return the matrix from which no neighbour is strictly faster, or where the limits are reached.

        Where no single change is, changes of two workers are looked at once.
        """
        self._assess(matrix, climb, 0)
        path = [matrix]
        changes, step = 1, 0
        while not self._is_spent():
            self.iterations += 1
            step += 1
            assessed = []
            for neighbour in self._drawn(matrix, rng, changes):
                if neighbour not in self.log and self.is_over():
                    break
                self.looked_at += 1
                self._assess(neighbour, climb, step)
                assessed.append(neighbour)
            best = self._faster(matrix, assessed)
            if best is not None:
                matrix, changes = best, 1
                path.append(matrix)
            elif changes == 1:
                changes = 2
            else:
                break
        self.paths.append(tuple(path))
        return matrix

    def _faster(
        self, matrix: AllocationMatrix, assessed: Sequence[AllocationMatrix]
    ) -> AllocationMatrix | None:
        """Return the fastest neighbour if it is strictly faster than the matrix, and is so once more."""
        for _ in range(_DUELS):
            best = max(assessed, key=self._rate, default=matrix)
            if self._rate(best) <= self._rate(matrix):
                return None
            if self.again is None:
                return best
            if self.is_over():
                return None
            for one, rate in zip((matrix, best), self.again(matrix, best), strict=True):
                self._note(replace(self.log[one], items_per_s=rate))
            if self._rate(best) > self._rate(matrix):
                return best
        return None

    def _drawn(
        self, matrix: AllocationMatrix, rng: np.random.Generator, changes: int
    ) -> list[AllocationMatrix]:
        """Return the neighbours to assess: all in random order, the most promising first, then cut off."""
        around = list(neighbours(matrix, self.batch_sizes))
        if changes == 2:
            around = _two_workers_away(matrix, self.batch_sizes)
        self.there_were += len(around)
        drawn = [around[index] for index in rng.permutation(len(around))]
        if self.predict is not None:
            predicted = {neighbour: self.predict(neighbour) for neighbour in drawn}
            drawn.sort(key=lambda neighbour: -predicted[neighbour])
        return drawn[: self.limits.max_neighs]

    def _rate(self, matrix: AllocationMatrix) -> float:
        return self.log[matrix].items_per_s

    def _assess(self, matrix: AllocationMatrix, climb: int, iteration: int) -> float:
        if matrix not in self.log:
            self._note(
                Assessment(
                    climb=climb,
                    iteration=iteration,
                    matrix=matrix,
                    items_per_s=float(self.bench(matrix)),
                    predicted_items_per_s=None if self.predict is None else self.predict(matrix),
                )
            )
        return self._rate(matrix)

    def _note(self, assessment: Assessment) -> None:
        self.log[assessment.matrix] = assessment
        self.told(assessment)

    def _elsewhere(self, rng: np.random.Generator) -> AllocationMatrix:
        """Return a valid matrix to begin again from: a random one, moved to where the prediction is best."""
        matrix = _random_matrix(self.start.devices, self.start.models, self.batch_sizes, rng)
        if self.predict is None:
            return matrix
        rate = self.predict(matrix)
        while True:
            best = max(neighbours(matrix, self.batch_sizes), key=self.predict, default=matrix)
            if self.predict(best) <= rate:
                return matrix
            matrix, rate = best, self.predict(best)


def _two_workers_away(matrix: AllocationMatrix, batch_sizes: Sequence[int]) -> list[AllocationMatrix]:
    """Return the valid matrices to which two workers come or go, or one moves, in order.

    A move is what single changes cannot see: the way to it is slower than where it began.
    """
    pairs = (
        second
        for first in _one_worker_away(matrix, batch_sizes)
        for second in _one_worker_away(first, batch_sizes)
    )
    near = {matrix, *neighbours(matrix, batch_sizes)}
    return [one for one in dict.fromkeys(pairs) if one not in near]


def _one_worker_away(matrix: AllocationMatrix, batch_sizes: Sequence[int]) -> Iterator[AllocationMatrix]:
    workers = sum(1 for _ in matrix.workers())
    for one in neighbours(matrix, batch_sizes):
        if sum(1 for _ in one.workers()) != workers:
            yield one


def _random_matrix(
    devices: int, models: int, batch_sizes: Sequence[int], rng: np.random.Generator
) -> AllocationMatrix:
    rows = rng.choice([0, *batch_sizes], size=(devices, models))
    for model in range(models):
        if not rows[:, model].any():
            rows[rng.integers(devices), model] = rng.choice(batch_sizes)
    return AllocationMatrix.of(rows.tolist())
