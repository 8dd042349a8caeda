"""``partita bench``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from partita.cli.console import emit_json, emit_table, milliseconds, progress, say
from partita.cli.options import cores_option, json_option, parse_shapes
from partita.core.errors import InvalidInput

if TYPE_CHECKING:
    from partita.loadgen import LoadResult


@click.command(
    epilog="Example: partita bench model.onnx --model model --concurrency 32 --duration 10",
    short_help="Load a server, or a model in a server of its own, and measure.",
)
@click.argument("target", metavar="URL|PATH")
@click.option("--model", metavar="NAME", help="The model to ask. [default for a PATH: the one that it holds]")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Requests in flight at all times. [default: 1]",
)
@click.option("--rate", type=float, metavar="R", help="Requests to send each second, whatever comes back.")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="Of --rate.",
)
@click.option(
    "--duration",
    "duration_s",
    type=float,
    default=10.0,
    show_default=True,
    metavar="S",
    help="Measured time.",
)
@click.option(
    "--warmup", "warmup_s", type=float, default=1.0, show_default=True, metavar="S", help="Time before that."
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Items in a request.",
)
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME:4,5", help="Item shape of an input with open axes."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the inputs and the arrivals.")
@click.option("--allow-remote", is_flag=True, help="Load another machine, too.")
@cores_option
@json_option
def command(
    target: str,
    model: str | None,
    batch: int,
    shapes: tuple[str, ...],
    allow_remote: bool,
    cores: str | None,
    as_json: bool,
    **load: Any,
) -> None:
    """Load the server at URL, or the model at PATH in a server that is started for the run.

    With --concurrency each client waits for its answer before it asks again. With --rate requests are sent at
    their times in any case, and a latency counts from the time that the request was meant to be sent.
    """
    from partita.loadgen import Arrivals, LoadSpec, Target, payload_for, run_load

    if load["concurrency"] is None and load["rate"] is None:
        load["concurrency"] = 1
    spec = LoadSpec(**{**load, "arrivals": Arrivals(load["arrivals"])})
    item_shapes = parse_shapes(shapes)
    with _server(target, model, cores) as (url, name):
        server = Target.parse(url, allow_remote=allow_remote)
        payload = payload_for(server, name, items=batch, shapes=item_shapes, seed=spec.seed)
        total_s = spec.warmup_s + spec.duration_s
        with progress(f"loading {name}", total_s) as advance:
            result = run_load(
                server, payload, spec, lambda done_s, answered: advance(done_s, text=f"{answered} answers")
            )
    if as_json:
        emit_json({"target": url, "model": name, "batch": batch, **result.as_json()})
    else:
        _show(result)


def _show(result: "LoadResult") -> None:
    times_ms = (result.p50_ms, result.p90_ms, result.p99_ms, result.p999_ms, result.max_ms)
    emit_table(
        ("requests/s", "items/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms", "errors"),
        [
            (
                f"{result.requests_per_s:.1f}",
                f"{result.items_per_s:.1f}",
                *map(milliseconds, times_ms),
                str(sum(result.errors.values())),
            )
        ],
    )
    for reason, count in result.errors.items():
        say(f"{count} requests ended with {reason}")
    late_ms = result.send_delay_p99_ms or 0.0
    if late_ms > max(1.0, 0.1 * (result.p50_ms or 0.0)):
        say(f"the generator itself was late by {late_ms:.1f} ms (p99): it, too, is short of cores")


@contextmanager
def _server(target: str, model: str | None, cores: str | None) -> Iterator[tuple[str, str]]:
    """Yield the (URL, model) to load; for a path, of a server that runs as long as the block."""
    if "://" in target or (not Path(target).exists() and _looks_like_address(target)):
        if model is None:
            raise click.UsageError("a URL needs --model NAME")
        if cores is not None:
            raise click.UsageError("--cores is for a PATH; the server at a URL has its own")
        yield target, model
        return
    from partita.cli.child_server import child_server
    from partita.settings import load_settings
    from partita.sources import find_all

    names = [source.name for source in find_all((Path(target),), load_settings())]
    name = model if model is not None else names[0] if len(names) == 1 else None
    if name not in names:
        raise InvalidInput(f"--model {model or '(not given)'}: {target} holds {', '.join(names)}")
    with child_server(Path(target), cores=cores) as url:
        yield url, name


def _looks_like_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(colon and host and port.isdecimal() and "/" not in text)
