"""``partita allocate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from partita.cli.console import emit_json, emit_table, progress, say
from partita.cli.options import FILE, config_option, cores_option, json_option
from partita.cli.profiling import one_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partita.allocating import Allocated, AllocateSettings
    from partita.core.devices import Device
    from partita.planning.allocation_search import Assessment
    from partita.sources import ModelSource


@click.command(
    epilog="Example: partita allocate ensemble.toml --devices cpu:0-3,cpu:4-7 -o allocation.json",
    short_help="Choose which members of an ensemble run on which cores, by running them.",
)
@click.argument("path", metavar="ENSEMBLE.toml", type=FILE)
@click.option(
    "--devices",
    metavar="SPEC",
    help="Core groups and GPUs, cpu:0-1,cpu:2-3,cuda:0, or a TOML file of a machine to plan for. "
    "[default: the sockets, or the halves of one]",
)
@click.option(
    "--max-iter",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="Iterations of the search in all.",
)
@click.option(
    "--max-neighbours",
    type=click.IntRange(min=1),
    default=12,
    show_default=True,
    metavar="N",
    help="Neighbours that an iteration measures, the most promising first.",
)
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    metavar="N",
    help="How often the search begins again elsewhere.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="Of what is drawn at random."
)
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For search and final; each finalist is measured three times at least.",
)
@click.option(
    "--measure",
    "measure_s",
    type=click.FloatRange(min=0.05),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Length of one measurement.",
)
@click.option("--resume", is_flag=True, help="Search on from what was measured before.")
@click.option("--again", is_flag=True, help="Forget what was measured before.")
@click.option("--picture", type=FILE, metavar="FILE.png", help="Draw the search, and who runs where.")
@click.option(
    "-o", "--output", type=FILE, metavar="PLAN.json", help="Write the allocation and the search's log."
)
@config_option
@cores_option
@json_option
def command(
    path: Path,
    *,
    devices: str | None,
    max_iter: int,
    max_neighbours: int,
    restarts: int,
    seed: int,
    budget_s: float,
    measure_s: float,
    resume: bool,
    again: bool,
    picture: Path | None,
    output: Path | None,
    config: Path | None,
    cores: str | None,
    as_json: bool,
) -> None:
    """Choose on which devices each member of the ensemble runs, and with which batch sizes.

    Begins with one worker for each member, by memory, and goes on to neighbouring allocations that really are
    faster. The result is kept: `partita serve` and `partita predict` use it on the same cores. A search that
    was interrupted goes on where it was; one that ended is not repeated unless --resume or --again asks.
    """
    from partita.allocating import AllocateSettings, allocate_described
    from partita.allocation_file import kept_document, kept_path, write_document
    from partita.choosing import adopted
    from partita.device_file import devices_for, is_runnable
    from partita.planning.allocation_search import SearchLimits
    from partita.settings import default_config, load_settings
    from partita.system.cpus import read_topology, select_cores

    if resume and again:
        raise click.UsageError("--resume goes on and --again begins anew; give one of them")
    topology = read_topology()
    source = one_model(path, load_settings(config or default_config()))
    chosen = devices_for(devices, topology, select_cores(topology, cores))
    on_cores = not any(device.is_gpu for device in chosen)
    source = adopted(source, topology) if on_cores else source  # what was chosen is best on cores
    found: Allocated | None = None
    is_described = (devices or "").endswith(".toml")
    if not is_runnable(chosen, is_described=is_described):
        found = allocate_described(source, chosen)
        document = found.as_json()
    else:
        for device in chosen:
            if not device.is_gpu:  # refuses cores that are not ours
                select_cores(topology, ",".join(map(str, device.cores)) + ",")
        kept = None
        if source.ensemble is not None and not (resume or again or picture is not None):
            kept = kept_document(kept_path(source.ensemble, chosen))
        if kept is None:
            limits = SearchLimits(max_iter=max_iter, max_neighs=max_neighbours, restarts=restarts, seed=seed)
            settings = AllocateSettings(limits=limits, budget_s=budget_s, measure_s=measure_s)
            found = _searched(source, chosen, settings, again=again)
        else:
            say("kept from an earlier search; --resume searches on, --again begins anew")
        document = found.as_json() if found is not None else kept or {}
    if output is not None:
        write_document(output, document)
    if picture is not None and found is not None:
        from partita.allocation_picture import draw

        draw(picture, found, title=f"{source.name} on {', '.join(device.name for device in chosen)}")
        say(f"drawn: {picture}")
    if as_json:
        emit_json(document)
    else:
        _show(document)


def _searched(
    source: "ModelSource", devices: "Sequence[Device]", settings: "AllocateSettings", *, again: bool
) -> "Allocated":
    """Search, with a bar, noting what is measured; the result is kept and the notes are for `--resume`."""
    from partita.allocating import allocate
    from partita.allocation_file import kept_path, write_document
    from partita.allocation_journal import Journal
    from partita.core.errors import InvalidInput

    ensemble = source.ensemble
    if ensemble is None:
        raise InvalidInput(f"{source.path} is one model and no ensemble: partita plan {source.path.name}")
    kept = kept_path(ensemble, devices)
    journal = Journal(kept.with_suffix(".search"), devices=len(devices), models=len(ensemble.members))
    if again:
        journal.clear()
    known = journal.read()
    with progress(f"allocating {source.name}", settings.budget_s) as advance:
        watch = _Watch(advance)

        def told(assessment: "Assessment") -> None:
            watch.told(assessment)
            if assessment.items_per_s != known.get(assessment.matrix):
                journal.note(assessment.matrix, assessment.items_per_s)

        found = allocate(source, devices, settings, known=known, told=told)
    write_document(kept, found.as_json())
    return found


class _Watch:
    """Shows how many matrices were assessed and the fastest."""

    def __init__(self, advance: "object") -> None:
        import time

        self._advance = advance
        self._clock = time.monotonic
        self._started_s = self._clock()
        self._seen: set[object] = set()
        self._best = 0.0

    def told(self, assessment: "Assessment") -> None:
        self._seen.add(assessment.matrix)
        self._best = max(self._best, assessment.items_per_s)
        text = f"{len(self._seen)} allocations measured, best {self._best:,.0f} items/s"
        self._advance(self._clock() - self._started_s, text=text)  # type: ignore[operator]


def _show(document: "Mapping[str, Any]") -> None:
    emit_table(
        ("device", *document["models"]),
        [
            (device, *(str(batch) if batch else "-" for batch in row))
            for device, row in zip(document["devices"], document["matrix"], strict=True)
        ],
    )
    say("")
    rate, before = document["items_per_s"], document["start_items_per_s"]
    if rate is None or before is None:
        say(
            f"one of {document['matrices_total']} allocations, by a guess at memory; nothing was run on this "
            "described machine"
        )
        return
    say(
        f"{rate:,.0f} items/s, {rate / before:.2f} times the start's {before:,.0f}; "
        f"{document['assessed']} of {document['matrices_total']} allocations measured in "
        f"{document['iterations']} iterations, "
        f"repeats differ by {document['spread'] or 0:.1%}"
    )
