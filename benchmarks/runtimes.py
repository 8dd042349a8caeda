"""What choosing the runtime is worth: Partita's choice against the paper's baseline, A B A B.

A is *fat*: one worker with all cores, TorchScript as ``torch.jit.load`` gives it, the C library's allocator
as it is, one execution. B is what `partita profile` chose, on the plan for that batch size. Both get the same
items; the time is that of one aggregate batch, until its last item is there. Beside each ratio stands the one
that the arithmetic of these cores would allow (`benchmarks.arithmetic`). Profiles are kept below
``benchmarks/results/cache``, so that a second run measures the contest alone. With `--resume` the
alternations are kept too, and a run `--within` some seconds adds as many as it has time for.

    python -m benchmarks.runtimes --quick
    python -m benchmarks.runtimes --models bert_base --batches 1,2,4 --budget 200
    python -m benchmarks.runtimes --resume benchmarks/results/pairs.json --within 200
    python -m benchmarks.runtimes --torch-only
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.arithmetic import best_rate, least_ms
from benchmarks.compare import MIN_ALTERNATIONS, Comparison
from benchmarks.figures import Figure, load_average, options, report
from benchmarks.pairs import Pairs
from benchmarks.race import Race
from benchmarks.torch_models import torch_model_path
from partita.choosing import CHOICE_SHARE, Choosing, adopted, chosen, stored
from partita.core.choice import Choice
from partita.core.plan import InstanceSpec, Plan
from partita.core.process_settings import ProcessSettings
from partita.core.topology import Topology
from partita.engine.instance import ModelLaunch
from partita.launching import launch_of
from partita.planning.optimizer import Optimizer
from partita.planning.placement import place
from partita.profiles import Measuring, measured
from partita.sources import ModelSource, find_models
from partita.system.cpus import read_topology, select_cores

CACHE = Path(__file__).resolve().parent / "results" / "cache"
BATCHES = (1, 2, 4, 8, 16, 32)
MEAN_BAR = 2.0
LEAST_BAR = {"resnet50": 1.4, "bert_base": 1.7}
TORCH_ONLY_BAR = 1.3
_LONG_MS = 150.0
"""A batch that ours takes longer for needs no second one in its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """What Partita executes a model with, and what its plans are made of."""

    source: ModelSource
    choice: Choice | None
    optimizer: Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What came of one batch size.

    `most` is the ratio of the fat worker's median time to what the cores' arithmetic would allow.
    """

    found: Comparison
    plan: Plan
    most: float


def rival(
    path: Path, cores: Sequence[int], topology: Topology, *, budget_s: float, torch_only: bool
) -> Rival:
    """Return Partita's choice, made and profiled now unless it is kept."""
    (source,) = find_models(path)
    choosing = Choosing(budget_s=budget_s * CHOICE_SHARE, runtimes=() if torch_only else None)
    choice = stored(source, topology) or chosen(source, tuple(cores), topology, choosing)
    source = adopted(source, topology)
    measuring = Measuring(budget_s=budget_s * (1 - CHOICE_SHARE))
    profile = measured(source, tuple(cores), topology, measuring)
    sockets = tuple(map(len, topology.by_socket(tuple(cores))))
    return Rival(source=source, choice=choice, optimizer=Optimizer(profile, sockets=sockets))


def fat_launch(source: ModelSource) -> ModelLaunch:
    """Return the baseline's launch: TorchScript with nothing done to it, in a process with nothing set."""
    settings = msgspec.structs.replace(
        source.settings,
        runtime="torch-script",
        options={"freeze": False},
        process=ProcessSettings(allocator="plain"),
    )
    return launch_of(replace(source, runtime="torch-script", settings=settings))


