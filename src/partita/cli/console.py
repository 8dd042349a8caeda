"""What is printed where: documents and tables to stdout, everything else to stderr."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import click

from partita.settings import wants_colour

_PLAIN_EVERY_S = 5.0


class Advance(Protocol):
    """Reports how far something is: `done` of `total`, None while that is unknown, and a few words."""

    def __call__(self, done: float, total: float | None = None, text: str = "") -> None:
        """Show it."""


def say(text: str) -> None:
    """Tell the person at the terminal something, on stderr."""
    click.echo(text, err=True)


def emit_json(document: Mapping[str, Any]) -> None:
    """Print the one document of ``--json`` on stdout."""
    click.echo(json.dumps(document, allow_nan=False))


def emit_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout, columns aligned to the right but for the first."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [
            cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def milliseconds(value: float | None) -> str:
    """Return a time with three figures, a dash for none."""
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


@contextmanager
def progress(title: str, total: float | None) -> Iterator[Advance]:
    """Show a bar with the time left on a terminal, and a line now and then elsewhere; on stderr."""
    if sys.stderr.isatty():
        with _bar(title, total) as advance:
            yield advance
    else:
        yield _plain(title, total)


@contextmanager
def _bar(title: str, total: float | None) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=not wants_colour())
    columns = (TextColumn(title), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(title, total=total, text="")

        def advance(done: float, total: float | None = None, text: str = "") -> None:
            bars.update(task, completed=done, total=total, text=text)

        yield advance


def _plain(title: str, total: float | None) -> Advance:
    whole = total
    next_s = time.monotonic() + _PLAIN_EVERY_S

    def advance(done: float, total: float | None = None, text: str = "") -> None:
        nonlocal whole, next_s
        whole = whole if total is None else total
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _PLAIN_EVERY_S
            share = f" {done / whole:.0%}" if whole else ""
            say(f"{title}:{share} {text}".rstrip())

    return advance
