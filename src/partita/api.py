"""Planning as a function call."""

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path

from partita.core.errors import InvalidInput
from partita.core.plan import Objective, Plan
from partita.deploy import as_launched
from partita.planning.optimizer import Optimizer
from partita.profiles import Measuring, measured
from partita.profiling.runner import Listener, Progress
from partita.sources import find_models
from partita.system.cpus import read_topology, select_cores
from partita.verified import likely, verified


def plan(
    path: str | PathLike[str],
    *,
    cores: int | str | None = None,
    batch: int,
    objective: Objective | str = Objective.LATENCY,
    limit_ms: float | None = None,
    micro_batches: bool = True,
    verify: int | None = None,
    budget_s: float = 30.0,
    progress: Callable[[Progress], None] | None = None,
) -> Plan:
    """Return the best plan of a model for `batch` items on this machine's cores; profiles it first if needed.

    `cores` is a count or a list as ``"0-3"``, all usable ones by default. With `verify` so many kinds of plan
    are run for a few seconds, and the one of least latency is taken. Raises `InvalidInput`, `NoFeasiblePlan`,
    `LoadFailed` or `ExecutionFailed`.
    """
    goal = Objective(objective)
    if verify is not None and goal is not Objective.LATENCY:
        raise InvalidInput("verify compares latencies; leave the objective throughput out")
    sources = find_models(Path(path))
    if len(sources) != 1:
        raise InvalidInput(f"{path} holds {len(sources)} models; name one of them")
    topology = read_topology()
    chosen = select_cores(topology, None if cores is None else str(cores))
    listener = Listener() if progress is None else Listener(progress=progress)
    source = as_launched(sources[0], topology, "refuse")
    profile = measured(source, chosen, topology, Measuring(budget_s=budget_s, listener=listener))
    optimizer = Optimizer(
        profile,
        sockets=tuple(map(len, topology.by_socket(chosen))),
        micro_batches=micro_batches,
        max_instance_batch=source.max_batch,
    )
    if verify is None:
        return replace(optimizer.plan(len(chosen), batch, goal, limit_ms), lowered=source.lowered)
    plans = likely(optimizer, len(chosen), batch, verify, limit_ms)
    return replace(verified(source, plans, cores=chosen, topology=topology)[0], lowered=source.lowered)
