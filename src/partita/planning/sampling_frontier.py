"""The best latency for every aggregate batch B = 1..N at once, and which measured points its plans rest on.

The profiler asks this after every point, so it is built for one question only: all B of one table, within a
fraction of a per cent, in about a millisecond. Plans that are really run come from the optimizer.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InvalidInput

UNKNOWN_MS = 1e18
"""Latency of a point that no plan may use: finite, so that zero of it costs nothing."""

_NEGLIGIBLE = 1e-6
"""Batches that matter so much less than the one that matters most are left out of a sum."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Frontier:
    """Solution of one table."""

    latency_ms: Floats
    """(N + 1,) float64: the best latency for B items, index 0 unused."""
    _index: Ints  # (N + 1,): which of the solver's latencies that is
    _trace: "_Trace"

    def spent(self, importance: Floats) -> Floats:
        """Return Σ over B of importance[B] · `weights`[B], (threads, sizes); `importance` is (N + 1,)."""
        counts = importance > _NEGLIGIBLE * importance.max()
        reached, back = np.unique(self._index[counts], return_inverse=True)
        total = np.bincount(back, importance[counts], minlength=len(reached))
        spent: Floats = np.tensordot(total, self._trace.parts(reached), axes=1)
        return spent

    @property
    def weights(self) -> Floats:
        """What the plans rest on, (N + 1, threads, sizes) float64.

        It is the part of the latency that an instance of the plan for B spends on executions of each point;
        0 where the plan executes none.
        """
        reached, back = np.unique(self._index, return_inverse=True)
        weights: Floats = self._trace.parts(reached)[back]
        return weights


