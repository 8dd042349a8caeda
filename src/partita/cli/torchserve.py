"""``partita torchserve``: TorchServe's command line, for the scripts that start it."""

import importlib.util
import logging
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from partita.catalogue import Catalogue
from partita.cli.console import emit_json
from partita.cli.options import FILE, json_option
from partita.core.errors import InvalidInput
from partita.settings import Settings, check_build, default_config, load_settings, torchserve_environment
from partita.sources import find_all
from partita.system.addresses import Address
from partita.system.pid_files import PidFile

log = logging.getLogger("partita")

PID_FILE = ".model_server.pid"
"""TorchServe's name for it, in the folder for temporary files."""
STOP_LIMIT_S = 60.0
SPEAKS = "0.12"
"""The version whose interfaces are followed."""
GRPC = {"grpc": Address("127.0.0.1", 7070), "grpc_management": Address("127.0.0.1", 7071)}
WITHOUT_EFFECT = {
    "no_config_snapshots": "--ncs changes nothing here: no snapshots of the configuration are written",
    "log_config": "--log-config changes nothing here: lines go to stderr, as log_format says",
    "cpp_log_config": "--cpp-log-config changes nothing here: there is no C++ backend",
    "plugins_path": "--plugins-path changes nothing here: plugins are Java's, and nothing here is",
    "workflow_store": "--workflow-store changes nothing here: there are no workflows, see docs/ensembles.md",
}


class TorchServeCommand(click.Command):
    """Lets several values follow ``--models``, and keeps the arguments as they were given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse."""
        ctx.meta[__name__] = list(args)
        return super().parse_args(ctx, _spread(args))


def _spread(args: Sequence[str]) -> list[str]:
    """Return arguments with ``--models`` before each of its values."""
    spread: list[str] = []
    is_in_models = has_value = False
    for arg in args:
        if arg.startswith("-"):
            is_in_models = arg == "--models" or arg.startswith("--models=")
            has_value = arg != "--models"
        elif is_in_models:
            if has_value:
                spread.append("--models")
            has_value = True
        spread.append(arg)
    return spread


