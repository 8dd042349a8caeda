"""``partita serve``."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from partita.allocation_file import read_allocation
from partita.catalogue import Catalogue
from partita.cli.documents import read_plan
from partita.cli.options import FILE, config_option, cores_option, json_option
from partita.core.errors import InvalidInput
from partita.settings import Settings, check_build, default_config, load_settings, torchserve_environment
from partita.sources import ModelSource, find_all


@click.command(
    epilog="Example: partita serve models/ --cores 0-7 --http 0.0.0.0:8080",
    short_help="Serve models over HTTP.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, type=FILE)
@config_option
@click.option("--http", metavar="HOST:PORT", help="Inference. [default: 127.0.0.1:8080]")
@click.option("--management", metavar="HOST:PORT", help="Management, or off. [default: 127.0.0.1:8081]")
@click.option("--metrics", metavar="HOST:PORT", help="Metrics, or off. [default: 127.0.0.1:8082]")
@click.option("--grpc", metavar="HOST:PORT", help="gRPC. [default: off]")
@click.option(
    "--disable-token-auth",
    "token_auth",
    flag_value=False,
    default=None,
    help="Let whoever reaches a port load and unload models.",
)
@click.option(
    "--model-store", metavar="DIR", help="Models that may be loaded later. [default: only those at PATH...]"
)
@click.option(
    "--enable-model-api",
    flag_value=True,
    default=None,
    help="Let models be registered and unregistered over TorchServe's management API.",
)
@click.option(
    "--models",
    metavar="LIST",
    multiple=True,
    help="TorchServe archives of the model store to serve: x.mar, NAME=x.mar, or all.",
)
@click.option(
    "--ts-config",
    type=FILE,
    metavar="FILE",
    help="TorchServe's config.properties, below all other settings.",
)
@cores_option
@click.option("--head-cores", metavar="LIST", help="CPUs for the head alone. [default: none are kept for it]")
@click.option("--batch", type=click.IntRange(min=1), metavar="B", help="Items that the plan is made for.")
@click.option(
    "--batch-timeout-ms", type=click.FloatRange(min=0), metavar="X", help="Longest wait for a fuller batch."
)
@click.option(
    "--policy", type=click.Choice(["eager", "aggregate"]), help="When batches are formed. [default: eager]"
)
@click.option(
    "--tune",
    type=click.Choice(["background", "before", "never"]),
    help="When to profile a model that has no profile. [default: background]",
)
@click.option(
    "--tune-budget", "tune_budget_s", type=float, metavar="SECONDS", help="Longest that this may take."
)
@click.option("--adapt/--no-adapt", default=None, help="Change plans as the load changes. [default: adapt]")
@click.option(
    "--plan",
    "plan_file",
    type=FILE,
    metavar="FILE.json",
    help="Serve with this plan, of `partita plan --json` or `partita allocate -o`.",
)
@json_option
def command(
    paths: tuple[Path, ...],
    config: Path | None,
    batch: int | None,
    batch_timeout_ms: float | None,
    plan_file: Path | None,
    models: tuple[str, ...],
    ts_config: Path | None,
    as_json: bool,
    **server: Any,
) -> int:
    """Serve the models at PATH...: .onnx files, model folders, or folders of these.

    Runs until SIGTERM or Ctrl-C, then answers what it has taken and ends.
    """
    settings = load_settings(config or default_config()).with_server(**server)
    settings = _with_archives(settings, ts_config, models)
    check_build(settings)
    sources = sources_for(
        paths, settings, batch=batch, batch_timeout_ms=batch_timeout_ms, plan_file=plan_file
    )

    from partita.server import serve

    changes = _given(batch=batch, batch_timeout_ms=batch_timeout_ms)
    catalogue = Catalogue(paths=paths, settings=settings, changes=changes)
    return serve(settings, sources, catalogue=catalogue, as_json=as_json)


def sources_for(
    paths: tuple[Path, ...],
    settings: Settings,
    *,
    batch: int | None = None,
    batch_timeout_ms: float | None = None,
    plan_file: Path | None = None,
) -> tuple[ModelSource, ...]:
    """Return the models to serve, with what the command line says about all of them.

    Raises `InvalidInput` for a path that holds no model, or a plan for more than one.
    """
    sources = find_all(paths, settings)
    if not sources and settings.server.model_store is None:
        raise click.UsageError("give at least one PATH, or a [model.NAME] path in --config")
    given = _given(batch=batch, batch_timeout_ms=batch_timeout_ms)
    if plan_file is not None:
        if len(sources) > 1:
            raise InvalidInput(f"--plan is for one model, and there are {len(sources)}")
        if sources[0].ensemble is not None:
            sources = (replace(sources[0], allocation=read_allocation(plan_file)),)
        else:
            given["instances"] = read_plan(plan_file)
    return tuple(replace(s, settings=msgspec.structs.replace(s.settings, **given)) for s in sources)


def _with_archives(settings: Settings, ts_config: Path | None, models: tuple[str, ...]) -> Settings:
    wanted = tuple(one for given in models for one in re.split(r"[,\s]+", given.strip()) if one)
    if ts_config is None and not wanted:
        return settings
    from partita.torchserve_config import with_models, with_properties

    if ts_config is None:
        return with_models(settings, wanted)
    return with_properties(settings, ts_config, environ=torchserve_environment(), models=wanted)


def _given(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}
