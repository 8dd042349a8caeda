"""``partita profile``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partita.cli.console import emit_json, emit_table, milliseconds, say
from partita.cli.options import FILE, config_option, cores_option, json_option
from partita.core.errors import InvalidInput

if TYPE_CHECKING:
    from partita.core.profile import Profile


@click.command(
    epilog="Example: partita profile model.onnx --cores 0-7 --budget 60 -o profile.json",
    short_help="Measure a model: how long it takes for t cores and b items.",
)
@click.argument("path", metavar="PATH", type=FILE)
@click.option("--runtime", metavar="NAME|auto", help="onnxruntime or python. [default: by the file]")
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
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write the table there, too, as JSON.")
@config_option
@json_option
def command(
    path: Path,
    runtime: str | None,
    max_batch: int | None,
    cores: str | None,
    budget: float | None,
    output: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Measure the model at PATH, one instance alone, for the thread counts and batches that can matter.

    The table is kept for `plan` and `serve`; a model that was measured before is not measured again.
    """
    import msgspec

    from partita.profiles import saved_or_measured
    from partita.profiling.store import save
    from partita.settings import default_config, load_settings
    from partita.sources import find_models
    from partita.system.cpus import read_topology, select_cores

    settings = load_settings(config or default_config()).with_server(tune="before", tune_budget_s=budget)
    sources = find_models(path, settings)
    if len(sources) != 1:
        raise InvalidInput(f"{path} holds {len(sources)} models; name one of them")
    source = sources[0]
    if runtime not in (None, "auto"):
        source = replace(source, runtime=runtime)
    if max_batch is not None:
        source = replace(source, settings=msgspec.structs.replace(source.settings, max_batch=max_batch))
    profile = saved_or_measured(settings.server)(source, select_cores(read_topology(), cores))
    if profile is None:
        raise InvalidInput(f"{path} could not be profiled in this build")
    if output is not None:
        save(output, profile)
        say(f"written to {output}")
    if as_json:
        emit_json(_document(profile))
    else:
        _show(profile)


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
