"""When requests come, and how many items each has: from a short text, or from a file.

A text is one or more pieces, `RATE@SECONDS` or `RATE..RATE@SECONDS`, separated by commas: steps and ramps of
requests per second. In front may stand how they come: `poisson:` (at random, the default), `constant:`, or
`bursty:` (several at a time, the bursts at random).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InvalidInput

MOST_REQUESTS = 20_000_000


class Kind(StrEnum):
    """How requests come at a given rate."""

    POISSON = "poisson"
    CONSTANT = "constant"
    BURSTY = "bursty"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time in which the rate goes evenly from one value to another, requests per second."""

    from_rate: float
    to_rate: float
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Every request of a run."""

    times_s: NDArray[np.float64]  # (requests,) ascending, seconds from the start
    items: NDArray[np.int64]  # (requests,)
    duration_s: float

    def items_per_s(self, width_s: float) -> NDArray[np.float64]:
        """Return the mean rate in each window of this width, the last one perhaps shorter."""
        edges = np.append(np.arange(0.0, self.duration_s, width_s), self.duration_s)
        if len(edges) > 2 and edges[-1] - edges[-2] < 1e-6 * width_s:
            edges = np.delete(edges, -2)
        counts, _ = np.histogram(self.times_s, edges, weights=self.items)
        rates: NDArray[np.float64] = counts / np.diff(edges)
        return rates


_NUMBER = r"\d+(?:\.\d+)?"
_PIECE = re.compile(rf"({_NUMBER})(?:\.\.({_NUMBER}))?(?:@({_NUMBER}))?")


def parse_rate(text: str, *, duration_s: float) -> tuple[Kind, tuple[Piece, ...]]:
    """Read a rate; a piece without seconds lasts `duration_s`. Raises `InvalidInput`."""
    name, colon, rest = text.rpartition(":")
    try:
        kind = Kind(name) if colon else Kind.POISSON
    except ValueError:
        raise InvalidInput(f"rate {text!r}: {name!r} is none of {', '.join(Kind)}") from None
    pieces = []
    for part in rest.split(","):
        found = _PIECE.fullmatch(part.strip())
        if found is None:
            raise InvalidInput(
                f"rate {text!r}: {part!r} is no RATE, RATE@SECONDS or RATE..RATE@SECONDS, such as 20..400@60"
            )
        low, high, seconds = found.groups()
        lasts_s = duration_s if seconds is None else float(seconds)
        if lasts_s <= 0.0:
            raise InvalidInput(f"rate {text!r}: {part!r} lasts no time")
        pieces.append(Piece(float(low), float(low if high is None else high), lasts_s))
    return kind, tuple(pieces)


def generate(
    kind: Kind, pieces: Sequence[Piece], rng: np.random.Generator, *, items: int = 1, burst: float = 8.0
) -> Arrivals:
    """Return the requests of these pieces, `items` items each; the same generator gives the same requests.

    `burst` is the mean number of requests in a burst of `Kind.BURSTY`, whose sizes are geometric.
    """
    ends = np.cumsum([0.0, *(_expected(piece) for piece in pieces)])
    if ends[-1] > MOST_REQUESTS:
        raise InvalidInput(f"{ends[-1]:.3g} requests are too many to simulate; at most {MOST_REQUESTS}")
    starts_s = np.cumsum([0.0, *(piece.seconds for piece in pieces)])
    at, sizes = _counts(kind, float(ends[-1]), rng, burst)
    times = np.concatenate(
        [
            start_s + _when(piece, at[(at >= low) & (at < high)] - low)
            for piece, start_s, (low, high) in zip(pieces, starts_s, pairwise(ends), strict=False)
        ]
        or [np.empty(0)]
    )
    times = np.repeat(times, sizes)
    return Arrivals(times, np.full(len(times), items, dtype=np.int64), float(starts_s[-1]))


def _counts(
    kind: Kind, expected: float, rng: np.random.Generator, burst: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return where requests stand on an axis on which they come at rate 1, and how many at each place."""
    if kind is Kind.CONSTANT:
        at = np.arange(0.5, expected)
        return at, np.ones(len(at), dtype=np.int64)
    together = max(1.0, burst) if kind is Kind.BURSTY else 1.0
    bursts = expected / together
    room = int(bursts + 8.0 * np.sqrt(bursts) + 16)
    at = np.cumsum(rng.exponential(together, room))
    at = at[at < expected]
    if kind is Kind.BURSTY:
        return at, rng.geometric(1.0 / together, len(at))
    return at, np.ones(len(at), dtype=np.int64)


def _expected(piece: Piece) -> float:
    return (piece.from_rate + piece.to_rate) / 2.0 * piece.seconds


def _when(piece: Piece, count: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the times within the piece by which so many requests are expected."""
    low, slope = piece.from_rate, (piece.to_rate - piece.from_rate) / piece.seconds
    if len(count) == 0:
        return count
    # count = low·t + slope·t²/2, solved in the form that stays exact where the slope is 0
    root = np.sqrt(np.maximum(low * low + 2.0 * slope * count, 0.0))
    times: NDArray[np.float64] = np.minimum(2.0 * count / (low + root), piece.seconds)
    return times


def read_trace(path: Path) -> Arrivals:
    """Read a trace: a line `SECONDS` or `SECONDS,ITEMS` for each request, ascending; a header may come first.

    Raises `InvalidInput` with the line that is wrong.
    """
    times: list[float] = []
    items: list[int] = []
    for line, (time_s, count) in _trace_lines(path):
        if times and time_s < times[-1]:
            raise InvalidInput(
                f"{path}, line {line}: {time_s:g} s is before the request above; sort the trace"
            )
        times.append(time_s)
        items.append(count)
    if not times:
        raise InvalidInput(f"{path}: the trace has no requests; write SECONDS or SECONDS,ITEMS in each line")
    return Arrivals(np.array(times), np.array(items, dtype=np.int64), times[-1])


def _trace_lines(path: Path) -> Iterator[tuple[int, tuple[float, int]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: cannot be read as a trace: {error}") from error
    for line, row in enumerate(text.splitlines(), 1):
        fields = [field.strip() for field in row.split(",")]
        if not row.strip() or row.startswith("#") or (line == 1 and not _is_number(fields[0])):
            continue
        try:
            time_s, count = float(fields[0]), int(fields[1]) if len(fields) > 1 else 1
        except ValueError:
            time_s, count = -1.0, 0
        if not (isfinite(time_s) and time_s >= 0.0 and count >= 1):
            raise InvalidInput(f"{path}, line {line}: {row!r} is no SECONDS or SECONDS,ITEMS")
        yield line, (time_s, count)


def _is_number(text: str) -> bool:
    return re.fullmatch(rf"{_NUMBER}(?:[eE][+-]?\d+)?", text) is not None
