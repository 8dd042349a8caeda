"""What it costs an instance to serve b items (beyond Packrat §3.3, where one instance = one execution).

cost[t, b] is the least time in which an instance of t cores serves b items: the cheapest sequence of
profiled executions whose sizes sum to b *or more* (a sequence that sums to more pads its last batch).
It never decreases with b, although L[t, b] may: a smaller batch can be padded to a faster larger one.

Where all profiled sizes are powers of two, the cheapest exact sum has a closed form. Merging two
executions of 2^(k-1) items never loses once L'[2^k] = min(L[2^k], 2·L'[2^(k-1)]), so some cheapest
sequence has distinct sizes: the binary digits of b. Hence cost[2^k + j] = L'[2^k] + cost[j] for j < 2^k
doubles the table k times, and a running minimum from the right adds the padding. Other sizes take an
unbounded min-plus knapsack over b. Both work on all thread counts at once.
"""

from dataclasses import dataclass

import numpy as np

from partita.planning.table import Floats, LatencyTable

_ROUNDING = 1.0 + 1e-12
"""Sums of the same latencies in another order are equal to this factor."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchCosts:
    """Cheapest time for an instance of each profiled thread count to serve 0..B items."""

    table: LatencyTable
    cost_ms: Floats  # (n, B + 1), each row non-decreasing, first column 0, inf = impossible
    micro_batches: bool

    @property
    def max_batch(self) -> int:
        """The largest number of items that the costs reach."""
        return int(self.cost_ms.shape[1] - 1)

    def up_to(self, max_threads: int) -> "BatchCosts":
        """Return the costs of instances with at most `max_threads` threads."""
        table = self.table.up_to(max_threads)
        return BatchCosts(table, self.cost_ms[: len(table.threads)], self.micro_batches)

    def executions(self, row: int, batch: int, *, slack: float = 0.0) -> tuple[int, ...]:
        """Return the execution sizes, largest first, by which this row serves `batch` items.

        Without slack their time is ``cost_ms[row, batch]``. With slack s, the sequence with the
        smallest largest execution within (1 + s) times that: it answers earlier and pipelines better.
        """
        cost = float(self.cost_ms[row, batch])
        assert cost < np.inf, (row, batch)
        if slack > 0.0:
            for columns in range(1, len(self.table.batches)):
                small = batch_costs(self.table.only(row, columns), batch, micro_batches=self.micro_batches)
                if small.cost_ms[0, batch] <= cost * (1.0 + slack):
                    return small.executions(0, batch)
        return self._cheapest(row, batch)

    def _cheapest(self, row: int, batch: int) -> tuple[int, ...]:
        """Walk the costs down from `batch`; among equally cheap sizes take the largest, so the fewest."""
        sizes, latency = self.table.batches, self.table.latency_ms[row]
        chosen: list[int] = []
        left = batch
        while left > 0:
            rest = np.maximum(left - sizes, 0)
            options = latency + self.cost_ms[row, rest]
            if not self.micro_batches:
                options = np.where(rest == 0, latency, np.inf)
            best = np.flatnonzero(options <= options.min() * _ROUNDING)[-1]
            chosen.append(int(sizes[best]))
            left -= chosen[-1]
        return tuple(sorted(chosen, reverse=True))


def batch_costs(table: LatencyTable, max_batch: int, *, micro_batches: bool = True) -> BatchCosts:
    """Return the costs of serving 0..max_batch items for every thread count of the table.

    With `micro_batches` off an instance runs one execution, of a profiled size that may exceed its items.
    """
    powers = not np.any(table.batches & (table.batches - 1))
    if not micro_batches:
        cost = _single_costs(table, max_batch)
    elif powers:
        cost = _power_of_two_costs(table, max_batch)
    else:
        cost = _general_costs(table, max_batch)
    return BatchCosts(table, cost, micro_batches)


def _single_costs(table: LatencyTable, max_batch: int) -> Floats:
    """One execution each: the cheapest profiled size that is large enough."""
    padded = np.minimum.accumulate(table.latency_ms[:, ::-1], axis=1)[:, ::-1]
    padded = np.hstack([padded, np.full((len(padded), 1), np.inf)])
    cost = padded[:, np.searchsorted(table.batches, np.arange(max_batch + 1))]
    cost[:, 0] = 0.0
    return cost


def _power_of_two_costs(table: LatencyTable, max_batch: int) -> Floats:
    """All sizes are powers of two: closure, binary digits, padding."""
    digits = max(max_batch - 1, 0).bit_length()  # 2^digits >= max_batch
    levels = max(digits, int(table.batches[-1]).bit_length() - 1)
    closed = np.full((len(table.threads), levels + 1), np.inf)  # L'[2^k]
    closed[:, np.frexp(table.batches)[1] - 1] = table.latency_ms
    for k in range(1, levels + 1):
        np.minimum(closed[:, k], 2.0 * closed[:, k - 1], out=closed[:, k])
    closed[:, digits] = closed[:, digits:].min(axis=1)  # sizes beyond the last digit only pad

    cost = np.empty((len(table.threads), 2**digits + 1))
    cost[:, 0] = 0.0
    for k in range(digits):
        np.add(closed[:, k, None], cost[:, : 2**k], out=cost[:, 2**k : 2 ** (k + 1)])
    cost[:, -1] = closed[:, digits]
    return np.minimum.accumulate(cost[:, ::-1], axis=1)[:, ::-1][:, : max_batch + 1]


def _general_costs(table: LatencyTable, max_batch: int) -> Floats:
    """Any sizes: min-plus knapsack, one column of b after the other, all rows and sizes at once."""
    cost = np.empty((max_batch + 1, len(table.threads)))
    cost[0] = 0.0
    latency = np.ascontiguousarray(table.latency_ms.T)  # (m, n)
    for batch in range(1, max_batch + 1):
        rest = np.maximum(batch - table.batches, 0)
        cost[batch] = (cost[rest] + latency).min(axis=0)
    return np.ascontiguousarray(cost.T)
