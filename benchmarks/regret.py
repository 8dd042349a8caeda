"""Partita's choice of plan against all plans of two cores, each really run with all its instances at once.

Partita chooses as a user has it choose: lazy profile, optimizer, the best kinds of plan run for a moment.
Then every plan ⟨1,2,B⟩, ⟨2,1,·⟩ and ⟨1,1,B⟩ with micro-batches is run in turns; the fastest three and the
chosen one run again in turns: half of these turns name the best plan, the others say by how much it is
better, since the least of several noisy times is too good to be true. What a plan takes is what its workers
tell, from the first begin to the last end.

    python -m benchmarks.regret --quick --models tiny_cnn lstm
    python -m benchmarks.regret --models lstm --batches 8,16
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Protocol

from benchmarks.compare import Comparison
from benchmarks.figures import Figure, load_average, options, report
from benchmarks.models import SMALL, model_path
from benchmarks.race import Race
from partita.core.plan import InstanceSpec, Plan
from partita.core.topology import Topology
from partita.deploy import launch_of
from partita.engine.engine import WORKER_ARGV
from partita.planning.contenders import contenders
from partita.planning.optimizer import Optimizer
from partita.planning.placement import place
from partita.profiles import Measuring, measured
from partita.profiling.crew import CrewSettings
from partita.profiling.verify import verify_plans
from partita.settings import Settings
from partita.sources import ModelSource, find_all
from partita.system.clock import SystemClock
from partita.system.cpus import read_topology, select_cores
from partita.verified import SECONDS

CORES = 2
BATCHES = (1, 2, 4, 8, 16, 32)
LIMIT = 0.05
SPREAD = 1.5
MODELS_WANTED = 3
VERIFIED = 8
FINALISTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure."""

    budget_s: float
    verify_s: float
    turns: int
    """Of every plan."""
    final_turns: int
    """Of the finalists and the chosen plan, half to choose and half to compare."""
    work_s: float = 0.0
    """Least work in a turn of the finalists; 0 = a burst of batches."""


