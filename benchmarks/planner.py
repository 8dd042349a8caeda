"""How long the planner takes, on a profile far larger than any machine's today.

    python -m benchmarks.planner [--json FILE] [--quick]

T = 128 cores, B = 4096 items, from a full profile: 128 thread counts x 13 batch sizes (powers of two). The
latencies are made up, in the shape of measured ones: a serial part, a parallel part, a cost of threads that
grows with their number, and noise from a fixed seed. Each time starts with a cold optimizer: from the profile
to the plan, nothing remembered. The bar is on the median of the plan of least latency; how long plans for
verification and for unknown loads take, which are asked for once per start, is held to what feels immediate.
"""

import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.figures import Figure, options, report
from partita.core.profile import Profile, ProfilePoint
from partita.planning.optimizer import Optimizer

CORES, BATCH = 128, 4096
BAR_MS = 50.0
INTERACTIVE_MS = 1000.0
CANDIDATES = 8


def synthetic(cores: int, max_batch: int, seed: int) -> Profile:
    """Return a profile of all thread counts and all powers of two up to `max_batch`."""
    rng = np.random.default_rng(seed)
    threads = np.arange(1, cores + 1)[:, None]
    batches = 2 ** np.arange(max_batch.bit_length())[None, :]
    compute = 2.0 * batches * (0.06 + 0.94 / threads)  # ms; 6 % of it is serial
    latency = (0.5 + 0.02 * threads**1.2 + compute) * rng.normal(1.0, 0.03, compute.shape).clip(0.9, 1.1)
    return Profile(
        ProfilePoint(threads=t + 1, batch=2**k, mean_ms=float(latency[t, k]))
        for t, k in np.ndindex(latency.shape)
    )


def times_ms(profiles: Sequence[Profile], answer: Callable[[Optimizer], object]) -> list[float]:
    """Return how long each profile took to answer from, with an optimizer of its own."""
    times = []
    for profile in profiles:
        start_s = perf_counter()
        answer(Optimizer(profile))
        times.append((perf_counter() - start_s) * 1000.0)
    return times


def judged(name: str, times: list[float], bar_ms: float) -> Figure:
    middle = median(times)
    return Figure(
        name=name,
        figure=f"{middle:.1f} ms",
        bar=f"< {bar_ms:g} ms",
        passed=middle < bar_ms,
        details={"median_ms": middle, "min_ms": min(times), "max_ms": max(times), "runs": len(times)},
    )


def main(argv: Sequence[str] | None = None) -> int:
    given = options(__doc__, "planner").parse_args(argv)
    runs, slow_runs = (20, 1) if given.quick else (50, 5)
    profiles = [synthetic(CORES, BATCH, seed) for seed in range(runs)]
    size = f"T = {CORES}, B = {BATCH}"
    Optimizer(profiles[0]).plan(CORES, BATCH)  # imports and first calls are not the planner's time
    figures = [
        judged(f"plan, {size}", times_ms(profiles, lambda o: o.plan(CORES, BATCH)), BAR_MS),
        judged(
            f"{CANDIDATES} candidates, {size}",
            times_ms(profiles[:slow_runs], lambda o: o.candidates(CORES, BATCH, CANDIDATES)),
            INTERACTIVE_MS,
        ),
        judged(
            f"plan for unknown loads, {size}",
            times_ms(profiles[:slow_runs], lambda o: o.robust(CORES, BATCH)),
            INTERACTIVE_MS,
        ),
    ]
    return report("planner", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
