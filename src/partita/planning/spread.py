"""How given instances share a batch: each as many items as it serves in the same time.

For a latency λ every instance serves cap(λ) items; the least λ at which the capacities reach the batch is
one of the instances' own costs, and is found by bisection over them.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from partita.planning.micro_batches import BatchCosts
from partita.planning.table import Floats, Ints
from partita.planning.threshold import Share


def latency_ms(costs: BatchCosts, rows: Sequence[int], batch: int) -> float:
    """Return the least time in which instances of these rows serve the batch; inf if they cannot."""
    if len(set(rows)) == 1:  # equal instances take equal shares
        return float(costs.cost_ms[rows[0], -(-batch // len(rows))])
    return _solve(costs, rows, batch, batch)[0] if rows else np.inf


def shares(
    costs: BatchCosts, rows: Sequence[int], batch: int, max_share: int | None = None
) -> tuple[Share, ...] | None:
    """Return the shares of all these instances, none without an item; None if they cannot serve the batch.

    Items beyond the batch are taken from the instances that are slowest with what they have.
    """
    if not rows or len(rows) > batch:
        return None
    least, items = _solve(costs, rows, batch, min(batch, max_share or batch))
    if not np.isfinite(least) or (items == 0).any():
        return None
    at = costs.cost_ms[rows, items]
    for _ in range(int(items.sum()) - batch):
        slowest = int(np.where(items > 1, at, -np.inf).argmax())
        items[slowest] -= 1
        at[slowest] = costs.cost_ms[rows[slowest], items[slowest]]
    return tuple((row, int(count)) for row, count in zip(rows, items, strict=True))


def _solve(costs: BatchCosts, rows: Sequence[int], batch: int, most: int) -> tuple[float, Ints]:
    """Return the least latency, and what each instance serves in it, together the batch or more."""
    kinds, kind, counts = np.unique(rows, return_inverse=True, return_counts=True)
    table = costs.cost_ms[kinds, : most + 1]
    equal = np.minimum(-(-batch // counts), most)
    # What the quickest kind takes alone: a bound, where it can serve the batch at all.
    high = float(table[np.arange(len(kinds)), equal].min())
    candidates = np.unique(table[np.isfinite(table)])

    def reaches(ms: float) -> bool:
        return int(_served(table, ms) @ counts) >= batch

    if reaches(high):
        candidates = candidates[candidates <= high]
    first = bisect_left(candidates, True, key=reaches)
    if first == len(candidates):
        return np.inf, np.zeros(len(rows), dtype=np.int64)
    least = float(candidates[first])
    return least, _served(table, least)[kind]


def _served(table: Floats, latency: float) -> Ints:
    """Items that each row serves within the latency; the rows never decrease."""
    return np.array([np.searchsorted(row, latency, side="right") - 1 for row in table], dtype=np.int64)
