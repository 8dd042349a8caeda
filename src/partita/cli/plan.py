"""``partita plan``."""

from collections import Counter
from pathlib import Path

import click

from partita.cli.console import emit_json, emit_table, milliseconds
from partita.cli.documents import plan_document
from partita.cli.options import FILE, json_option
from partita.core.errors import InvalidInput
from partita.core.plan import Objective, Plan
from partita.core.profile import Profile


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
    "--cores", type=click.IntRange(min=1), required=True, metavar="T", help="Cores for all instances."
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
@json_option
def command(
    path: Path | None,
    profile_file: Path | None,
    mode: str | None,
    cores: int,
    batch: int,
    objective: str,
    limit_ms: float | None,
    no_micro_batches: bool,
    sockets: str | None,
    memory_mib: int | None,
    verify: int | None,
    as_json: bool,
) -> None:
    """Choose the instances for B items on T cores.

    From a profile FILE, or for the model at PATH, which is profiled first if it has no profile yet.
    """
    if (path is None) == (profile_file is None):
        raise click.UsageError("give either PATH or --profile FILE")
    if verify is not None and path is None:
        raise click.UsageError("--verify runs the plans, and so needs PATH and not --profile")
    if verify is not None:
        raise InvalidInput("--verify: this build does not run plans to choose among them yet; leave it out")
    from partita.planning.optimizer import Optimizer
    from partita.profiling.store import read_profile

    here: tuple[int, ...] | None = None
    largest: int | None = None
    if path is not None:
        profile, here, largest = _measured(path, cores)
    else:
        assert profile_file is not None
        profile = read_profile(profile_file, mode=mode)
    optimizer = Optimizer(
        profile,
        sockets=here if sockets is None else _parse_sockets(sockets),
        micro_batches=not no_micro_batches,
        memory_bytes=None if memory_mib is None else memory_mib << 20,
        max_instance_batch=largest,
    )
    plan = optimizer.plan(cores, batch, Objective(objective), limit_ms)
    if as_json:
        emit_json(plan_document(plan))
    else:
        _show(plan)


def _measured(path: Path, cores: int) -> tuple[Profile, tuple[int, ...], int]:
    """Return a model's profile, the sockets of the cores that it is for, and its largest batch."""
    from partita.profiles import saved_or_measured
    from partita.settings import default_config, load_settings
    from partita.sources import find_models
    from partita.system.cpus import read_topology, select_cores

    settings = load_settings(default_config())
    sources = find_models(path, settings)
    if len(sources) != 1:
        raise InvalidInput(f"{path} holds {len(sources)} models; name one of them")
    topology = read_topology()
    chosen = select_cores(topology, str(cores))
    profile = saved_or_measured(settings.server)(sources[0], chosen)
    if profile is None:
        raise InvalidInput(f"{path} has no profile, and [server] tune says to measure none")
    sockets = Counter(cpu.socket for cpu in topology.cpus if cpu.cpu in chosen)
    return profile, tuple(count for _, count in sorted(sockets.items())), sources[0].max_batch


def _parse_sockets(text: str) -> tuple[int, ...]:
    try:
        sockets = tuple(int(field) for field in text.split(","))
    except ValueError:
        sockets = ()
    if not sockets or min(sockets) < 1:
        raise InvalidInput(f"--sockets {text}: write the cores of each socket, such as 8,8")
    return sockets


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
