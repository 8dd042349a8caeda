"""``partita profile``."""

from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from partita.cli.choosing import show_choice, watched_choice
from partita.cli.console import emit_json, emit_table, milliseconds, say
from partita.cli.options import FILE, config_option, cores_option, json_option, parse_dimensions
from partita.cli.profiling import Watch, one_model, watched

if TYPE_CHECKING:
    from partita.core.choice import Choice
    from partita.core.profile import Profile
    from partita.sources import ModelSource


@click.command(
    epilog="Example: partita profile model.onnx --cores 0-7 --budget 60 -o profile.json",
    short_help="Measure a model: how long it takes for t cores and b items.",
)
@click.argument("path", metavar="PATH", type=FILE)
@click.option(
    "--runtime",
    metavar="NAME|auto",
    help="What executes the model; auto tries all that can and takes the fastest. [default: auto]",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="Largest batch of one instance. [default: 32]",
)
@cores_option
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Longest that it may take. [default: 30]",
)
@click.option("--full", is_flag=True, help="Measure the whole grid, not only what can change a plan.")
@click.option("--resume", is_flag=True, help="Measure on, from what is kept and from FILE of -o.")
@click.option("--again", is_flag=True, help="Measure from the beginning, whatever is kept.")
@click.option(
    "--calibration",
    "--samples",
    "samples",
    type=FILE,
    metavar="FILE",
    help="Items to compare and measure with, .npy or .npz; for an archive a file or folder of requests' "
    "bodies. [default: made up]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=1, min_open=True),
    metavar="X",
    help="How far another runtime's outputs may be off, relative to an item's largest value. "
    "[default: by the datatype, 0.001 for FP32]",
)
@click.option(
    "--allow-deviation",
    type=click.FloatRange(min=0, max=1, min_open=True, max_open=True),
    metavar="X",
    help="Let lower precision compete, with outputs off by up to X.",
)
@click.option(
    "--top1-agreement",
    type=click.FloatRange(min=0, max=1, min_open=True),
    metavar="Y",
    help="Let lower precision compete that leaves the largest output in its place in this share of the items "
    "of --calibration.",
)
@click.option(
    "--dim",
    "dimensions",
    multiple=True,
    metavar="NAME=SIZE",
    help="Size of an axis of any size. [default: 64]",
)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write the table there, too, as JSON.")
@config_option
@json_option
def command(
    path: Path,
    *,
    runtime: str | None,
    max_batch: int | None,
    cores: str | None,
    budget: float | None,
    full: bool,
    resume: bool,
    again: bool,
    samples: Path | None,
    tolerance: float | None,
    allow_deviation: float | None,
    top1_agreement: float | None,
    dimensions: tuple[str, ...],
    output: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Measure the model at PATH, one instance alone, for the thread counts and batches that can matter.

    Unless --runtime names one, every runtime that can execute the model is tried first: those whose outputs
    agree with the runtime of the model's own format are timed, and the fastest is measured for the plan.

    The table is kept for `plan` and `serve`, after every point: Ctrl-C loses nothing, and the next run goes
    on from there. What was measured before is not measured again unless --resume, --full or --again asks.
    """
    from msgspec import to_builtins

    from partita.choosing import CHOICE_SHARE, Choosing
    from partita.choosing import chosen as choose
    from partita.deploy import as_launched
    from partita.profiles import Measuring, cached, measured
    from partita.profiling.store import load, save
    from partita.settings import default_config, load_settings
    from partita.system.cpus import read_topology, select_cores

    if resume and again:
        raise click.UsageError("--resume goes on and --again begins anew; give one of them")
    settings = load_settings(config or default_config()).with_server(tune_budget_s=budget, cores=cores)
    allowed = {"allow_deviation": allow_deviation, "top1_agreement": top1_agreement}
    source = _adjusted(one_model(path, settings), runtime, max_batch, parse_dimensions(dimensions), allowed)
    samples = samples or source.samples
    topology = read_topology()
    wanted, budget_s = settings.server.cores, settings.server.tune_budget_s
    chosen = select_cores(topology, None if wanted is None else str(wanted))
    measuring = Measuring(
        budget_s=budget_s,
        full=full,
        go_on=resume,
        again=again,
        resume=load(output) if resume and output is not None and output.exists() else None,
        samples=samples,
    )
    watch = Watch()
    choice: Choice | None = None
    begun_s = monotonic()
    try:
        if not resume:
            choosing = Choosing(
                budget_s=budget_s * CHOICE_SHARE,
                again=again,
                samples=samples,
                relative_tolerance=tolerance,
            )
            with watched_choice(watch, source.name, choosing.budget_s) as audience:
                choice = choose(source, chosen, topology, replace(choosing, audience=audience))
        source = as_launched(source, topology, settings.server.requirements)
        left_s = max(budget_s - (monotonic() - begun_s), budget_s * (1 - CHOICE_SHARE) / 2)
        with watched(watch, source.name, left_s) as listener:
            profile = measured(
                source, chosen, topology, replace(measuring, budget_s=left_s, listener=listener)
            )
    except KeyboardInterrupt:
        _say_what_is_kept(cached(source, topology) or watch.profile, output)
        raise
    if watch.latest is not None and watch.latest.left_s <= 0:
        say(f"the budget of {budget_s:g} s is spent; --resume measures on")
    if output is not None:
        save(output, profile)
        say(f"written to {output}")
    if as_json:
        emit_json({**_document(profile), "choice": None if choice is None else to_builtins(choice)})
        return
    _show(profile)
    if choice is not None:
        click.echo("")
        show_choice(choice)


def _adjusted(
    source: "ModelSource",
    runtime: str | None,
    max_batch: int | None,
    dimensions: dict[str, int],
    allowed: dict[str, float | None],
) -> "ModelSource":
    """Return the model with what the command line says about it."""
    import msgspec

    settings = source.settings
    if max_batch is not None:
        settings = msgspec.structs.replace(settings, max_batch=max_batch)
    if dimensions:
        settings = msgspec.structs.replace(settings, dimensions={**settings.dimensions, **dimensions})
    given = {name: value for name, value in allowed.items() if value is not None}
    if given:
        settings = msgspec.structs.replace(settings, **given)
    if runtime is not None:
        settings = msgspec.structs.replace(settings, runtime=runtime)
    named = runtime not in (None, "auto")
    return replace(source, settings=settings, runtime=runtime if runtime and named else source.runtime)


def _say_what_is_kept(profile: "Profile | None", output: Path | None) -> None:
    from partita.profiling.store import save

    if profile is None:
        say("nothing was measured yet")
        return
    where = ""
    if output is not None:
        save(output, profile)
        where = f", in {output}, too"
    count = len(profile.points)
    kept = f"{count} point{'s are' if count > 1 else ' is'} kept"
    say(f"{kept}{where}; the next `partita profile` of this model goes on from there")


def _document(profile: "Profile") -> dict[str, object]:
    import msgspec

    points = list(profile.points.values())
    document = msgspec.to_builtins(
        {"provenance": profile.provenance, "load_s": profile.load_s, "points": points}
    )
    assert isinstance(document, dict)
    return document


def _show(profile: "Profile") -> None:
    """Print L[t, b]: a row for each batch, a column for each thread count; a dash where not measured."""
    emit_table(
        ("items \\ threads, ms", *map(str, profile.threads)),
        [
            (str(batch), *(milliseconds(profile.latency_ms(threads, batch)) for threads in profile.threads))
            for batch in profile.batches
        ],
    )
