"""How long the simulator takes for an hour of requests, and that the same seed gives the same run.

    python -m benchmarks.simulation [--json FILE] [--quick]

T = 16, requests of one item at random times, at 80 % of the capacity of the best plan, adaptation on. The
profile is the published one of BERT where it lies beside this checkout, else one that is made up.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.figures import Figure, options, report
from benchmarks.planner import synthetic
from partita.core.plan import Objective
from partita.core.profile import Profile
from partita.planning.estimator import EstimatorRules
from partita.planning.optimizer import Optimizer
from partita.profiling.store import read_profile
from partita.simulator.arrivals import Kind, Piece, generate
from partita.simulator.result import SimulationResult
from partita.simulator.settings import SimulationSettings
from partita.simulator.simulation import Simulation

CORES, MAX_BATCH = 16, 1024
LOAD = 0.8
HOUR_S, BAR_S = 3600.0, 60.0
TABLE = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "packrat" / "bert_profile.csv"


def profile() -> Profile:
    """Return the published profile of BERT, or one that is made up."""
    return read_profile(TABLE, mode="script") if TABLE.is_file() else synthetic(CORES, MAX_BATCH, seed=0)


def simulate(table: Profile, rate: float, seconds: float) -> tuple[SimulationResult, float]:
    """Return the run, and how long it took, seconds, its arrivals and first plan included."""
    start_s = perf_counter()
    load = generate(Kind.POISSON, (Piece(rate, rate, seconds),), np.random.default_rng(0))
    settings = SimulationSettings(
        cores=CORES, max_batch=MAX_BATCH, estimator=EstimatorRules(max_batch=MAX_BATCH)
    )
    result = Simulation(table, load, settings).run()
    return result, perf_counter() - start_s


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate twice, print the figures, and return 0 if both bars are met."""
    given = options(__doc__, "simulation").parse_args(argv)
    table = profile()
    optimizer = Optimizer(table)
    rate = LOAD * optimizer.items_per_s(optimizer.plan(CORES, MAX_BATCH, Objective.THROUGHPUT))
    seconds = HOUR_S / 6.0 if given.quick else HOUR_S
    result, took_s = simulate(table, rate, seconds)
    again, _ = simulate(table, rate, seconds)
    bar_s = BAR_S / 6.0 if given.quick else BAR_S
    requests = len(result.latencies_s)
    figures = [
        Figure(
            name=f"{seconds:g} s of requests, T = {CORES}, {LOAD:.0%} of capacity",
            figure=f"{took_s:.1f} s",
            bar=f"< {bar_s:g} s",
            passed=took_s < bar_s and result.answered == requests,
            details={"requests": requests, "items_per_s": rate, "requests_per_s": requests / took_s},
        ),
        Figure(
            name="the same seed again",
            figure=f"{np.count_nonzero(result.latencies_s != again.latencies_s)} latencies differ",
            bar="0",
            passed=bool((result.latencies_s == again.latencies_s).all()),
        ),
    ]
    return report("simulation", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
