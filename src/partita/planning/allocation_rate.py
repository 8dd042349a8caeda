"""What an allocation matrix promises, from latencies of its workers alone (beyond the ensembles paper).

A worker of batch b that takes L ms for it answers b / L items per ms while its device is its own. Workers
of one device take turns on it, so that a device has one unit of time to give away. Every item must pass
through every member: the ensemble is as fast as its slowest member. A member that is behind always has work
waiting and one that is ahead has none at times, so that time moves to the members that are behind; the
promise is what comes of that.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from partita.core.allocation import AllocationMatrix

Floats = NDArray[np.float64]
LatencyMs = Mapping[tuple[int, int, int], float]
"""Latency of one batch by (device, model, batch), ms, measured with nothing else on the device."""

_ROUNDS = 40
_HASTE = 0.5


def rate_predictor(latency_ms: LatencyMs) -> Callable[[AllocationMatrix], float]:
    """Return a function from a matrix to its predicted items per second, remembered by matrix.

    0 for a matrix with a worker whose latency is not known.
    """
    known: dict[AllocationMatrix, float] = {}

    def predict(matrix: AllocationMatrix) -> float:
        if matrix not in known:
            known[matrix] = predicted_items_per_s(matrix, latency_ms)
        return known[matrix]

    return predict


def predicted_items_per_s(matrix: AllocationMatrix, latency_ms: LatencyMs) -> float:
    """Return the items per second of the slowest member, once time has moved to the members that are behind.

    Approached from below: a division of every device's time that reaches what is returned exists.
    """
    alone = np.zeros((matrix.devices, matrix.models))  # (devices, models) float64, items per s
    for device, model, batch in matrix.workers():
        taken_ms = latency_ms.get((device, model, batch))
        if not taken_ms:
            return 0.0
        alone[device, model] = 1000 * batch / taken_ms
    return _evened_out(alone)


def _evened_out(alone: Floats) -> float:
    """Return the rate of the slowest model, time having been shifted to it until it is slowest no more."""
    wish = (alone > 0).astype(float)
    best = 0.0
    for _ in range(_ROUNDS):
        total = wish.sum(axis=1, keepdims=True)
        share = np.divide(wish, total, out=np.zeros_like(wish), where=total > 0)
        rates = (share * alone).sum(axis=0)
        best = max(best, float(rates.min()))
        if rates.min() <= 0 or rates.max() / rates.min() < 1.005:
            break
        wish *= (rates.min() / rates) ** _HASTE
    return best