class FrontierSolver:
    """Solves tables of one shape: rows t = 1..T, columns the sizes of a divisor chain such as 1, 2, 4, 8.

    A chain, each size a multiple of the one before, makes the cheapest sequence of executions for c items
    the mixed-radix digits of the cheapest c' ≥ c (padding), once every size is replaced by the cheaper of
    itself and a repetition of the one below.
    """

    def __init__(self, *, cores: int, sizes: tuple[int, ...], max_items: int, step: float = 0.005) -> None:
        check_chain(sizes)
        self._cores = cores
        self._sizes = sizes
        self._max_items = max_items
        self._step = step
        self._ratios = [b // a for a, b in pairwise(sizes)]
        top = sizes[-1]
        padded = -(-max_items // top) * top
        self._digits = _digits(np.arange(padded + 1), sizes)  # (sizes, padded + 1)

    def solve(self, table_ms: Floats) -> Frontier:
        """Solve a (threads, sizes) table in milliseconds; `UNKNOWN_MS` marks points that may not be used."""
        best, origin = self._closure(table_ms)
        served, costs = self._padded(best)
        grid = self._grid(costs)
        capacity = np.stack([np.searchsorted(row, grid, side="right") - 1 for row in costs])
        np.minimum(capacity, self._max_items, out=capacity)
        total, choice = self._fill(capacity)
        index = np.searchsorted(total, np.arange(self._max_items + 1))
        within = np.minimum(index, len(grid) - 1)
        latency = np.where(index < len(grid), grid[within], UNKNOWN_MS)
        trace = _Trace(self._digits, grid, capacity, np.stack(choice), served, best, origin)
        return Frontier(latency, within, trace)

    def _closure(self, table_ms: Floats) -> tuple[Floats, Ints]:
        """Return what each size costs at best, and which size it is then run as, both (threads, sizes)."""
        best = table_ms.copy()
        origin = np.tile(np.arange(len(self._sizes)), (len(best), 1))
        for k in range(len(self._sizes) - 2, -1, -1):
            cheaper = best[:, k + 1] < best[:, k]
            best[cheaper, k] = best[cheaper, k + 1]
            origin[cheaper, k] = origin[cheaper, k + 1]
        for k, ratio in enumerate(self._ratios):
            repeated = ratio * best[:, k]
            cheaper = repeated < best[:, k + 1]
            best[cheaper, k + 1] = repeated[cheaper]
            origin[cheaper, k + 1] = origin[cheaper, k]
        return best, origin

    def _padded(self, best: Floats) -> tuple[Ints, Floats]:
        """Return, both (threads, items + 1): the item count really run for c items, and its cost."""
        exact = best @ self._digits
        reverse = exact[:, ::-1]
        costs = np.minimum.accumulate(reverse, axis=1)[:, ::-1]
        last = exact.shape[1] - 1
        positions = np.where(reverse == costs[:, ::-1], np.arange(last, -1, -1)[None, :], last + 1)
        served = np.minimum.accumulate(positions, axis=1)[:, ::-1]
        costs = np.ascontiguousarray(costs)
        costs[:, 0] = 0.0
        return served, costs

    def _grid(self, costs: Floats) -> Floats:
        known = costs[:, 1:][costs[:, 1:] < UNKNOWN_MS]
        if not known.size:
            return np.array([1.0])
        low, high = known.min(), known.max()
        alone = costs[: self._cores, self._max_items].min()  # by one instance: no plan need be slower
        high = max(low, min(high, alone))
        count = max(1, int(np.ceil(np.log(high / low) / self._step))) + 2
        grid: Floats = low * np.exp(self._step * np.arange(count))
        return grid

    def _fill(self, capacity: Ints) -> tuple[Ints, list[Ints]]:
        """One-dimensional knapsack over cores, for every latency of the grid at once.

        Most items, then fewest instances: each instance costs a small part of an item.
        """
        parts = self._cores + 1
        worth = np.where(capacity > 0, capacity * parts - 1, 0)
        totals = np.zeros((self._cores + 1, capacity.shape[1]), dtype=np.int64)
        choice: list[Ints] = [np.zeros(capacity.shape[1], dtype=np.int64)]
        for cores in range(1, self._cores + 1):
            used = min(cores, len(capacity))
            options = worth[:used] + totals[cores - used : cores][::-1]
            picked = options.argmax(axis=0)
            totals[cores] = np.take_along_axis(options, picked[None, :], axis=0)[0]
            choice.append(picked + 1)
        return -(-totals[self._cores] // parts), choice


@dataclass(frozen=True, slots=True, eq=False)
class _Trace:
    """What a solver chose for every latency of its grid."""

    digits: Floats
    grid: Floats
    capacity: Ints  # (threads, grid)
    choice: Ints  # (cores + 1, grid): threads of an instance when so many cores are left
    served: Ints
    best: Floats
    origin: Ints

    def parts(self, reached: Ints) -> Floats:
        """Walk the choices back for these latencies: the part that an instance spends on each point."""
        weights = np.zeros((len(reached), *self.best.shape))
        choices = self.choice[:, reached]
        rows = np.arange(len(reached))
        left = np.full(len(reached), len(self.choice) - 1)
        while (left > 0).any():
            row = np.maximum(choices[left, rows], 1) - 1
            items = np.where(left > 0, self.capacity[row, reached], 0)
            digits = np.where(items > 0, self.digits[:, self.served[row, items]], 0.0)  # (sizes, reached)
            spent = np.zeros((len(reached), len(digits)))
            for k, count in enumerate(digits):
                spent[rows, self.origin[row, k]] += count * self.best[row, k]
            weights[rows, row] = np.maximum(weights[rows, row], spent)
            left = np.maximum(left - row - 1, 0)
        weights /= self.grid[reached, None, None]
        return weights


def check_chain(sizes: tuple[int, ...]) -> None:
    """Raise `InvalidInput` unless every size is a larger multiple of the one before."""
    if not sizes or sizes[0] < 1:
        raise InvalidInput("batch sizes to profile: at least one positive size is needed")
    for a, b in pairwise(sizes):
        if b <= a or b % a:
            raise InvalidInput(
                f"batch sizes to profile: {b} is not a larger multiple of {a}; "
                "give a chain such as 1, 2, 4, 8 where each size is a multiple of the one before"
            )


def _digits(items: Ints, sizes: tuple[int, ...]) -> Floats:
    """Mixed-radix digits of item counts: how often each size runs; (sizes, len(items))."""
    left = items.copy()
    digits = np.zeros((len(sizes), len(items)))
    for k in range(len(sizes) - 1, -1, -1):
        digits[k] = left // sizes[k]
        left = left - digits[k].astype(np.int64) * sizes[k]
    digits[0] += left > 0
    return digits
