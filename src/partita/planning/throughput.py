"""The plan of most items per second, optionally within a latency limit (Partita's addition to Packrat).

Under the eager policy an instance takes its next items as soon as it is idle, so instances do not wait for
each other and their rates add: maximise Σ b_j / cost[t_j, b_j] subject to Σ t_j ≤ T, Σ b_j = B and, with a
limit, cost[t_j, b_j] ≤ limit. B is how many items are to be had at once; all of them are answered within
the slowest instance's cost. A knapsack over cores and items solves it, in units of ⌈B / 256⌉ items: an
instance that runs micro-batches has the same rate for every multiple of its items, so little is lost.
"""

from itertools import pairwise

import numpy as np

from partita.planning.micro_batches import BatchCosts
from partita.planning.table import Floats, Ints
from partita.planning.threshold import Share, allotments

MAX_UNITS = 256
_NONE = -np.inf


def solve(
    costs: BatchCosts,
    sockets: tuple[int, ...],
    cores: int,
    batch: int,
    *,
    limit_ms: float = np.inf,
    max_share: int | None = None,
    rate_per_byte: float = 0.0,
) -> tuple[Share, ...] | None:
    """Return the shares of most items per second, None if no shares serve the batch within the limit.

    `rate_per_byte` is what memory costs, in items/ms for each byte: a price by which a caller that has
    little memory gets plans that need less.
    """
    ways = allotments(sockets, cores)
    knapsack = _Knapsack(costs.up_to(int(ways.max())), batch, limit_ms, max_share or batch, rate_per_byte)
    return knapsack.best(ways)


class _Knapsack:
    def __init__(
        self, costs: BatchCosts, batch: int, limit_ms: float, max_share: int, rate_per_byte: float
    ) -> None:
        self._threads = costs.table.threads
        self._unit = -(-batch // MAX_UNITS)
        self._units, self._odd = divmod(batch, self._unit)
        items = np.arange(self._units + 1) * self._unit
        self._rates = _rates(costs, items, limit_ms, max_share, rate_per_byte)  # (n, units + 1)
        self._odd_rates = _rates(costs, items + self._odd, limit_ms, max_share, rate_per_byte)
        self._padded = np.full(2 * self._units + 1, _NONE)
        self._rest = np.lib.stride_tricks.sliding_window_view(self._padded, self._units + 1)[:, ::-1]

    def best(self, ways: Ints) -> tuple[Share, ...] | None:
        """Return the best shares over the ways of giving cores from sockets."""
        plain, plain_choice = self._fill(int(ways.max()), self._rates)
        best_rate, best = _NONE, None
        for way in ways:
            # The items that make no whole unit go to one instance of one socket: the last one filled.
            total = np.full(self._units + 1, _NONE)
            total[0] = 0.0
            totals = [total]
            for cores in way:
                totals.append(self._joined(totals[-1], plain[cores]).max(axis=1))
            if self._odd == 0:
                rate = float(totals[-1][self._units])
                if rate > best_rate:
                    best_rate, best = rate, self._unfold(way, totals, plain, plain_choice, self._units)
                continue
            for row, threads in enumerate(self._threads):
                for socket in range(len(way)):
                    if threads > way[socket]:
                        continue
                    less = way.copy()
                    less[socket] -= threads
                    found = self._with_odd(less, row, plain, plain_choice, best_rate)
                    if found is not None:
                        best_rate, best = found
        return None if best is None else tuple(sorted(best, reverse=True))

    def _with_odd(
        self, way: Ints, row: int, plain: Floats, choice: Ints, above: float
    ) -> tuple[float, list[Share]] | None:
        totals = [np.where(np.arange(self._units + 1) == 0, 0.0, _NONE)]
        for cores in way:
            totals.append(self._joined(totals[-1], plain[cores]).max(axis=1))
        sums = totals[-1][::-1] + self._odd_rates[row]
        taken = int(sums.argmax())
        if sums[taken] <= above:
            return None
        rest = self._unfold(way, totals, plain, choice, self._units - taken)
        return float(sums[taken]), [*rest, (row, taken * self._unit + self._odd)]

    def _joined(self, some: Floats, others: Floats) -> Floats:
        """Return [k, u] = `some` with k − u units and `others` with u; no rate where u > k."""
        self._padded[self._units :] = some  # now _rest[k, u] is some[k − u]
        sums: Floats = self._rest + others
        return sums

    def _fill(self, cores: int, rates: Floats) -> tuple[Floats, Ints]:
        """Return V[t, k], the most items/ms of t cores with k units, and the (row, units) it rests on."""
        best = np.full((cores + 1, self._units + 1), _NONE)
        best[:, 0] = 0.0
        choice = np.full((cores + 1, self._units + 1, 2), -1, dtype=np.int64)
        useful = _undominated(rates)
        for t in range(1, cores + 1):
            best[t], choice[t] = best[t - 1], choice[t - 1]
            for row in useful:
                if self._threads[row] > t:
                    break
                sums = self._joined(best[t - self._threads[row]], rates[row])
                candidate = sums.max(axis=1)
                better = np.flatnonzero(candidate > best[t] * (1 + 1e-12))
                best[t][better] = candidate[better]
                choice[t][better, 0] = row
                choice[t][better, 1] = sums[better].argmax(axis=1)
        return best, choice

    def _unfold(
        self, way: Ints, totals: list[Floats], plain: Floats, choice: Ints, units: int
    ) -> list[Share]:
        shares: list[Share] = []
        for (before, _), cores in zip(reversed(list(pairwise(totals))), way[::-1], strict=True):
            sums = before[units::-1] + plain[cores][: units + 1]
            here = int(sums.argmax())
            units -= here
            t = int(cores)
            while here > 0:
                row, taken = (int(value) for value in choice[t, here])
                shares.append((row, taken * self._unit))
                here, t = here - taken, t - int(self._threads[row])
        return shares


def _rates(costs: BatchCosts, items: Ints, limit_ms: float, max_share: int, rate_per_byte: float) -> Floats:
    """Return items/ms of every row with these items, -inf where not allowed; 0 items are no instance."""
    inside = np.minimum(items, costs.max_batch)
    cost = costs.cost_ms[:, inside]
    allowed = (cost <= limit_ms) & np.isfinite(cost) & (items == inside) & (items <= max_share) & (items > 0)
    rates: Floats = np.full(cost.shape, _NONE)
    np.divide(np.broadcast_to(items, cost.shape), cost, out=rates, where=allowed)
    if rate_per_byte > 0.0 and costs.table.memory_bytes is not None:
        held = np.where(np.isfinite(costs.table.latency_ms), costs.table.memory_bytes, 0.0).max(axis=1)
        rates -= rate_per_byte * held[:, None]
    return rates


def _undominated(rates: Floats) -> list[int]:
    """Return the rows that are, for some number of items, better than all rows with fewer threads."""
    before = np.full(rates.shape[1], _NONE)
    kept: list[int] = []
    for row, values in enumerate(rates):
        if np.any(values > before):
            kept.append(row)
            before = np.maximum(before, values)
    return kept
