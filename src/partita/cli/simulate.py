"""``partita simulate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from partita.cli.console import emit_json, say
from partita.cli.options import FILE, json_option
from partita.cli.per_model import PerModel

if TYPE_CHECKING:
    from partita.simulator.settings import SimulatedLoad

COUNT = click.IntRange(min=1)


@click.command(
    epilog="Example: partita simulate --profile bert.csv --mode script --cores 16 --rate 15@60,390@60,15@60",
    short_help="Serve a load that is not there with a profile's plans, and see how they follow it.",
)
@click.option(
    "--profile",
    type=PerModel(FILE, is_file=True),
    multiple=True,
    required=True,
    metavar="[NAME=]FILE",
    help="A profile, .json or .csv; several for models that share the machine.",
)
@click.option(
    "--mode",
    type=PerModel(click.STRING),
    multiple=True,
    metavar="[NAME=]MODE",
    help="Which mode of a .csv that holds several.",
)
@click.option("--cores", type=COUNT, required=True, metavar="T", help="All cores.")
@click.option("--sockets", metavar="8,8", help="Cores of each socket; no instance spans two.")
@click.option(
    "--rate",
    type=PerModel(click.STRING),
    multiple=True,
    metavar="[NAME=]SPEC",
    help="Requests a second: 100, or steps and ramps such as 20@60,20..400@30,400@60; in front may stand "
    "poisson: (the default), constant: or bursty:.",
)
@click.option(
    "--trace",
    type=PerModel(FILE, is_file=True),
    multiple=True,
    metavar="[NAME=]FILE",
    help="Instead: a line SECONDS,ITEMS for each request.",
)
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
    "--items",
    type=PerModel(COUNT),
    multiple=True,
    metavar="[NAME=]N",
    help="In each request. [default: 1]",
)
@click.option(
    "--burst",
    type=PerModel(click.FloatRange(min=1)),
    multiple=True,
    metavar="[NAME=]N",
    help="Mean requests in a burst. [default: 8]",
)
@click.option(
    "--weight",
    type=PerModel(click.FloatRange(min=0, min_open=True)),
    multiple=True,
    metavar="[NAME=]X",
    help="How much a model's latency counts beside the others'. [default: 1]",
)
@click.option(
    "--batch",
    type=PerModel(COUNT),
    multiple=True,
    metavar="[NAME=]B",
    help="What the first plan is for. [default: a load of unknown batch size]",
)
@click.option(
    "--max-batch",
    type=PerModel(COUNT),
    multiple=True,
    metavar="[NAME=]B",
    help="Largest batch to plan for. [default: the profile's]",
)
@click.option(
    "--policy",
    type=PerModel(click.Choice(["eager", "aggregate"])),
    multiple=True,
    metavar="[NAME=]POLICY",
    help="When batches are formed: eager or aggregate. [default: eager]",
)
@click.option(
    "--batch-timeout-ms",
    type=PerModel(click.FloatRange(min=0)),
    multiple=True,
    metavar="[NAME=]X",
    help="Longest wait for a fuller batch. [default: 0 for eager, 10 for aggregate]",
)
@click.option(
    "--queue-size",
    type=PerModel(COUNT),
    multiple=True,
    metavar="[NAME=]N",
    help="Items that may wait. [default: 1000000]",
)
@click.option("--adapt/--no-adapt", default=True, show_default=True, help="Let the plans follow the load.")
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
    type=PerModel(click.FloatRange(min=0)),
    multiple=True,
    metavar="[NAME=]S",
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
def command(*, output: Path | None, as_json: bool, **options: Any) -> None:
    """Serve a load with the plans of a profile under a fake clock, and show how they follow it.

    The dispatcher, core leases, controller and handover are those of the server; only the workers are the
    profile's figures, and the requests come from a rate or a trace.

    Several --profile are several models on one machine, whose cores are divided among them as the server
    does it. NAME=VALUE then gives an option to one of them, VALUE to all; a model without a NAME is called
    as its file is.
    """
    from partita.cli.simulated_loads import loads_of

    loads = loads_of(options)
    if len(loads) == 1:
        _one(loads[0], output, options["cores"], as_json=as_json)
    else:
        _several(loads, output, options["cores"], as_json=as_json)


def _one(load: "SimulatedLoad", output: Path | None, cores: int, *, as_json: bool) -> None:
    from partita.cli.simulation_text import show
    from partita.simulator.simulation import Simulation

    result = Simulation(load.profile, load.arrivals, load.settings).run()
    if output is not None:
        from partita.cli.simulation_picture import draw

        draw(output, {load.name: result}, title=f"{load.name}, {cores} cores")
        say(f"drawn: {output}")
    if as_json:
        emit_json(result.document())
    else:
        show(result)


def _several(loads: "list[SimulatedLoad]", output: Path | None, cores: int, *, as_json: bool) -> None:
    from partita.cli.simulation_text import show_several
    from partita.simulator.shared import SharedSimulation

    result = SharedSimulation(loads).run()
    if output is not None:
        from partita.cli.simulation_picture import draw

        draw(output, result.models, title=f"{', '.join(result.models)} on {cores} cores")
        say(f"drawn: {output}")
    if as_json:
        emit_json(result.document())
    else:
        show_several(result)
