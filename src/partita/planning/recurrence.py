"""The optimizer of Packrat §3.3, to the letter.

opt[t, b] is the least latency at which at most t cores serve exactly b items, by instances that run one
profiled execution each, without padding:

    opt[t, b] = min over profiled ⟨t', b'⟩ of max(opt[t − t', b − b'], L[t', b']),    opt[t, 0] = 0

Every row of t rests on smaller t only, so a row is filled for all b at once, point by point. This is the
reference that the threshold search is held against; it takes O(T · points · B).
"""

import numpy as np

from partita.planning.table import LatencyTable
from partita.planning.threshold import Solution


def solve(table: LatencyTable, cores: int, batch: int) -> Solution | None:
    """Return the fastest plan for exactly `batch` items on at most `cores` cores, None if there is none."""
    rows, columns = np.nonzero(np.isfinite(table.latency_ms))
    order = np.lexsort((-rows, -columns))  # large batches first: among equal plans, fewer instances
    rows, columns = rows[order], columns[order]
    latency = table.latency_ms[rows, columns]
    threads, batches = table.threads[rows], table.batches[columns]

    opt = np.full((cores + 1, batch + 1), np.inf)
    choice = np.full((cores + 1, batch + 1), -1, dtype=np.int32)
    opt[:, 0] = 0.0
    for t in range(1, cores + 1):
        opt[t], choice[t] = opt[t - 1], choice[t - 1]  # one core more may stay idle
        for k in np.flatnonzero((threads <= t) & (batches <= batch)):
            candidate = np.maximum(opt[t - threads[k], : batch + 1 - batches[k]], latency[k])
            target = opt[t, batches[k] :]
            better = candidate < target
            target[better] = candidate[better]
            choice[t, batches[k] :][better] = k

    if np.isinf(opt[cores, batch]):
        return None
    shares: list[tuple[int, int]] = []
    t, b = cores, batch
    while b > 0:
        point = int(choice[t, b])
        shares.append((int(rows[point]), int(batches[point])))
        t, b = t - int(threads[point]), b - int(batches[point])
    return Solution(float(opt[cores, batch]), tuple(sorted(shares, reverse=True)))
