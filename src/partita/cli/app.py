"""The group of commands, loaded one by one when asked for, and what every failure looks like."""

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

import click

from partita.core.errors import InvalidInput, PartitaError

COMMANDS = {
    "profile": "Measure a model: how long it takes for t cores and b items.",
    "plan": "Choose the instances that answer a batch soonest on these cores.",
    "simulate": "Serve a load that is not there with a profile's plans, and see how they follow it.",
    "allocate": "Choose which members of an ensemble run on which cores, by running them.",
    "serve": "Serve models over HTTP.",
    "bench": "Load a server, or a model in a server of its own, and measure.",
    "predict": "Run a model over a file of inputs, offline.",
    "torchserve": "TorchServe's command line, for the scripts that start it.",
    "demo": "Profile, plan and serve small real models, and show the difference.",
}
INTERRUPTED = 130


class LazyGroup(click.Group):
    """Imports a command's module when the command is named; its one-line help needs no import."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the commands in the order that one uses them."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import ``partita.cli.NAME`` and return its command."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"partita.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one is meant by a name that is nearly one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"partita {version('partita')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: partita serve model.onnx",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
def cli() -> None:
    """A self-tuning inference server.

    It partitions a machine's cores and a batch's items so that answers come back early.
    """


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every failure that we know is one line on stderr."""
    try:
        result = cli.main(
            args=None if argv is None else list(argv), prog_name="partita", standalone_mode=False
        )
        sys.stdout.flush()
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("partita: interrupted", err=True)
        return INTERRUPTED
    except PartitaError as error:
        click.echo(f"partita: error: {' '.join(str(error).split())}", err=True)
        return 2 if isinstance(error, InvalidInput) else 1
    except BrokenPipeError:  # as with `| head`: nobody reads on, and the flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return result if isinstance(result, int) else 0
