"""The fastest plan whose instances together fit in a memory limit.

Only asked when the fastest plan of all does not fit. For a latency λ every ⟨t, largest execution r⟩ is an
option: it serves cap items and holds as much memory as its hungriest size up to r. g[t, c], the least
memory by which t cores serve at least c items, is an unbounded min-plus knapsack over the options; the
least λ with g[T, B] ≤ M is found by bisection. Memory is bounded from above, so a plan never exceeds M.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from partita.planning.micro_batches import BatchCosts, batch_costs
from partita.planning.table import Floats, Ints, LatencyTable
from partita.planning.threshold import allotments


@dataclass(frozen=True, slots=True)
class FrugalInstance:
    """One instance: its row in the table, its items, and the executions they are run as."""

    row: int
    items: int
    executions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Option:
    row: int
    threads: int
    columns: int
    """How many of the table's batch sizes, from the smallest, its executions may have."""
    memory_bytes: float


class FrugalSearch:
    """The least latency at which T cores serve B items within a memory limit."""

    def __init__(
        self,
        table: LatencyTable,
        sockets: tuple[int, ...],
        cores: int,
        batch: int,
        *,
        micro_batches: bool = True,
        max_share: int | None = None,
    ) -> None:
        assert table.memory_bytes is not None
        self._allotments = allotments(sockets, cores)
        self._widest = int(self._allotments.max())
        self._batch = batch
        self._share = min(batch, max_share or batch)
        table = table.up_to(self._widest)
        self._costs: list[BatchCosts] = []
        self._options: list[_Option] = []
        for columns in range(1, len(table.batches) + 1):
            prefix = table.prefix(columns)
            self._costs.append(batch_costs(prefix, self._share, micro_batches=micro_batches))
            assert prefix.memory_bytes is not None
            held = np.where(np.isfinite(prefix.latency_ms), prefix.memory_bytes, 0.0).max(axis=1)
            self._options += [
                _Option(row, int(threads), columns, float(held[row]))
                for row, threads in enumerate(table.threads)
                if np.isfinite(prefix.latency_ms[row, columns - 1])
            ]

    def solve(
        self, limit_bytes: float, at_least_ms: float
    ) -> tuple[float, tuple[FrugalInstance, ...]] | None:
        """Return latency and instances of the fastest plan within the limit, None if none fits.

        `at_least_ms` is a latency that no plan is below, such as that of the plan without the limit.
        """
        values = np.unique(np.concatenate([np.unique(costs.cost_ms) for costs in self._costs]))
        values = values[(values >= at_least_ms * (1 - 1e-12)) & np.isfinite(values)]
        first = bisect_left(values, True, key=lambda ms: self._least_bytes(ms)[0] <= limit_bytes)
        if first == len(values):
            return None
        return float(values[first]), self._instances(float(values[first]))

    def least_bytes(self) -> float:
        """Return the least memory by which the batch can be served at all; inf if it cannot be."""
        return self._least_bytes(np.finfo(np.float64).max)[0]

    def _capacity(self, option: _Option, latency_ms: float) -> int:
        row = self._costs[option.columns - 1].cost_ms[option.row]
        return int(np.searchsorted(row, latency_ms, side="right")) - 1

    def _useful(self, latency_ms: float) -> list[tuple[_Option, int]]:
        """Return the options that no other beats in cores, items and memory at once, with their items."""
        capable = [(option, self._capacity(option, latency_ms)) for option in self._options]
        capable.sort(key=lambda pair: (pair[0].threads, -pair[1], pair[0].memory_bytes))
        kept: list[tuple[_Option, int]] = []
        for option, items in capable:
            beaten = any(n >= items and o.memory_bytes <= option.memory_bytes for o, n in kept)
            if items > 0 and not beaten:
                kept.append((option, items))
        return kept

    def _knapsack(self, useful: list[tuple[_Option, int]]) -> tuple[Floats, Ints]:
        """Return g[t, c] in bytes, and which option it rests on (-1: none)."""
        least = np.full((self._widest + 1, self._batch + 1), np.inf)
        choice = np.full(least.shape, -1, dtype=np.int64)
        least[:, 0] = 0.0
        needed = np.arange(self._batch + 1)
        for t in range(1, self._widest + 1):
            least[t], choice[t] = least[t - 1], choice[t - 1]
            for k, (option, items) in enumerate(useful):
                if option.threads > t:
                    break  # ascending in threads
                before = least[t - option.threads]
                candidate = before[np.maximum(needed - items, 0)] + option.memory_bytes
                candidate[0] = 0.0
                better = candidate < least[t]
                least[t][better] = candidate[better]
                choice[t][better] = k
        return least, choice

    def _least_bytes(self, latency_ms: float) -> tuple[float, list[tuple[int, int]]]:
        """Return the least memory within the latency, and (cores, items) that it asks of each socket."""
        least, _ = self._knapsack(self._useful(latency_ms))
        best: tuple[float, list[tuple[int, int]]] = (np.inf, [])
        for allotment in self._allotments:
            total, splits = least[allotment[0]], []
            for cores in allotment[1:]:
                sums = _split_sums(total, least[cores])
                splits.append(sums.argmin(axis=1))
                total = sums.min(axis=1)
            if total[self._batch] < best[0]:
                parts: list[tuple[int, int]] = []
                left = self._batch
                for cores, split in zip(allotment[:0:-1], reversed(splits), strict=True):
                    parts.append((int(cores), int(split[left])))
                    left -= parts[-1][1]
                best = (float(total[self._batch]), [*parts, (int(allotment[0]), left)])
        return best

    def _instances(self, latency_ms: float) -> tuple[FrugalInstance, ...]:
        useful = self._useful(latency_ms)
        _, choice = self._knapsack(useful)
        instances: list[FrugalInstance] = []
        for cores, items in self._least_bytes(latency_ms)[1]:
            left, t = items, cores
            while left > 0:
                option, capacity = useful[int(choice[t, left])]
                share = min(capacity, left)
                executions = self._costs[option.columns - 1].executions(option.row, share)
                instances.append(FrugalInstance(option.row, share, executions))
                left, t = left - share, t - option.threads
        return tuple(instances)


def _split_sums(some: Floats, others: Floats) -> Floats:
    """Return [c, d] = memory of d items from `others` and the c − d left from `some`; inf where d > c."""
    span = np.arange(len(some))
    rest = span[:, None] - span[None, :]
    sums: Floats = np.where(rest >= 0, some[rest] + others[None, :], np.inf)
    return sums
