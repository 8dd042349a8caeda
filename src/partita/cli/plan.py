"""``partita plan``."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partita.cli.console import emit_json, emit_table, milliseconds, say
from partita.cli.documents import plan_document
from partita.cli.options import FILE, config_option, json_option, parse_sockets
from partita.cli.profiling import Watch, one_model, watched
from partita.core.errors import InvalidInput
from partita.core.plan import Objective, Plan
from partita.core.profile import Profile

if TYPE_CHECKING:
    from partita.core.topology import Topology
    from partita.sources import ModelSource


@click.command(
    epilog="Example: partita plan --profile bert.csv --mode script --cores 16 --batch 64",
    short_help="Choose the instances that answer a batch soonest on these cores.",
)
@click.argument("path", metavar="[PATH]", required=False, type=FILE)
@click.option(
    "--profile", "profile_file", type=FILE, metavar="FILE", help="A profile, .json or .csv, instead of PATH."
)
@click.option("--mode", metavar="NAME", help="Which mode of a .csv that holds several.")
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    metavar="T",
    help="Cores for all instances; with PATH all that may be used, if left out.",
)
@click.option(
    "--batch", type=click.IntRange(min=1), required=True, metavar="B", help="Items to be answered together."
)
@click.option(
    "--objective",
    type=click.Choice(["latency", "throughput"]),
    default="latency",
    show_default=True,
    help="Least time for the B items, or most items a second.",
)
@click.option(
    "--limit-ms",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Longest time of an instance.",
)
@click.option(
    "--no-micro-batches", is_flag=True, help="One execution for each instance, as in the Packrat paper."
)
@click.option("--sockets", metavar="8,8", help="Cores of each socket; no instance spans two.")
@click.option("--memory-mib", type=click.IntRange(min=1), metavar="N", help="Memory for all instances.")
@click.option(
    "--verify",
    type=click.IntRange(min=1),
    metavar="K",
    help="Run the K best kinds of plan and take the fastest.",
)
@config_option
@json_option
def command(
    path: Path | None,
    *,
    profile_file: Path | None,
    mode: str | None,
    cores: int | None,
    batch: int,
    objective: str,
    limit_ms: float | None,
    no_micro_batches: bool,
    sockets: str | None,
    memory_mib: int | None,
    verify: int | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Choose the instances for B items on T cores.

    From a profile FILE, or for the model at PATH, which is profiled first if it has no profile yet.
    """
    if (path is None) == (profile_file is None):
        raise click.UsageError("give either PATH or --profile FILE")
    if cores is None and path is None:
        raise click.UsageError("--profile FILE says nothing of this machine: give --cores T")
    if verify is not None and path is None:
        raise click.UsageError("--verify runs the plans, and so needs PATH and not --profile")
    if verify is not None and objective != Objective.LATENCY:
        raise click.UsageError("--verify compares latencies; leave --objective throughput out")
    from partita.planning.optimizer import Optimizer
    from partita.profiling.store import read_profile
    from partita.verified import likely

    model: _Model | None = None
    if path is not None:
        model = _measured(path, cores, config)
        profile, cores = model.profile, len(model.cores)
    else:
        assert profile_file is not None
        assert cores is not None
        profile = read_profile(profile_file, mode=mode)
    here = None if model is None else model.sockets
    optimizer = Optimizer(
        profile,
        sockets=here if sockets is None else parse_sockets(sockets),
        micro_batches=not no_micro_batches,
        memory_bytes=None if memory_mib is None else memory_mib << 20,
        max_instance_batch=None if model is None else model.source.max_batch,
    )
    plans = [optimizer.plan(cores, batch, Objective(objective), limit_ms)]
    if verify is not None:
        assert model is not None
        plans = _verified(model, likely(optimizer, cores, batch, verify, limit_ms))
    if model is not None:
        plans = [replace(plan, lowered=model.source.lowered) for plan in plans]
    if as_json:
        document = plan_document(plans[0])
        emit_json(document if verify is None else {**document, "verified": [plan_document(p) for p in plans]})
        return
    if len(plans) > 1:
        _show_all(plans)
    _show(plans[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A model on this machine, measured, and the CPUs that its plan is for."""

    source: "ModelSource"
    profile: Profile
    topology: "Topology"
    cores: tuple[int, ...]

    @property
    def sockets(self) -> tuple[int, ...]:
        """How many of the CPUs each socket has."""
        return tuple(map(len, self.topology.by_socket(self.cores)))


def _measured(path: Path, cores: int | None, config: Path | None) -> _Model:
    """Return a model with its profile, which is measured now if there is none."""
    from partita.deploy import as_launched
    from partita.profiles import Measuring, cached, measured
    from partita.settings import default_config, load_settings
    from partita.system.cpus import read_topology, select_cores

    settings = load_settings(config or default_config())
    topology = read_topology()
    source = as_launched(one_model(path, settings), topology, settings.server.requirements)
    chosen = select_cores(topology, None if cores is None else str(cores))
    profile: Profile | None
    if settings.server.tune == "never":
        profile = cached(source, topology)
        if profile is None:
            raise InvalidInput(f"{path} has no profile, and [server] tune says to measure none")
    else:
        budget_s = settings.server.tune_budget_s
        with watched(Watch(), source.name, budget_s) as listener:
            profile = measured(source, chosen, topology, Measuring(budget_s=budget_s, listener=listener))
    return _Model(source=source, profile=profile, topology=topology, cores=chosen)


def _verified(model: _Model, plans: list[Plan]) -> list[Plan]:
    from partita.verified import SECONDS, verified

    say(f"running {len(plans)} plan{'s' * (len(plans) > 1)} in turns, for about {SECONDS:g} s")
    return verified(model.source, plans, cores=model.cores, topology=model.topology, note=say)


def _show_all(plans: list[Plan]) -> None:
    """Print the plans that were run, the chosen one first."""
    emit_table(
        ("plan", "expected ms", "measured ms"),
        [(str(plan), milliseconds(plan.expected_ms), milliseconds(plan.measured_ms)) for plan in plans],
    )
    click.echo("")


def _show(plan: Plan) -> None:
    document = plan_document(plan)
    emit_table(
        ("instances", "threads", "items", "micro-batch"),
        [
            (f"{g['count']}", f"{g['threads']}", f"{g['batch']}", f"{g['micro_batch']}")
            for g in document["instances"]
        ],
    )
    click.echo(
        f"\n{plan.batch} items on {plan.cores} cores: {milliseconds(plan.expected_ms)} ms expected", nl=False
    )
    if plan.measured_ms is not None:
        click.echo(f", {milliseconds(plan.measured_ms)} ms measured", nl=False)
    if plan.speedup is not None:
        click.echo(
            f"; one instance of {plan.cores} threads: {milliseconds(plan.fat_ms)} ms, "
            f"{plan.speedup:.2f} times that long"
        )
    else:
        click.echo("")
    if plan.lowered is not None:
        click.echo(f"in lower precision, {plan.lowered}")
