"""Profiles in CSV, as INTERFACE describes them."""

import csv
from pathlib import Path

from partita.core.errors import InvalidInput
from partita.core.profile import Profile, ProfilePoint


def read_profile(file: Path, mode: str | None = None) -> Profile:
    """Read a profile; raises `InvalidInput`."""
    with file.open(newline="", encoding="utf-8") as text:
        rows = [row for row in csv.DictReader(text) if mode is None or row.get("mode") == mode]
    try:
        return Profile(
            ProfilePoint(
                threads=int(r["threads"]), batch=int(r["batch"]), mean_ms=float(r["latency_mean_ms"])
            )
            for r in rows
        )
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"{file}: {error}") from error
