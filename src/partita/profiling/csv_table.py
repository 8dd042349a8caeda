"""Profiles as CSV tables, such as those that others publish."""

import csv
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from partita.core.errors import InvalidInput
from partita.core.profile import Profile, ProfilePoint

HEADER = ("mode", "threads", "batch", "latency_min_ms", "latency_mean_ms", "latency_max_ms")
REQUIRED = ("threads", "batch", "latency_mean_ms")


def read_csv(path: Path, *, mode: str | None = None) -> Profile:
    """Read a profile; `mode` picks the rows of one mode where the file has several.

    Raises `InvalidInput` with the line that is wrong, and where a mode must be named or is not there.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(_rows(path, csv.DictReader(file)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read as CSV: {error}") from error
    modes = sorted({row_mode for _, row_mode, _ in rows})
    if mode is None and len(modes) > 1:
        raise InvalidInput(f"{path} holds the modes {', '.join(modes)}: say which one with --mode")
    chosen = [(line, point) for line, row_mode, point in rows if mode in (None, row_mode)]
    if not chosen:
        known = f"it has {', '.join(m or '(none)' for m in modes)}" if rows else "the file has no rows"
        raise InvalidInput(f"{path}: no rows" + (f" of mode {mode!r}" if mode else "") + f"; {known}")
    return Profile(_distinct(path, chosen))


def _distinct(path: Path, rows: list[tuple[int, ProfilePoint]]) -> list[ProfilePoint]:
    first: dict[tuple[int, int], int] = {}
    for line, point in rows:
        key = (point.threads, point.batch)
        if key in first:
            raise InvalidInput(
                f"{path}, line {line}: threads {key[0]}, batch {key[1]} stand already in line {first[key]}"
            )
        first[key] = line
    return [point for _, point in rows]


def _rows(path: Path, reader: "csv.DictReader[str]") -> Iterator[tuple[int, str, ProfilePoint]]:
    missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
    if missing:
        raise InvalidInput(
            f"{path}, line 1: no column {', '.join(missing)}; expected the header {','.join(HEADER)} "
            f"(of which {', '.join(REQUIRED)} are needed)"
        )
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        point = ProfilePoint(
            threads=_count(row, "threads", where),
            batch=_count(row, "batch", where),
            mean_ms=_milliseconds(row, "latency_mean_ms", where),
            min_ms=_milliseconds(row, "latency_min_ms", where) if row.get("latency_min_ms") else None,
            max_ms=_milliseconds(row, "latency_max_ms", where) if row.get("latency_max_ms") else None,
        )
        yield reader.line_num, row.get("mode") or "", point


def _count(row: dict[str, str], name: str, where: str) -> int:
    text = (row[name] or "").strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InvalidInput(f"{where}: {name} is {text!r}; expected a whole number from 1 up")
    return int(text)


def _milliseconds(row: dict[str, str], name: str, where: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = -1.0
    if not (isfinite(value) and value > 0):
        raise InvalidInput(f"{where}: {name} is {row[name]!r}; expected milliseconds above 0")
    return value