FULL = Effort(budget_s=30.0, verify_s=SECONDS, turns=5, final_turns=30)
QUICK = Effort(budget_s=5.0, verify_s=0.3, turns=2, final_turns=12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one model and B. `against_best` is best (A) against chosen (B), milliseconds."""

    model: str
    batch: int
    plans: int
    chosen: Plan
    best: Plan
    worst: Plan
    spread: float
    """Worst plan ÷ best plan."""
    against_best: Comparison

    @property
    def regret(self) -> float:
        """How much longer the chosen plan takes than the best one; 0 where it is the best."""
        return 0.0 if same(self.chosen, self.best) else max(0.0, self.against_best.ratio - 1.0)


def all_plans(batch: int, micro_batches: Sequence[int]) -> Iterator[Plan]:
    """Yield every plan for two cores: instances, shares and micro-batch sizes."""
    for threads in (2, 1):
        for r in micro_batches:
            if r <= batch:
                yield _plan([(threads, batch)], r, batch)
    for first in range(batch - 1, (batch - 1) // 2, -1):
        for r in micro_batches:
            if r <= first:
                yield _plan([(1, first), (1, batch - first)], r, batch)


def _plan(instances: Sequence[tuple[int, int]], micro_batch: int, batch: int) -> Plan:
    specs = tuple(InstanceSpec(threads=t, batch=b, executions=split(b, micro_batch)) for t, b in instances)
    return Plan(instances=specs, cores=CORES, batch=batch)


def split(items: int, micro_batch: int) -> tuple[int, ...]:
    """Return the executions of so many items: full ones and the rest."""
    full, rest = divmod(items, min(items, micro_batch))
    return (min(items, micro_batch),) * full + ((rest,) if rest else ())


def same(a: Plan, b: Plan) -> bool:
    """Whether two plans run the same executions on the same cores; where workers may roam does not count."""
    return [replace(i, affinity=()) for i in a.instances] == [replace(i, affinity=()) for i in b.instances]


def described(plan: Plan) -> str:
    """Return the plan with the executions of each instance."""
    return " ".join(
        f"⟨{n},{i.threads},{i.batch}:{'+'.join(map(str, i.executions))}⟩" for i, n in plan.groups()
    )


class Chooser:
    """One model's profile and optimizer, and the verification of what it proposes."""

    def __init__(self, path: Path, topology: Topology, cores: tuple[int, ...], effort: Effort) -> None:
        source = _source(path)
        with tempfile.TemporaryDirectory() as folder:
            measuring = Measuring(budget_s=effort.budget_s, folder=Path(folder))
            profile = measured(source, cores, topology, measuring)
        self.points = len(profile.points)
        self._optimizer = Optimizer(profile)
        self._topology = topology
        self._cores = cores
        self._settings = CrewSettings(launch=launch_of(source), worker_argv=WORKER_ARGV)
        self._seconds = effort.verify_s

    def placed(self, plan: Plan) -> Plan:
        return place(plan, self._topology, cores=self._cores)

    def choose(self, batch: int) -> Plan:
        """Return the placed plan that Partita takes for B items."""
        candidates = [self.placed(p) for p in contenders(self._optimizer, CORES, batch, VERIFIED)]
        return verify_plans(self._settings, candidates, seconds=self._seconds, clock=SystemClock())[0]


def _source(path: Path) -> ModelSource:
    (source,) = find_all((path,), Settings())
    return source


class Chooses(Protocol):
    """Whose choice is put to the test."""

    def placed(self, plan: Plan) -> Plan: ...

    def choose(self, batch: int) -> Plan: ...


def contest(model: str, race: Race, chooser: Chooses, batch: int, effort: Effort) -> Outcome:
    """Choose, run everything, and compare the chosen plan with the best."""
    chosen = chooser.choose(batch)
    plans = [chooser.placed(plan) for plan in all_plans(batch, [b for b in BATCHES if b <= batch])]
    if not any(same(chosen, plan) for plan in plans):
        plans.append(chosen)
    times = [median(one) for one in race.turns(plans, count=effort.turns)]
    order = sorted(range(len(plans)), key=times.__getitem__)
    finalists = [plans[k] for k in order[:FINALISTS]]
    if not any(same(chosen, plan) for plan in finalists):
        finalists.append(chosen)
    again = race.turns(finalists, count=effort.final_turns, work_s=effort.work_s)
    at = min(range(len(finalists)), key=lambda k: median(again[k][::2]))
    mine = next(k for k, plan in enumerate(finalists) if same(chosen, plan))
    comparison = Comparison.of(f"{model} B={batch}", again[at][1::2], again[mine][1::2], unit="ms")
    return Outcome(
        model=model,
        batch=batch,
        plans=len(plans),
        chosen=chosen,
        best=finalists[at],
        worst=plans[order[-1]],
        spread=times[order[-1]] / times[order[0]],
        against_best=comparison,
    )


def run(model: str, effort: Effort, batches: Sequence[int]) -> list[Outcome]:
    """Return the outcomes of one model."""
    topology = read_topology()
    path = model_path(model)
    chooser = Chooser(path, topology, select_cores(topology, str(CORES)), effort)
    print(f"{model}: {chooser.points} points profiled, {load_average()}", flush=True)
    outcomes = []
    with Race(path, largest=max(batches)) as race:
        for batch in batches:
            one = contest(model, race, chooser, batch, effort)
            outcomes.append(one)
            ratio = one.against_best
            print(
                f"  B={batch:2}  regret {one.regret:6.1%} [{ratio.low - 1:+.1%}, {ratio.high - 1:+.1%}]  "
                f"spread {one.spread:4.2f} of {one.plans} plans  chosen {described(one.chosen)} "
                f"{median(ratio.b):.3f} ms  best {described(one.best)} {median(ratio.a):.3f} ms",
                flush=True,
            )
    return outcomes


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """Return a figure for every model whose plans differ enough, and one that says whether these suffice."""
    found = []
    models = list(dict.fromkeys(one.model for one in outcomes))
    wide = 0
    for model in models:
        mine = [one for one in outcomes if one.model == model]
        spread = max(one.spread for one in mine)
        wide += spread >= SPREAD
        worst = max(mine, key=lambda one: one.regret)
        low, high = worst.against_best.low - 1, worst.against_best.high - 1
        found.append(
            Figure(
                name=f"regret, {model}, worst of B = {', '.join(str(one.batch) for one in mine)}",
                figure=f"{worst.regret:.1%} at B={worst.batch} [{low:+.1%}, {high:+.1%}]; plans differ up to "
                f"{spread:.2f} x",
                bar=f"<= {LIMIT:.0%}",
                passed=worst.regret <= LIMIT if spread >= SPREAD else None,
                details={str(one.batch): _details(one) for one in mine},
            )
        )
    wanted = min(MODELS_WANTED, len(models))
    found.append(
        Figure(
            name=f"models whose plans differ by {SPREAD} x or more",
            figure=f"{wide} of {len(models)}",
            bar=f">= {wanted}",
            passed=wide >= wanted,
        )
    )
    return found


def _details(one: Outcome) -> dict[str, object]:
    return {
        "regret": one.regret,
        "plans": one.plans,
        "spread": one.spread,
        "chosen": described(one.chosen),
        "best": described(one.best),
        "worst": described(one.worst),
        "best_ms": one.against_best.a,
        "chosen_ms": one.against_best.b,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "regret")
    parser.add_argument("--models", nargs="+", choices=sorted(SMALL), default=None, metavar="NAME")
    parser.add_argument("--batches", default=None, metavar="B,B,…", help=",".join(map(str, BATCHES)))
    given = parser.parse_args(argv)
    topology = read_topology()
    if topology.usable_cores < CORES:
        text = f"{CORES} cores are needed, {topology.usable_cores} can be used"
        return report("regret", [Figure(name="regret", figure=text, bar="", passed=None)], given.json)
    models = given.models or (list(SMALL)[:3] if given.quick else list(SMALL))
    effort = QUICK if given.quick else FULL
    batches: Sequence[int] = BATCHES[::2] if given.quick else BATCHES
    if given.batches is not None:
        batches = [int(text) for text in given.batches.split(",")]
    outcomes = [one for model in models for one in run(model, effort, batches)]
    return report("regret", figures(outcomes), given.json)


if __name__ == "__main__":
    sys.exit(main())
