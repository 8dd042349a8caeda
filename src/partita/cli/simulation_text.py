"""What `partita simulate` prints of a run."""

import click

from partita.cli.console import emit_table, milliseconds
from partita.planning.decisions import Decision, Failed
from partita.planning.division import Outcome
from partita.simulator.result import SimulationResult
from partita.simulator.shared import SharedResult

ROWS = 40


def show(result: SimulationResult) -> None:
    """Print one model's run: a table over time, every decision, and the sum of it."""
    _show_windows(result)
    _show_log(result)
    click.echo(f"\n{_summed_up(result)}")
    for start_s, end_s, rate in result.overloads():
        click.echo(
            f"overloaded from {start_s:g} s to {end_s:g} s: up to {rate:.4g} items/s came, and the best plan "
            f"can do {result.capacity:.4g}"
        )


def show_several(result: SharedResult) -> None:
    """Print the runs of models on one machine, one after another, and how its cores were divided."""
    for name, one in result.models.items():
        click.echo(f"{name}\n")
        _show_windows(one, cores=True)
        _show_log(one)
        click.echo("")
    click.echo("the machine\n")
    for divided in result.divisions:
        if divided.outcome is not Outcome.FITS:
            times = f" ({divided.repeated} times)" if divided.repeated > 1 else ""
            click.echo(f"{divided.now_s:8.1f} s  {divided.outcome}: {divided.text}{times}")
    click.echo("")
    for name, one in result.models.items():
        click.echo(f"{name}: {_summed_up(one)}")
    for start_s, end_s in result.overloads:
        click.echo(
            f"overloaded from {start_s:g} s to {end_s:g} s: more came than can be carried, however the cores "
            "are divided"
        )


def _show_windows(result: SimulationResult, *, cores: bool = False) -> None:
    header = ("from s", "items/s", "depth", "B̃", "mean ms", "p99 ms", *(["cores"] * cores), "plan")
    rows = [
        (
            f"{row['from_s']:g}",
            f"{row['items_per_s']:.4g}",
            "-" if row["depth"] is None else f"{row['depth']:.4g}",
            "-" if row["batch"] is None else f"{row['batch']}",
            milliseconds(row["mean_ms"]),
            milliseconds(row["p99_ms"]),
            *([f"{row['cores']}"] * cores),
            row["plan"],
        )
        for row in result.windows(at_most=ROWS)
    ]
    emit_table(header, rows)


def _show_log(result: SimulationResult) -> None:
    click.echo("")
    for entry in result.log:
        if isinstance(entry, Decision):
            click.echo(f"{entry.now_s:8.1f} s  {entry.action}: {entry.text}")
        elif isinstance(entry, Failed):
            click.echo(f"{entry.now_s:8.1f} s  failed: {entry.text}")
        elif entry.gain is not None:
            click.echo(f"{entry.now_s:8.1f} s  gained {entry.gain:.0%}, expected {entry.expected_gain:.0%}")


def _summed_up(result: SimulationResult) -> str:
    document = result.document()
    return (
        f"{document['answered']} of {document['requests']} requests answered, mean "
        f"{milliseconds(document['mean_ms'])} ms, 99th percentile {milliseconds(document['p99_ms'])} ms; "
        f"{document['switches']} switches, {document['rebatches']} rebatches"
    )
