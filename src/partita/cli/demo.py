"""``partita demo``."""

from pathlib import Path

import click

from partita.cli.console import emit_json, say
from partita.cli.options import FILE, json_option


@click.command(
    epilog="Example: partita demo --seconds 30 --output demo-output",
    short_help="Profile, plan and serve small real models, and show the difference.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=45.0,
    show_default=True,
    metavar="N",
    help="About how long.",
)
@click.option(
    "--output",
    type=FILE,
    default=Path("demo-output"),
    show_default=True,
    metavar="DIR",
    help="Where the picture goes.",
)
@json_option
def command(seconds: float, output: Path, as_json: bool) -> None:
    """Profile small classifiers of handwritten digits, plan them, serve them, and ask them real images.

    Shows what the plan gains over one instance with all cores and over one thread per core.
    """
    from partita.demo.run import run_demo

    result = run_demo(seconds=seconds, output=output, report=say if as_json else click.echo)
    if as_json:
        emit_json(result.as_json())
