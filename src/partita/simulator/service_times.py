"""How long an execution takes in the simulation: what the profile says of it."""

import numpy as np

from partita.core.errors import InvalidInput
from partita.core.profile import Profile
from partita.machines.work import Batch


class ServiceTimes:
    """Times of executions of any size, seconds: between profiled sizes on the straight line.

    Beyond the largest profiled size a time grows as from nothing to that one. `contention` is how much
    longer an execution takes while all other cores execute, too: 0.6 = 1.6 times as long (the most that
    published data show for thin instances); with fewer cores busy it is proportionally less.
    """

    def __init__(self, profile: Profile, *, cores: int, contention: float = 0.0) -> None:
        if not (np.isfinite(contention) and contention >= 0.0):
            raise InvalidInput(f"contention {contention}: must be 0 or more")
        self._profile = profile
        self._share = contention / cores
        self._tables: dict[int, list[float]] = {}

    def batch_s(self, threads: int, batch: Batch, busy_elsewhere: int) -> float:
        """Return the time of a batch that begins while so many other cores execute."""
        factor = 1.0 + self._share * busy_elsewhere
        if not batch.executions:
            return self.execution_s(threads, batch.items) * factor
        return sum(self.execution_s(threads, size) for size in batch.executions) * factor

    def execution_s(self, threads: int, items: int) -> float:
        """Return the time of one execution of so many items, alone."""
        table = self._tables.get(threads)
        if table is None or items >= len(table):
            table = self._tables[threads] = self._table(threads, items)
        return table[items]

    def _table(self, threads: int, items: int) -> list[float]:
        points = [(b, p.mean_ms / 1000.0) for (t, b), p in self._profile.points.items() if t == threads]
        if not points:
            raise InvalidInput(f"the profile has no point of {threads} threads")
        sizes, seconds = np.array(points).T
        at = np.arange(max(2 * items, int(sizes[-1])) + 1)
        times = np.interp(at, sizes, seconds)
        beyond = at > sizes[-1]
        times[beyond] = seconds[-1] * at[beyond] / sizes[-1]
        return [float(time) for time in times]
