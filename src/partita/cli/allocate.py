"""``partita allocate``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from partita.cli.console import emit_json, emit_table, progress, say
from partita.cli.options import FILE, config_option, cores_option, json_option
from partita.cli.profiling import one_model

if TYPE_CHECKING:
    from partita.allocating import Allocated
    from partita.planning.allocation_search import Assessment


@click.command(
    epilog="Example: partita allocate ensemble.toml --devices cpu:0-3,cpu:4-7 -o allocation.json",
    short_help="Choose which members of an ensemble run on which cores, by running them.",
)
@click.argument("path", metavar="ENSEMBLE.toml", type=FILE)
@click.option(
    "--devices",
    metavar="SPEC",
    help="Core groups, cpu:0-1,cpu:2-3, or a TOML file of a machine that is only planned for. "
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
    help="Longest search.",
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
    output: Path | None,
    config: Path | None,
    cores: str | None,
    as_json: bool,
) -> None:
    """Choose on which devices each member of the ensemble runs, and with which batch sizes.

    Begins with one worker for each member, by memory, and goes on to neighbouring allocations that really are
    faster. The result is kept: `partita serve` and `partita predict` use it on the same cores.
    """
    from partita.allocating import AllocateSettings, allocate, allocate_described
    from partita.allocation_file import kept_path, write_document
    from partita.device_file import devices_for
    from partita.planning.allocation_search import SearchLimits
    from partita.settings import default_config, load_settings
    from partita.system.cpus import read_topology, select_cores

    source = one_model(path, load_settings(config or default_config()))
    topology = read_topology()
    chosen = devices_for(devices, topology, select_cores(topology, cores))
    is_described = (devices or "").endswith(".toml") or any(device.is_gpu for device in chosen)
    if is_described:
        found = allocate_described(source, chosen)
    else:
        for device in chosen:
            select_cores(topology, ",".join(map(str, device.cores)) + ",")  # refuses cores that are not ours
        limits = SearchLimits(max_iter=max_iter, max_neighs=max_neighbours, restarts=restarts, seed=seed)
        with progress(f"allocating {source.name}", budget_s) as advance:
            watch = _Watch(advance)
            found = allocate(
                source,
                chosen,
                AllocateSettings(limits=limits, budget_s=budget_s, measure_s=measure_s),
                told=watch.told,
            )
        assert source.ensemble is not None
        write_document(kept_path(source.ensemble, chosen), found.as_json())
    if output is not None:
        write_document(output, found.as_json())
    if as_json:
        emit_json(found.as_json())
    else:
        _show(found)


class _Watch:
    """Shows how many matrices were assessed and the fastest."""

    def __init__(self, advance: "object") -> None:
        import time

        self._advance = advance
        self._clock = time.monotonic
        self._started_s = self._clock()
        self._count = 0
        self._best = 0.0

    def told(self, assessment: "Assessment") -> None:
        self._count += 1
        self._best = max(self._best, assessment.items_per_s)
        text = f"{self._count} allocations measured, best {self._best:,.0f} items/s"
        self._advance(self._clock() - self._started_s, text=text)  # type: ignore[operator]


def _show(found: "Allocated") -> None:
    allocation = found.allocation
    emit_table(
        ("device", *allocation.models),
        [
            (device.name, *(str(batch) if batch else "-" for batch in row))
            for device, row in zip(allocation.devices, allocation.matrix.rows, strict=True)
        ],
    )
    document = found.as_json()
    say("")
    if found.items_per_s is None or found.start_items_per_s is None:
        say(
            f"one of {document['matrices_total']} allocations, by a guess at memory; nothing was run on this "
            "described machine"
        )
        return
    say(
        f"{found.items_per_s:,.0f} items/s, {found.items_per_s / found.start_items_per_s:.2f} times the "
        f"start's {found.start_items_per_s:,.0f}; {document['assessed']} of "
        f"{document['matrices_total']} allocations measured in {document['iterations']} iterations, "
        f"repeats differ by {found.spread or 0:.1%}"
    )
