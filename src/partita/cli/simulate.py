"""``partita simulate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from partita.cli.console import emit_json, emit_table, milliseconds, say
from partita.cli.options import FILE, json_option, parse_sockets
from partita.core.errors import InvalidInput

if TYPE_CHECKING:
    from partita.core.profile import Profile
    from partita.simulator.arrivals import Arrivals
    from partita.simulator.result import SimulationResult
    from partita.simulator.settings import SimulationSettings


@click.command(
    epilog="Example: partita simulate --profile bert.csv --mode script --cores 16 --rate 15@60,390@60,15@60",
    short_help="Serve a load that is not there with a profile's plans, and see how they follow it.",
)
@click.option(
    "--profile", "profile_file", type=FILE, required=True, metavar="FILE", help="A profile, .json or .csv."
)
@click.option("--mode", metavar="NAME", help="Which mode of a .csv that holds several.")
@click.option("--cores", type=click.IntRange(min=1), required=True, metavar="T", help="All cores.")
@click.option("--sockets", metavar="8,8", help="Cores of each socket; no instance spans two.")
@click.option(
    "--rate",
    metavar="SPEC",
    help="Requests a second: 100, or steps and ramps such as 20@60,20..400@30,400@60; in front may stand "
    "poisson: (the default), constant: or bursty:.",
)
@click.option("--trace", type=FILE, metavar="FILE", help="Instead: a line SECONDS,ITEMS for each request.")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Of a rate without seconds.",
)
@click.option(
    "--items", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="In each request."
)
@click.option(
    "--burst",
    type=click.FloatRange(min=1),
    default=8.0,
    show_default=True,
    metavar="N",
    help="Mean requests in a burst.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    metavar="B",
    help="What the first plan is for. [default: a load of unknown batch size]",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    metavar="B",
    help="Largest batch to plan for. [default: the profile's]",
)
@click.option(
    "--policy",
    type=click.Choice(["eager", "aggregate"]),
    default="eager",
    show_default=True,
    help="When batches are formed.",
)
@click.option(
    "--batch-timeout-ms",
    type=click.FloatRange(min=0),
    metavar="X",
    help="Longest wait for a fuller batch. [default: 0 for eager, 10 for aggregate]",
)
@click.option(
    "--queue-size",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Items that may wait.",
)
@click.option("--adapt/--no-adapt", default=True, show_default=True, help="Let the plan follow the load.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Time between looks at the load.",
)
@click.option(
    "--load-time",
    "load_s",
    type=click.FloatRange(min=0),
    metavar="S",
    help="To load the model in a worker. [default: as the profile says, else 5]",
)
@click.option(
    "--contention",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="X",
    help="How much longer executions take while all other cores are busy: 0.6 = 1.6 times.",
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Of the arrivals.")
@click.option("-o", "--output", type=FILE, metavar="FILE.png", help="Draw the run over time.")
@json_option
def command(
    *, profile_file: Path, mode: str | None, output: Path | None, as_json: bool, **options: Any
) -> None:
    """Serve a load with the plans of a profile under a fake clock, and show how they follow it.

    The dispatcher, core leases, controller and handover are those of the server; only the workers are the
    profile's figures, and the requests come from a rate or a trace.
    """
    from partita.profiling.store import read_profile
    from partita.simulator.simulation import Simulation

    if (options["rate"] is None) == (options["trace"] is None):
        raise click.UsageError("give either --rate SPEC or --trace FILE")
    profile = read_profile(profile_file, mode=mode)
    result = Simulation(profile, _arrivals(options), _settings(profile, options)).run()
    if output is not None:
        from partita.cli.simulation_picture import draw

        draw(output, result, title=f"{profile_file.name}, {options['cores']} cores")
        say(f"drawn: {output}")
    if as_json:
        emit_json(result.document())
    else:
        _show(result)


def _arrivals(options: dict[str, Any]) -> "Arrivals":
    import numpy as np

    from partita.simulator.arrivals import generate, parse_rate, read_trace

    if options["trace"] is not None:
        return read_trace(options["trace"])
    if options["seed"] < 0:
        raise InvalidInput(f"--seed {options['seed']}: must be 0 or more")
    kind, pieces = parse_rate(options["rate"], duration_s=options["duration_s"])
    rng = np.random.default_rng(options["seed"])
    return generate(kind, pieces, rng, items=options["items"], burst=options["burst"])


def _settings(profile: "Profile", options: dict[str, Any]) -> "SimulationSettings":
    from partita.machines.dispatcher import Policy
    from partita.planning.estimator import EstimatorRules
    from partita.settings import AGGREGATE_TIMEOUT_MS
    from partita.simulator.settings import DEFAULT_LOAD_S, SimulationSettings

    policy = Policy(options["policy"])
    timeout_ms = options["batch_timeout_ms"]
    if timeout_ms is None:
        timeout_ms = AGGREGATE_TIMEOUT_MS if policy is Policy.AGGREGATE else 0.0
    load_s = options["load_s"]
    if load_s is None:
        load_s = DEFAULT_LOAD_S if profile.load_s is None else profile.load_s
    max_batch = options["max_batch"] or max(profile.batches)
    sockets = options["sockets"]
    return SimulationSettings(
        cores=options["cores"],
        sockets=None if sockets is None else parse_sockets(sockets),
        max_batch=max_batch,
        batch=options["batch"],
        policy=policy,
        batch_timeout_s=timeout_ms / 1000.0,
        max_queue_items=options["queue_size"],
        adapt=options["adapt"],
        load_s=load_s,
        contention=options["contention"],
        estimator=EstimatorRules(interval_s=options["interval_s"], max_batch=max_batch),
    )


def _show(result: "SimulationResult") -> None:
    from partita.planning.decisions import Decision, Failed

    emit_table(
        ("from s", "items/s", "depth", "B̃", "mean ms", "p99 ms", "plan"),
        [
            (
                f"{row['from_s']:g}",
                f"{row['items_per_s']:.4g}",
                "-" if row["depth"] is None else f"{row['depth']:.4g}",
                "-" if row["batch"] is None else f"{row['batch']}",
                milliseconds(row["mean_ms"]),
                milliseconds(row["p99_ms"]),
                row["plan"],
            )
            for row in result.windows(at_most=40)
        ],
    )
    click.echo("")
    for entry in result.log:
        if isinstance(entry, Decision):
            click.echo(f"{entry.now_s:8.1f} s  {entry.action}: {entry.text}")
        elif isinstance(entry, Failed):
            click.echo(f"{entry.now_s:8.1f} s  failed: {entry.text}")
        elif entry.gain is not None:
            click.echo(f"{entry.now_s:8.1f} s  gained {entry.gain:.0%}, expected {entry.expected_gain:.0%}")
    document = result.document()
    click.echo(
        f"\n{document['answered']} of {document['requests']} requests answered, mean "
        f"{milliseconds(document['mean_ms'])} ms, 99th percentile {milliseconds(document['p99_ms'])} ms; "
        f"{document['switches']} switches, {document['rebatches']} rebatches"
    )
    for start_s, end_s, rate in result.overloads():
        click.echo(
            f"overloaded from {start_s:g} s to {end_s:g} s: up to {rate:.4g} items/s came, and the best plan "
            f"can do {result.capacity:.4g}"
        )
