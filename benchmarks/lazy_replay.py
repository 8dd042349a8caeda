"""Replays lazy profiling on published tables: how long it would take, and how good the plans then are.

One iteration of ⟨t, b⟩ takes the published latency times 1 + 5 % of normal noise. The regret of a batch B
is what the plan chosen from the lazily measured table takes, by the published table, ÷ what the best plan of
the published table takes, − 1; both plans by the same optimizer, micro-batches and padding allowed.

    python -m benchmarks.lazy_replay --seeds 1
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from math import sqrt
from pathlib import Path

import numpy as np

from partita.core.plan import Plan
from partita.core.profile import Profile, ProfilePoint
from partita.planning.optimizer import Optimizer
from partita.planning.sampling import LazySampler, SamplerSettings
from partita.planning.sampling_iterations import PointRun, Sample
from partita.profiling.csv_table import read_csv

TABLES = ("bert", "gpt2", "resnet")
MODES = ("script", "eager")
CORES = (11, 12, 13, 14, 15, 16)
LARGEST = 1024
NOISE = 0.05
BUDGET_S = 356.0
LIMIT_S = 360.0
MEDIAN_LIMIT = 0.01
WORST_LIMIT = 0.05
SHARED = Path(__file__).resolve().parents[1].parent / "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One replay."""

    table: str
    mode: str
    cores: int
    seed: int
    file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a replay found; regrets are fractions over B = 1..1024."""

    table: str
    mode: str
    cores: int
    seed: int
    points: int
    visits: int
    seconds: float
    regret_median: float
    regret_worst: float
    worst_batch: int
    above_limit: int

    @property
    def passed(self) -> bool:
        """Whether the bar of this project is met."""
        return (
            self.seconds <= LIMIT_S
            and self.regret_median <= MEDIAN_LIMIT
            and self.regret_worst <= WORST_LIMIT
        )


def replay(
    truth: Profile, *, cores: int, seed: int, budget_s: float = BUDGET_S
) -> tuple[Profile, int, float]:
    """Return the lazily measured profile, the visits, and the seconds that they would have taken."""
    rng = np.random.default_rng(seed)
    settings = SamplerSettings(cores=cores, max_batch=LARGEST)
    sampler = LazySampler(settings, budget_s=budget_s)
    spent_s, visits = 0.0, 0
    while (measure := sampler.next(budget_s - spent_s)) is not None:
        key = (measure.threads, measure.batch)
        mean_ms = truth.latency_ms(*key)
        assert mean_ms is not None, f"the published table lacks {key}"
        run = PointRun(measure.rule, before=sampler.samples.get(key))
        while run.wants_warm_up:
            run.record_warm_up(mean_ms * _noise(rng))
        while run.wants_iteration:
            run.record(mean_ms * _noise(rng))
        spent_s += (run.warm_up_ms + run.timed_ms) / 1e3
        visits += 1
        sampler.record(*key, run.sample)
    return Profile(_point(*key, sample) for key, sample in sampler.samples.items()), visits, spent_s


def regrets(truth: Profile, measured: Profile, *, cores: int, batches: Sequence[int]) -> "np.ndarray":
    """Return the regret of each batch, float64."""
    optimizer, ideal = Optimizer(measured), Optimizer(_up_to(truth, cores))
    optimizer.costs(max(batches))
    ideal.costs(max(batches))
    return np.array(
        [
            _true_ms(truth, optimizer.plan(cores, batch)) / (ideal.plan(cores, batch).expected_ms or 1.0) - 1
            for batch in batches
        ]
    )


def run(case: Case) -> Outcome:
    """Replay one case."""
    truth = read_csv(case.file, mode=case.mode)
    measured, visits, seconds = replay(truth, cores=case.cores, seed=case.seed)
    regret = regrets(truth, measured, cores=case.cores, batches=range(1, LARGEST + 1))
    return Outcome(
        table=case.table,
        mode=case.mode,
        cores=case.cores,
        seed=case.seed,
        points=len(measured.points),
        visits=visits,
        seconds=round(seconds, 1),
        regret_median=float(np.median(regret)),
        regret_worst=float(regret.max()),
        worst_batch=int(regret.argmax()) + 1,
        above_limit=int((regret > WORST_LIMIT).sum()),
    )


def _point(threads: int, batch: int, sample: Sample) -> ProfilePoint:
    """Return what the profiler keeps of a point."""
    return ProfilePoint(
        threads=threads,
        batch=batch,
        mean_ms=sample.mean_ms,
        stddev_ms=sqrt(sample.variance) if sample.iterations > 1 else None,
        iterations=sample.iterations,
    )


def _noise(rng: np.random.Generator) -> float:
    return max(0.1, 1.0 + NOISE * float(rng.standard_normal()))


def _true_ms(truth: Profile, plan: Plan) -> float:
    def took(threads: int, executions: Sequence[int]) -> float:
        return sum(truth.latency_ms(threads, size) or np.inf for size in executions)

    return max(took(one.threads, one.executions) for one in plan.instances)


def _up_to(profile: Profile, cores: int) -> Profile:
    return Profile(p for p in profile.points.values() if p.threads <= cores and p.batch <= LARGEST)


def _cases(shared: Path, seeds: range) -> Iterator[Case]:
    for table, mode, cores, seed in product(TABLES, MODES, CORES, seeds):
        file = shared / "data" / "packrat" / f"{table}_profile.csv"
        yield Case(table=table, mode=mode, cores=cores, seed=seed, file=file)


def _line(one: Outcome) -> str:
    return (
        f"{one.table:7}{one.mode:7} T={one.cores:2} seed={one.seed} points={one.points:4} "
        f"seconds={one.seconds:6.1f} regret median={one.regret_median:6.2%} worst={one.regret_worst:6.2%} "
        f"(B={one.worst_batch}) above 5 %: {one.above_limit}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder that holds data/packrat")
    parser.add_argument("--seeds", type=int, default=1, help="different noise for each; default 1")
    parser.add_argument(
        "--first-seed", type=int, default=0, help="0 and 1 were seen while the sampler was tuned; default 0"
    )
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(argv)
    if not (given.shared / "data" / "packrat").is_dir():
        print(f"skipped: no published tables in {given.shared / 'data' / 'packrat'}")
        return 0
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    outcomes = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for outcome in pool.map(run, _cases(given.shared, seeds)):
            outcomes.append(outcome)
            print(_line(outcome), flush=True)
    failed = [outcome for outcome in outcomes if not outcome.passed]
    print(
        f"\n{len(outcomes) - len(failed)} of {len(outcomes)} replays meet the bar: longest "
        f"{max(o.seconds for o in outcomes):.0f} s, "
        f"largest median {max(o.regret_median for o in outcomes):.2%}, "
        f"worst regret {max(o.regret_worst for o in outcomes):.2%}, batches above 5 %: "
        f"{sum(o.above_limit for o in outcomes)} of {LARGEST * len(outcomes)}"
    )
    if given.json is not None:
        document = [{**asdict(outcome), "passed": outcome.passed} for outcome in outcomes]
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
