"""Profiles of the demo's models: the full, small grid, measured through the engine on real images."""

import asyncio
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile, ProfilePoint
from partita.demo import contest
from partita.engine.service import Service
from partita.sources import ModelSource

_WARM_UPS = 3
_LEAST, _MOST = 5, 100
"""Timed iterations of one point."""


def measure_profile(
    source: ModelSource, items: NDArray[np.float32], *, cores: Sequence[int], seconds: float
) -> Profile:
    """Return L[t, b] for t up to all cores and b the powers of two up to the number of `items` (n, …)."""
    with asyncio.Runner() as runner:
        return runner.run(_profile(source, items, cores, seconds))


async def _profile(
    source: ModelSource, items: NDArray[np.float32], cores: Sequence[int], seconds: float
) -> Profile:
    rng = np.random.default_rng(0)
    sizes = [1 << k for k in range(len(items).bit_length())]
    share_s = seconds / (len(cores) * len(sizes))
    points: list[ProfilePoint] = []
    for threads in range(1, len(cores) + 1):
        instance = InstanceSpec(threads=threads, batch=len(items))
        plan = contest.placed(Plan(instances=(instance,), cores=threads, batch=len(items)), cores)
        async with contest.running(source.path, plan, timeout_s=0.0) as service:
            for size in rng.permutation(sizes):
                points.append(await _point(service, items[:size], threads, share_s))  # noqa: PERF401
    return Profile(points)


async def _point(service: Service, items: NDArray[np.float32], threads: int, seconds: float) -> ProfilePoint:
    """Time one ⟨t, b⟩ as the worker itself does, so that the way there and back is left out."""
    loop = asyncio.get_running_loop()
    for _ in range(_WARM_UPS):
        await contest.answer(service, items)
    count = service.statistics.by_batch[len(items)]
    times_ms: list[float] = []
    end_s = loop.time() + seconds
    while len(times_ms) < _LEAST or (loop.time() < end_s and len(times_ms) < _MOST):
        before_ns = count.infer_ns + count.overhead_ns
        await contest.answer(service, items)
        times_ms.append((count.infer_ns + count.overhead_ns - before_ns) / 1e6)
    return ProfilePoint(
        threads=threads,
        batch=len(items),
        mean_ms=fmean(times_ms),
        min_ms=min(times_ms),
        max_ms=max(times_ms),
        stddev_ms=stdev(times_ms),
        iterations=len(times_ms),
    )
