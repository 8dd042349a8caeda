"""What choosing a runtime looks like at the terminal: a bar while candidates are tried, then a table."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isinf
from typing import TYPE_CHECKING

import click

from partita.cli.console import emit_table, milliseconds, progress, say

if TYPE_CHECKING:
    from partita.cli.profiling import Watch
    from partita.core.choice import Assessment, Candidate, Choice
    from partita.core.profile import Profile
    from partita.profiling.choice_terms import Audience, Step

_POINTS = 4
"""Most ⟨t, b⟩ that the table shows."""


@contextmanager
def watched_choice(watch: "Watch", name: str, budget_s: float) -> "Iterator[Audience]":
    """Show a bar with the time left while candidates are tried; notes are said. Yields who is to be told.

    `watch` is told of the first candidate's profile, the reference's: the least that there is to go on with.
    """
    from partita.profiling.choice_terms import Audience

    reference: list[Candidate] = []

    with progress(f"choosing a runtime for {name}", budget_s) as advance:

        def told(now: "Step") -> None:
            advance(now.elapsed_s, text=f"at most {now.left_s:.0f} s left; {now.text}")

        def save(candidate: "Candidate", profile: "Profile") -> None:
            reference.append(candidate)
            if candidate == reference[0]:
                watch.save(profile)

        yield Audience(step=told, note=say, save=save)


def show_choice(choice: "Choice") -> None:
    """Print what was found of every candidate, the winner marked, and why each of the others lost."""
    points = _common_points(choice.assessments)
    emit_table(
        (
            "runtime",
            "verdict",
            "off by",
            "start s",
            "again s",
            "private MiB",
            "second MiB",
            *(f"⟨{t},{b}⟩ ms" for t, b in points),
            "in all",
        ),
        [_row(assessment, choice.winner, points) for assessment in choice.assessments],
    )
    click.echo(
        f"\n* {choice.winner} was chosen; outputs compared on {choice.items} items; "
        "in all: time of its plans over all batch sizes, the winner's = 1"
    )
    for assessment in choice.assessments:
        if assessment.candidate.key != choice.winner:
            click.echo(f"  {assessment.candidate.key}: {assessment.reason}")
    for assessment in choice.assessments:
        if assessment.is_eligible and (lowered := choice.lowered(assessment)) is not None:
            click.echo(f"  {assessment.candidate.key}: {lowered}")


def _row(assessment: "Assessment", winner: str, points: "Sequence[tuple[int, int]]") -> tuple[str, ...]:
    speeds = {(speed.threads, speed.batch): speed.mean_ms for speed in assessment.speeds}
    key = assessment.candidate.key
    return (
        f"{'* ' if key == winner else '  '}{key}",
        str(assessment.verdict),
        _off(assessment),
        milliseconds(assessment.load_s),
        milliseconds(assessment.second_load_s),
        _mib(assessment.private_bytes),
        _mib(assessment.second_private_bytes),
        *(milliseconds(speeds.get(point)) for point in points),
        "-" if assessment.slower is None else f"{assessment.slower:.2f}",
    )


def _off(assessment: "Assessment") -> str:
    largest = assessment.largest
    if largest is None:
        return "-"
    return "not finite" if isinf(largest.relative) else f"{largest.relative:.2g}"


def _mib(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / (1 << 20):.0f}"


def _common_points(assessments: "Sequence[Assessment]") -> list[tuple[int, int]]:
    """Return the first points that most candidates were measured at, in order."""
    seen: dict[tuple[int, int], int] = {}
    for assessment in assessments:
        for speed in assessment.speeds:
            key = (speed.threads, speed.batch)
            seen[key] = seen.get(key, 0) + 1
    return sorted(sorted(seen, key=lambda point: -seen[point])[:_POINTS])
