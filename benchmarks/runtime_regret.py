"""What choosing by a few points costs: the runtime chosen against every other one, measured in full.

`partita profile` chooses for five models that differ in kind. Then every candidate that was admitted executes
both shapes of plans, one instance with all cores and one for each core, for several batch sizes, in turns. A
candidate's time is the geometric mean, over the batch sizes, of its better plan's median. The one with the
least and the chosen one are then measured again, against each other. Regret is the chosen one's ÷ the least
− 1.

What is made once, exports and compiled libraries, is made before anything is timed; `--prepare` does no more.

    python -m benchmarks.runtime_regret --quick
    python -m benchmarks.runtime_regret --models lookup,dense --prepare
"""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, load_average, options, report
from benchmarks.race import Race
from benchmarks.runtimes import CACHE
from benchmarks.torch_models import VARIED, torch_model_path
from partita.choosing import Choosing, candidates_of, chosen, with_candidate
from partita.core.choice import Candidate, Choice
from partita.core.errors import LoadFailed
from partita.core.formats import is_made_first
from partita.core.plan import InstanceSpec, Plan
from partita.core.topology import Topology
from partita.launching import launch_of
from partita.planning.placement import place
from partita.sources import ModelSource, find_models
from partita.system.cpus import read_topology, select_cores

BAR = 0.05
BATCHES = (1, 4, 16)
LONGEST_MAKING_S = 600.0


def regret(name: str, *, budget_s: float, turns: int) -> Figure:
    """Choose for a model, race all that were admitted, and return how much slower the chosen one is."""
    topology = read_topology()
    cores = select_cores(topology, None)
    (source,) = find_models(torch_model_path(name))
    prepare(source, cores)
    choice = chosen(source, cores, topology, Choosing(budget_s=budget_s, again=True, runtimes=None))
    assert choice is not None
    rivals = {a.candidate.key: a.candidate for a in choice.assessments if a.is_eligible}
    means = _raced(source, rivals, topology, cores, turns)
    best = min(means, key=means.__getitem__)
    finalists = {key: rivals[key] for key in (choice.winner, best)}
    again = _raced(source, finalists, topology, cores, turns) if len(finalists) > 1 else means
    return _figure(name, choice, means, best, again)


def prepare(source: ModelSource, cores: tuple[int, ...]) -> None:
    """Have what is made once made before anything is timed; compiled libraries are for one thread count."""
    for candidate in candidates_of(source):
        counts = {1, len(cores)} if candidate.runtime == "torch-compile" else {1}
        for threads in counts if is_made_first(source.path, candidate.runtime) else ():
            one = InstanceSpec(threads=threads, batch=1, cores=cores[:threads])
            launch = replace(launch_of(with_candidate(source, candidate)), load_limit_s=LONGEST_MAKING_S)
            try:
                with Race(source.path, largest=1, launch=launch) as race:
                    race.turn_ms(Plan(instances=(one,), cores=threads, batch=1))
            except LoadFailed as error:
                print(f"{candidate.key} cannot execute {source.name}: {str(error)[:200]}", flush=True)


def _raced(
    source: ModelSource,
    rivals: dict[str, Candidate],
    topology: Topology,
    cores: tuple[int, ...],
    turns: int,
) -> dict[str, float]:
    """Return each candidate's geometric mean time over the batch sizes, milliseconds."""
    plans = {batch: _plans(batch, topology, cores) for batch in BATCHES}
    found: dict[tuple[str, int, int], list[float]] = {}
    with ExitStack() as stack:
        races = {
            key: stack.enter_context(
                Race(source.path, largest=max(BATCHES), launch=launch_of(with_candidate(source, candidate)))
            )
            for key, candidate in rivals.items()
        }
        for turn in range(turns + 1):
            for batch, shapes in plans.items():
                for key, race in races.items():
                    for shape, plan in enumerate(shapes):
                        took_ms = race.turn_ms(plan)
                        if turn:  # the first one warms up
                            found.setdefault((key, batch, shape), []).append(took_ms)
    return {
        key: exp(
            sum(
                log(min(median(found[key, batch, shape]) for shape in range(len(shapes))))
                for batch, shapes in plans.items()
            )
            / len(plans)
        )
        for key in rivals
    }


def _plans(batch: int, topology: Topology, cores: tuple[int, ...]) -> list[Plan]:
    """Return one instance with all cores, and as many as there are cores, where the batch divides."""
    shapes = [1, len(cores)] if len(cores) > 1 and batch % len(cores) == 0 else [1]
    made = []
    for count in shapes:
        one = InstanceSpec(threads=len(cores) // count, batch=batch // count)
        plan = Plan(instances=(one,) * count, cores=len(cores), batch=batch)
        made.append(place(plan, topology, cores=cores))
    return made


def _figure(name: str, choice: Choice, means: dict[str, float], best: str, again: dict[str, float]) -> Figure:
    lost = again[choice.winner] / min(again.values()) - 1.0
    return Figure(
        name=f"{name}: regret of {choice.winner} against {len(means) - 1} others, best {best}",
        figure=f"{lost:.1%}",
        bar=f"≤ {BAR:.0%}",
        passed=lost <= BAR,
        details={
            "mean_ms": means,
            "again_ms": again,
            "not_admitted": {a.candidate.key: a.reason for a in choice.assessments if not a.is_eligible},
        },
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "runtime_regret")
    parser.add_argument("--models", default=",".join(VARIED))
    parser.add_argument("--budget", type=float, default=None, help="seconds for choosing, of each model")
    parser.add_argument("--prepare", action="store_true", help="make what is made once, and end")
    given = parser.parse_args(argv)
    os.environ["PARTITA_CACHE_DIR"] = str(Path(CACHE) / "regret")
    print(load_average(), flush=True)
    if given.prepare:
        for name in given.models.split(","):
            (source,) = find_models(torch_model_path(name))
            prepare(source, select_cores(read_topology(), None))
        return 0
    figures = []
    for name in given.models.split(","):
        budget_s = given.budget or (12.0 if given.quick else 40.0)
        figures.append(regret(name, budget_s=budget_s, turns=5 if given.quick else 15))
        print(f"{figures[-1].name}: {figures[-1].figure}  {figures[-1].details}", flush=True)
    best = {figure.name.rpartition("best ")[2] for figure in figures}
    if len(figures) > 1:
        figures.append(
            Figure(name="different winners", figure=", ".join(sorted(best)), bar="≥ 2", passed=len(best) > 1)
        )
    return report("runtime_regret", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
