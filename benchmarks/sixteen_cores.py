"""Profile, plan and verify on a machine of many cores: the paper's figures 4 and 5 for our models.

Figure 4 is the profile, the table of L[t, b] that plans are found in; figure 5 how much faster than ⟨1, T, B⟩
the chosen plan is for each B, expected from the profile and measured with all instances at once. Each model
has its share of the time for its profile, and each B of what is left; after eight minutes it is ended, and
reports what there is.

    python -m benchmarks.sixteen_cores --json sixteen.json --picture sixteen.png
    python -m benchmarks.sixteen_cores --cores 2 --quick       # the whole path on a small machine
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, load_average, options, report
from benchmarks.models import model_path
from benchmarks.watchdog import ends_within
from partita.core.errors import InvalidInput
from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.drawing import FAINT, INK, picture
from partita.planning.optimizer import Optimizer
from partita.profiles import Measuring, measured
from partita.sources import ModelSource, find_models
from partita.system.cpus import read_topology, select_cores
from partita.verified import verified

CORES = 16
LIMIT_S = 8 * 60.0
REPORT_S = 20.0
"""Set aside for the picture."""
PROFILE_SHARE = 0.5
LOADING_S = 15.0
"""Set aside for each model: workers that are loaded are not counted in any budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long, and on what."""

    models: tuple[str, ...]
    batches: tuple[int, ...]
    seconds: float


FULL = Effort(
    models=("resnet50", "depthwise", "tiny_cnn"),
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    seconds=0.9 * LIMIT_S,
)
QUICK = Effort(models=("tiny_cnn",), batches=(1, 4), seconds=6.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One B of one model; times are milliseconds for the whole batch."""

    batch: int
    plan: str
    expected_ms: float
    measured_ms: float
    fat_expected_ms: float | None
    fat_measured_ms: float

    @property
    def speedup(self) -> float:
        """How many times faster than ⟨1, T, B⟩ it really was."""
        return self.fat_measured_ms / self.measured_ms

    @property
    def expected_speedup(self) -> float | None:
        """The same by the profile; None where ⟨1, T, B⟩ is not in it."""
        return None if self.fat_expected_ms is None else self.fat_expected_ms / self.expected_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one model."""

    model: str
    profile: Profile
    measurements: tuple[Measurement, ...]


def examine(name: str, cores: tuple[int, ...], topology: Topology, effort: Effort, until_s: float) -> Outcome:
    """Profile a model, plan for each B, and run each plan beside ⟨1, T, B⟩, until this time at most."""
    (source,) = find_models(model_path(name))
    left_s = max(2.0, until_s - time.monotonic() - LOADING_S)
    if effort is QUICK:
        left_s = effort.seconds
    with tempfile.TemporaryDirectory() as folder:
        measuring = Measuring(budget_s=PROFILE_SHARE * left_s, folder=Path(folder))
        profile = measured(source, cores, topology, measuring)
    optimizer = Optimizer(profile)
    seconds = (1 - PROFILE_SHARE) * left_s / len(effort.batches)
    found = []
    for batch in effort.batches:
        if batch > max(profile.batches) * len(cores) or time.monotonic() > until_s:
            break
        found.append(_compare(source, optimizer.plan(len(cores), batch), cores, topology, profile, seconds))
        print(f"  B = {batch}: {found[-1].plan}, {found[-1].speedup:.2f} times as fast", flush=True)
    return Outcome(model=name, profile=profile, measurements=tuple(found))


def _compare(
    source: ModelSource,
    plan: Plan,
    cores: tuple[int, ...],
    topology: Topology,
    profile: Profile,
    seconds: float,
) -> Measurement:
    """Run a plan and ⟨1, T, B⟩ in turns."""
    fat = Plan(
        instances=(InstanceSpec(threads=len(cores), batch=plan.batch),), cores=len(cores), batch=plan.batch
    )
    plans = [fat] if plan.groups() == fat.groups() else [plan, fat]
    ran = verified(source, plans, cores=cores, topology=topology, seconds=seconds)
    times = [next(one.measured_ms for one in ran if one.groups() == asked.groups()) for asked in plans]
    return Measurement(
        batch=plan.batch,
        plan=str(plan),
        expected_ms=plan.expected_ms or 0.0,
        measured_ms=times[0] or 0.0,
        fat_expected_ms=profile.latency_ms(len(cores), plan.batch),
        fat_measured_ms=times[-1] or 0.0,
    )


# --- what is shown --------------------------------------------------------------------------------


def draw(path: Path, outcomes: Sequence[Outcome], cores: int) -> None:
    """Write the picture: a row for each model, its profile and its speedups."""
    title = f"{len(outcomes)} models on {cores} cores"
    with picture(path, title=title, inches=(10.0, 1.0 + 3.2 * len(outcomes)), dpi=110) as figure:
        grid = figure.subplots(len(outcomes), 2, squeeze=False, width_ratios=(1.1, 1.0))
        for (left, right), outcome in zip(grid, outcomes, strict=True):
            _draw_profile(left, outcome)
            _draw_speedup(right, outcome)


def _draw_profile(axes: Any, outcome: Outcome) -> None:
    """Milliseconds of an execution for each thread count, a line for each batch size (figure 4's table)."""
    points = outcome.profile.points
    for batch in outcome.profile.batches:
        known = [(t, p.mean_ms) for (t, b), p in points.items() if b == batch]
        axes.plot(*zip(*known, strict=True), marker="o", markersize=3, linewidth=1.0, label=f"b = {batch}")
    axes.set_title(f"{outcome.model}: L[t, b], {len(points)} points measured")
    axes.set_xlabel("threads t")
    axes.set_ylabel("ms")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.legend(fontsize=6, ncols=2)


def _draw_speedup(axes: Any, outcome: Outcome) -> None:
    """The chosen plan against ⟨1, T, B⟩ for each B, expected and measured (figure 5)."""
    found = outcome.measurements
    places = np.arange(len(found))
    expected = [one.expected_speedup or np.nan for one in found]
    axes.bar(places - 0.2, expected, 0.4, color="#b9c8dd", label="expected")
    axes.bar(places + 0.2, [one.speedup for one in found], 0.4, color="#1b7f79", label="measured")
    axes.axhline(1.0, color=FAINT, linewidth=0.8)
    for place, one in zip(places, found, strict=True):
        axes.text(place, 0.02, one.plan, rotation=90, fontsize=6, ha="center", va="bottom", color=INK)
    axes.set_xticks(places, [str(one.batch) for one in found])
    axes.set_title(f"{outcome.model}: speedup over ⟨1, T, B⟩")
    axes.set_xlabel("batch size B")
    axes.legend(fontsize=7)


def figures_of(outcomes: Sequence[Outcome]) -> list[Figure]:
    """Return a line for each B; nothing is judged, since the bars are for machines that we know."""
    return [
        Figure(
            name=f"{outcome.model}, B = {one.batch}, {one.plan}",
            figure=f"{one.speedup:.2f} ({one.fat_measured_ms:.2f} ÷ {one.measured_ms:.2f} ms)",
            bar="",
            passed=None,
            details={
                **asdict(one),
                "speedup": one.speedup,
                "expected_speedup": one.expected_speedup,
                "points": [[t, b, p.mean_ms] for (t, b), p in outcome.profile.points.items()],
            },
        )
        for outcome in outcomes
        for one in outcome.measurements
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "sixteen_cores")
    parser.add_argument("--cores", type=int, default=CORES, metavar="N", help=f"cores T, by default {CORES}")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw both figures")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    started_s, effort, topology = time.monotonic(), QUICK if given.quick else FULL, read_topology()
    try:
        cores = select_cores(topology, str(given.cores))
    except InvalidInput as error:
        print(f"{error}; --cores says how many there are to be")
        return 2
    print(load_average(), flush=True)
    outcomes: list[Outcome] = []

    def finish() -> int:
        if given.picture is not None and outcomes:
            draw(given.picture, outcomes, len(cores))
            print(f"drawn: {given.picture}")
        return report("sixteen_cores", figures_of(outcomes), given.json)

    with ends_within(given.limit - REPORT_S, finish):
        for place, name in enumerate(effort.models):
            until_s = started_s + effort.seconds * (place + 1) / len(effort.models)
            print(f"{name} on {len(cores)} cores …", flush=True)
            until_s = until_s if effort is FULL else float("inf")
            outcomes.append(examine(name, cores, topology, effort, until_s))
    return finish()


if __name__ == "__main__":
    sys.exit(main())
