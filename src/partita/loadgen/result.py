"""What came of a load: rates, latency percentiles, errors by kind."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BUCKETS_PER_DOUBLING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Figures of the measured window, warm-up excluded. Latencies are milliseconds of answered requests.

    Under an open loop a latency counts from when the request was meant to be sent, so that a server that
    stalls cannot hide the requests that would have come meanwhile (no coordinated omission).
    """

    mode: str
    """``closed`` or ``open``."""
    concurrency: int | None
    """Requests in flight at all times, of a closed loop."""
    rate: float | None
    """Requests meant to be sent each second, of an open loop."""
    window_s: float
    requests: int
    """Answered with status 200."""
    items: int
    requests_per_s: float
    items_per_s: float
    mean_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    max_ms: float | None
    errors: Mapping[str, int]
    """How many requests ended otherwise, by status or reason."""
    send_delay_p99_ms: float | None
    """How late the generator itself was, of an open loop: with much of it, the figures are its own."""
    histogram: tuple[tuple[float, int], ...]
    """(upper bound in ms, count), four buckets for every doubling."""

    def as_json(self) -> dict[str, Any]:
        """Return all figures as one JSON document."""
        return {**asdict(self), "errors": dict(self.errors), "histogram": [list(b) for b in self.histogram]}


def summarize(
    latencies_s: NDArray[np.float64],
    *,
    mode: str,
    concurrency: int | None,
    rate: float | None,
    window_s: float,
    completed: int,
    items: int,
    errors: Mapping[str, int],
    send_delays_s: NDArray[np.float64] | None = None,
) -> LoadResult:
    """Compute the figures. `latencies_s` (n,) seconds; `completed` of the n were answered in the window."""
    latencies_ms = np.sort(latencies_s) * 1e3
    percentiles = [percentile(latencies_ms, q) for q in (0.5, 0.9, 0.99, 0.999, 1.0)]
    late = None if send_delays_s is None else percentile(np.sort(send_delays_s) * 1e3, 0.99)
    return LoadResult(
        mode=mode,
        concurrency=concurrency,
        rate=rate,
        window_s=window_s,
        requests=len(latencies_ms),
        items=len(latencies_ms) * items,
        requests_per_s=completed / window_s,
        items_per_s=completed * items / window_s,
        mean_ms=float(latencies_ms.mean()) if len(latencies_ms) else None,
        p50_ms=percentiles[0],
        p90_ms=percentiles[1],
        p99_ms=percentiles[2],
        p999_ms=percentiles[3],
        max_ms=percentiles[4],
        errors=dict(sorted(errors.items())),
        send_delay_p99_ms=late,
        histogram=histogram(latencies_ms),
    )


def percentile(ordered: NDArray[np.float64], quantile: float) -> float | None:
    """Return the smallest value that `quantile` of the values do not exceed; None of no values."""
    if not len(ordered):
        return None
    rank = int(np.ceil(quantile * len(ordered)))
    return float(ordered[max(0, rank - 1)])


def histogram(latencies_ms: NDArray[np.float64]) -> tuple[tuple[float, int], ...]:
    """Count the values in buckets whose bounds grow by the fourth root of 2; empty ones are left out."""
    positive = np.maximum(latencies_ms, 1e-6)
    exponents = np.ceil(np.log2(positive) * _BUCKETS_PER_DOUBLING).astype(int)
    numbers, counts = np.unique(exponents, return_counts=True)
    return tuple(
        (float(2.0 ** (number / _BUCKETS_PER_DOUBLING)), int(count))
        for number, count in zip(numbers, counts, strict=True)
    )
