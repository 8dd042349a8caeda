"""Plans as the optimizer really makes them, for the batches that lazy profiling answers for.

The frontier knows every B's best latency, but among plans of that latency the optimizer may choose another:
fewer instances, and one that is thought fast enough only because its few iterations were lucky.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from partita.core.errors import NoFeasiblePlan
from partita.core.profile import Profile, ProfilePoint
from partita.planning.optimizer import Optimizer
from partita.planning.sampling_frontier import Floats, Ints

MOST_PLANS = 128
"""Plans in one check; of more batches, every n-th is looked at, others each time."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Plans of some batches: `judged_ms` (n,), and how often each point is executed, (n, threads, sizes)."""

    batches: Ints
    judged_ms: Floats
    uses: Floats


class PlanCheck:
    """Makes plans from a table and judges them by another."""

    def __init__(self, *, cores: int, sizes: tuple[int, ...], max_items: int) -> None:
        self._cores = cores
        self._sizes = sizes
        self._max_items = max_items
        self._stride = -(-max_items // MOST_PLANS)
        self._turn = 0

    def check(self, mean_ms: Floats, judge_ms: Floats) -> Checked:
        """Plan by `mean_ms`, judge by `judge_ms`; both (threads, sizes), NaN where not measured."""
        optimizer = Optimizer(Profile(self._points(mean_ms)))
        optimizer.costs(self._max_items)
        batches = np.arange(1 + self._turn % self._stride, self._max_items + 1, self._stride)
        self._turn += 1
        judged = np.zeros(len(batches))
        uses = np.zeros((len(batches), *mean_ms.shape))
        column = {size: k for k, size in enumerate(self._sizes)}
        for at, batch in enumerate(batches):
            try:
                plan = optimizer.plan(self._cores, int(batch))
            except NoFeasiblePlan:
                judged[at] = np.nan
                continue
            for instance in plan.instances:
                row = instance.threads - 1
                columns = [column[size] for size in instance.executions]
                uses[at, row, columns] = 1.0
                judged[at] = max(judged[at], judge_ms[row, columns].sum())
        fine = ~np.isnan(judged)
        return Checked(batches=batches[fine], judged_ms=judged[fine], uses=uses[fine])

    def _points(self, mean_ms: Floats) -> Iterable[ProfilePoint]:
        for row, column in zip(*np.nonzero(~np.isnan(mean_ms)), strict=True):
            yield ProfilePoint(
                threads=int(row) + 1, batch=self._sizes[column], mean_ms=float(mean_ms[row, column])
            )
