"""Plans of a model on disk, run for a moment on this machine's cores to see which is really the fastest."""

from collections.abc import Callable, Sequence
from pathlib import Path

from partita.core.plan import Plan
from partita.core.topology import Topology
from partita.deploy import launch_of
from partita.engine.engine import WORKER_ARGV
from partita.planning.contenders import contenders
from partita.planning.optimizer import Optimizer
from partita.planning.placement import place
from partita.profiling.crew import CrewSettings
from partita.profiling.verify import verify_plans
from partita.sources import ModelSource
from partita.system.clock import SystemClock

SECONDS = 5.0
"""For all plans together, loading not counted."""


def likely(optimizer: Optimizer, cores: int, batch: int, k: int, limit_ms: float | None = None) -> list[Plan]:
    """Return at most k kinds of plan that may be the fastest, the one that the profile says first among them.

    All keep the limit. Raises `NoFeasiblePlan` where none does.
    """
    found = contenders(optimizer, cores, batch, k)
    within = [plan for plan in found if limit_ms is None or (plan.expected_ms or 0.0) <= limit_ms]
    return within or [optimizer.plan(cores, batch, limit_ms=limit_ms)]


def verified(
    source: ModelSource,
    plans: Sequence[Plan],
    *,
    cores: Sequence[int],
    topology: Topology,
    seconds: float | None = None,
    samples: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> list[Plan]:
    """Return the plans, placed on these CPUs and with `measured_ms`, the fastest first.

    It takes `SECONDS` for all of them by default. Raises `NoFeasiblePlan` for a plan that needs more CPUs,
    `LoadFailed` or `ExecutionFailed`.
    """
    settings = CrewSettings(
        launch=launch_of(source),
        worker_argv=WORKER_ARGV,
        samples=samples,
        execution_limit_s=source.settings.execution_limit_s,
        note=note,
    )
    placed = [place(plan, topology, cores=cores) for plan in plans]
    return verify_plans(
        settings, placed, seconds=SECONDS if seconds is None else seconds, clock=SystemClock()
    )
