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
    return _solve(costs.cost_ms[list(rows), : batch + 1], batch)[0] if rows else np.inf


def shares(
    costs: BatchCosts, rows: Sequence[int], batch: int, max_share: int | None = None
) -> tuple[Share, ...] | None:
    """Return the shares of all these instances, none without an item; None if they cannot serve the batch.

    Items beyond the batch are taken from the instances that are slowest with what they have.
    """
    if not rows or len(rows) > batch:
        return None
    table = costs.cost_ms[list(rows), : min(batch, max_share or batch) + 1]
    least, items = _solve(table, batch)
    if not np.isfinite(least) or (items == 0).any():
        return None
    surplus = int(items.sum()) - batch
    while surplus > 0:
        at = table[np.arange(len(rows)), items]
        slowest = int(np.where(items > 1, at, -np.inf).argmax())
        items[slowest] -= 1
        surplus -= 1
    return tuple((row, int(count)) for row, count in zip(rows, items, strict=True))


def _solve(table: Floats, batch: int) -> tuple[float, Ints]:
    candidates = np.unique(table[np.isfinite(table)])
    first = bisect_left(candidates, True, key=lambda ms: bool(_served(table, ms).sum() >= batch))
    if first == len(candidates):
        return np.inf, np.zeros(len(table), dtype=np.int64)
    least = float(candidates[first])
    return least, _served(table, least)


def _served(table: Floats, latency: float) -> Ints:
    """Items that each row serves within the latency; the rows never decrease."""
    return np.array([np.searchsorted(row, latency, side="right") - 1 for row in table], dtype=np.int64)