def contest(
    name: str,
    path: Path,
    batches: Sequence[int],
    *,
    alternations: int,
    budget_s: float,
    torch_only: bool,
    pairs: Pairs,
) -> list[Figure]:
    """Return one figure for each batch size and that of all together."""
    topology = read_topology()
    cores = select_cores(topology, None)
    ours = rival(path, cores, topology, budget_s=budget_s, torch_only=torch_only)
    (plain,) = find_models(path)
    comparisons: dict[int, Contest] = {}
    with (
        Race(path, largest=max(batches), launch=fat_launch(plain)) as fat_race,
        Race(path, largest=max(batches), launch=launch_of(ours.source)) as our_race,
    ):
        for batch in batches:
            fat = place(_fat(len(cores), batch), topology, cores=cores)
            plan = place(ours.optimizer.plan(len(cores), batch), topology, cores=cores)
            about = f"{name}, B = {batch}, {ours.source.runtime} {plan}"
            found = _compared(about, our_race, plan, fat_race, fat, alternations, pairs)
            if found is not None:
                most = median(found.b) / least_ms(name, batch, best_rate())
                comparisons[batch] = Contest(found=found, plan=plan, most=most)
                print(f"{found}; at most {most:.2f}", flush=True)
    return _figures(name, ours, comparisons, torch_only=torch_only) if comparisons else []


def _fat(cores: int, batch: int) -> Plan:
    return Plan(instances=(InstanceSpec(threads=cores, batch=batch),), cores=cores, batch=batch)


def _compared(
    name: str, ours: Race, plan: Plan, fat_race: Race, fat: Plan, alternations: int, pairs: Pairs
) -> Comparison | None:
    """Take turns; A is ours and B the fat one, so that the ratio says how many times faster we are."""
    burst = 1 if (plan.expected_ms or 0.0) > _LONG_MS else 3
    return pairs.run(
        name,
        lambda: ours.turn_ms(plan, burst=burst),
        lambda: fat_race.turn_ms(fat, burst=burst),
        alternations,
        unit="ms",
    )


def _figures(name: str, ours: Rival, contests: dict[int, Contest], *, torch_only: bool) -> list[Figure]:
    least_bar = 1.0 if torch_only else LEAST_BAR[name]
    runtime = ours.source.runtime
    figures = [
        Figure(
            name=f"{name}, B = {batch}: fat ÷ {runtime} {one.plan}",
            figure=f"{one.found.ratio:.2f} [{one.found.low:.2f}, {one.found.high:.2f}], "
            f"at most {one.most:.2f}",
            bar=f"≥ {least_bar:g}",
            passed=one.found.ratio >= least_bar,
            details={"ours_ms": one.found.a, "fat_ms": one.found.b, "plan": str(one.plan), "most": one.most},
        )
        for batch, one in contests.items()
    ]
    mean, most = (
        _mean(ratios) for ratios in zip(*((c.found.ratio, c.most) for c in contests.values()), strict=True)
    )
    bar = TORCH_ONLY_BAR if torch_only else MEAN_BAR
    figures.append(
        Figure(
            name=f"{name}, geometric mean over B ∈ {{{', '.join(map(str, contests))}}}",
            figure=f"{mean:.2f}, at most {most:.2f}",
            bar=f"≥ {bar:g}",
            passed=mean >= bar,
            details=_details(ours),
        )
    )
    return figures


def _mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def _details(ours: Rival) -> dict[str, Any]:
    choice = None if ours.choice is None else msgspec.to_builtins(ours.choice)
    return {"choice": choice, "options": dict(ours.source.settings.options)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "runtimes")
    parser.add_argument("--models", default="resnet50", help="resnet50, bert_base, or both with a comma")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), metavar="B,B,…")
    parser.add_argument("--alternations", type=int, default=MIN_ALTERNATIONS)
    parser.add_argument(
        "--budget", type=float, default=None, help="seconds for choice and profile of a model"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep the alternations here and go on with them"
    )
    parser.add_argument(
        "--within", type=float, metavar="S", help="end after about so many seconds of contest"
    )
    parser.add_argument("--torch-only", action="store_true", help="as if no other runtime were installed")
    given = parser.parse_args(argv)
    os.environ["PARTITA_CACHE_DIR"] = str(CACHE / ("torch" if given.torch_only else "all"))
    print(load_average(), flush=True)
    batches = [int(text) for text in given.batches.split(",")]
    figures: list[Figure] = []
    pairs = Pairs(given.resume, given.within)
    for name in given.models.split(","):
        figures += contest(
            name,
            torch_model_path(name),
            batches if not given.quick else batches[: len(batches) // 2 + 1],
            alternations=given.alternations,
            budget_s=given.budget or (100.0 if given.quick else 300.0),
            torch_only=given.torch_only,
            pairs=pairs,
        )
    return report("runtimes", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