@click.command(
    cls=TorchServeCommand,
    epilog="Example: partita torchserve --start --model-store model-store --models mnist=mnist.mar",
    short_help="TorchServe's command line, for the scripts that start it.",
)
@click.option("--start", is_flag=True, help="Serve; so does naming neither of --stop and -v.")
@click.option(
    "--stop", is_flag=True, help="End the server that runs, once it has answered what it has taken."
)
@click.option("-v", "--version", is_flag=True, help="Show the version.")
@click.option("--foreground", is_flag=True, help="Serve in this process. [default: in the background]")
@click.option(
    "--ts-config", type=FILE, metavar="FILE", help="config.properties. [default: ./config.properties]"
)
@click.option("--model-store", type=FILE, metavar="DIR", help="Where the archives lie.")
@click.option(
    "--models", multiple=True, metavar="LIST", help="What to serve: x.mar, NAME=x.mar, a URL, or all."
)
@click.option(
    "--disable-token-auth", "--dt", is_flag=True, help="Let whoever reaches a port ask for anything."
)
@click.option("--enable-model-api", is_flag=True, help="Let models be registered and unregistered.")
@click.option("--ncs", "--no-config-snapshots", "no_config_snapshots", is_flag=True, help="Changes nothing.")
@click.option("--log-config", metavar="FILE", help="Changes nothing.")
@click.option("--cpp-log-config", metavar="FILE", help="Changes nothing.")
@click.option("--plugins-path", "--ppath", metavar="PATH", help="Changes nothing.")
@click.option("--workflow-store", metavar="DIR", help="Changes nothing.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    start: bool,
    stop: bool,
    version: bool,
    foreground: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Start or stop a server with TorchServe's options, and its defaults for ports, tokens and archives.

    In the background it is known by .model_server.pid in the folder for temporary files.
    """
    if start + stop + version > 1:
        raise click.UsageError("give one of --start, --stop and --version")
    if version:
        _say_version(as_json=as_json)
        return 0
    pid_file = PidFile(Path(tempfile.gettempdir()) / PID_FILE)
    if stop:
        return _stop(pid_file, as_json=as_json)
    pid_file.refuse_second()
    if not foreground:
        return _start(ctx.meta[__name__], pid_file, as_json=as_json)
    return _serve(pid_file, as_json=as_json, **given)


def _say_version(*, as_json: bool) -> None:
    from importlib.metadata import version

    own = version("partita")
    if as_json:
        emit_json({"version": own, "torchserve": SPEAKS})
    else:
        click.echo(f"Partita {own}, with the interfaces of TorchServe {SPEAKS}")


def _stop(pid_file: PidFile, *, as_json: bool) -> int:
    pid, is_gone = pid_file.end(STOP_LIMIT_S)
    if as_json:
        status = "not running" if pid is None else "stopped" if is_gone else "stopping"
        emit_json({"status": status, "pid": pid})
    elif pid is None:
        click.echo("No server is running.")
    elif is_gone:
        click.echo("The server has stopped.")
    else:
        click.echo(f"Process {pid} still answers what it has taken; --stop again ends it at once.")
    return 0 if is_gone else 1


def _start(argv: Sequence[str], pid_file: PidFile, *, as_json: bool) -> int:
    from partita.cli.background import start_in_background

    own = [arg for arg in argv if arg != "--json"]
    pid, code = start_in_background(["torchserve", "--foreground", *own], pid_file)
    if code is not None:
        return code or 1
    if as_json:
        emit_json({"status": "started", "pid": pid})
    return 0


def _serve(pid_file: PidFile, *, as_json: bool, **given: Any) -> int:
    for name, text in WITHOUT_EFFECT.items():
        if given[name]:
            log.warning("%s", text)
    settings = settings_for(
        ts_config=given["ts_config"],
        model_store=given["model_store"],
        models=given["models"],
        disable_token_auth=given["disable_token_auth"],
        enable_model_api=given["enable_model_api"],
    )
    check_build(settings)
    sources = find_all((), settings)

    from partita.server import serve

    catalogue = Catalogue(paths=(), settings=settings)
    return serve(settings, sources, catalogue=catalogue, as_json=as_json, pid_file=pid_file)


def settings_for(
    *,
    ts_config: Path | None = None,
    model_store: Path | None = None,
    models: Sequence[str] = (),
    disable_token_auth: bool = False,
    enable_model_api: bool = False,
) -> Settings:
    """Return the settings that these options stand for, with TorchServe's defaults. Raises `InvalidInput`."""
    from partita.torchserve_config import with_models, with_properties

    settings = load_settings(default_config()).with_server(
        model_store=None if model_store is None else str(model_store),
        token_auth=False if disable_token_auth else None,
        enable_model_api=True if enable_model_api else None,
    )
    wanted = tuple(one for each in models for one in re.split(r"[,\s]+", each.strip()) if one)
    environ = torchserve_environment()
    if (file := _config_file(environ.get("TS_CONFIG_FILE"), ts_config)) is not None:
        settings = with_properties(settings, file, environ=environ, models=wanted)
    else:
        settings = with_models(settings, wanted)
    server = settings.server
    if server.model_store is None:
        raise InvalidInput("--model-store is missing, and no config.properties names a model_store")
    if not Path(server.model_store).is_dir():
        raise InvalidInput(f"--model-store: there is no folder {server.model_store}")
    changes: dict[str, Any] = {"inference_token": server.token_auth}
    if importlib.util.find_spec("grpc") is not None:
        changes |= {name: usual for name, usual in GRPC.items() if getattr(server, name) is None}
    return msgspec.structs.replace(settings, server=msgspec.structs.replace(server, **changes))


def _config_file(from_environment: str | None, given: Path | None) -> Path | None:
    """Return the file to read: as there, the variable goes first, and one that lies here is taken at last."""
    named = Path(from_environment) if from_environment else given
    if named is not None:
        return named
    here = Path("config.properties")
    return here if here.is_file() else None
