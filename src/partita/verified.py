"""Plans of a model on disk, run for a moment on this machine's cores to see which is really the fastest."""

from collections.abc import Callable, Sequence
from pathlib import Path

from partita.core.plan import Plan
from partita.core.topology import Topology
from partita.deploy import launch_of
from partita.engine.engine import WORKER_ARGV
from partita.planning.placement import place
from partita.profiling.verify import VerifySettings, verify_plans
from partita.sources import ModelSource
from partita.system.clock import SystemClock

SECONDS = 5.0
"""For all plans together, loading not counted."""


def verified(
    source: ModelSource,
    plans: Sequence[Plan],
    *,
    cores: Sequence[int],
    topology: Topology,
    seconds: float = SECONDS,
    samples: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> list[Plan]:
    """Return the plans, placed on these CPUs and with `measured_ms`, the fastest first.

    Raises `NoFeasiblePlan` for a plan that needs more CPUs, `LoadFailed` or `ExecutionFailed`.
    """
    settings = VerifySettings(
        launch=launch_of(source),
        worker_argv=WORKER_ARGV,
        seconds=seconds,
        samples=samples,
        execution_limit_s=source.settings.execution_limit_s,
        note=note,
    )
    placed = [place(plan, topology, cores=cores) for plan in plans]
    return verify_plans(settings, placed, clock=SystemClock())
