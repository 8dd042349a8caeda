"""Profile files: JSON with provenance, written so that a crash or a full disk leaves the old one whole."""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from math import isfinite
from pathlib import Path

import msgspec

from partita.core.errors import InvalidInput, PartitaError, ProfileMismatch
from partita.core.profile import Profile, ProfilePoint, Provenance
from partita.profiling.csv_table import read_csv
from partita.profiling.inputs import DEFAULT_AXIS

FORMAT = 1


class SaveFailed(PartitaError):
    """A profile could not be written; the file of before, if there was one, is as it was."""

    code = "save_failed"


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a JSON profile holds."""

    partita_profile: int
    provenance: Provenance | None = None
    load_s: float | None = None
    finished: tuple[int, int] | None = None
    points: list[ProfilePoint]


def read_profile(path: Path, *, mode: str | None = None) -> Profile:
    """Read a profile from CSV or JSON, by the file's suffix. Raises `InvalidInput`."""
    if path.suffix.lower() == ".csv":
        return read_csv(path, mode=mode)
    if mode is not None:
        raise InvalidInput(f"{path}: --mode picks rows of a .csv profile; this is none")
    return load(path)


def save(path: Path, profile: Profile) -> None:
    """Write a profile as JSON, whole or not at all. Raises `SaveFailed`."""
    write_whole(path, encode(profile))


def encode(profile: Profile) -> bytes:
    """Return a profile as JSON."""
    document: dict[str, object] = {"partita_profile": FORMAT}
    if profile.provenance is not None:
        document["provenance"] = _plain(profile.provenance)
    if profile.load_s is not None:
        document["load_s"] = profile.load_s
    if profile.finished is not None:
        document["finished"] = profile.finished
    document["points"] = [
        {name: value for name, value in asdict(point).items() if value is not None}
        for point in profile.points.values()
    ]
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def load(path: Path) -> Profile:
    """Read a JSON profile. Raises `InvalidInput` saying what is wrong with the file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from error
    return decode(content, path)


def decode(content: bytes, path: Path) -> Profile:
    """Return the profile that this JSON from a file holds. Raises `InvalidInput` as `load` does."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} is not a Partita profile: {error}") from error
    if file.partita_profile != FORMAT:
        raise InvalidInput(
            f"{path} is a profile of format {file.partita_profile}, this one reads {FORMAT}: profile again"
        )
    for point in file.points:
        _check(path, point)
    return Profile(file.points, provenance=file.provenance, load_s=file.load_s, finished=file.finished)


def require_same(stored: Provenance | None, current: Provenance, *, where: str) -> None:
    """Raise `ProfileMismatch`, naming every difference, unless two profiles may be mixed."""
    if stored is None:
        raise ProfileMismatch(f"{where} does not say what it was measured on: profile again to another file")
    differences = [
        f"{field.name.replace('_', ' ')} {_short(getattr(stored, field.name))} there, "
        f"{_short(getattr(current, field.name))} here"
        for field in fields(Provenance)
        if getattr(stored, field.name) != getattr(current, field.name)
    ]
    if differences:
        raise ProfileMismatch(f"{where} was measured on something else: {'; '.join(differences)}")


def cached_path(folder: Path, provenance: Provenance) -> Path:
    """Return where the profile of this provenance lies in a cache folder, whether it is there or not.

    Axes of the default size count as not given, as they are before a model was ever loaded. Which items it
    was measured with does not count: those who look it up to serve the model have none.
    """
    known = {**_plain(provenance), "dimensions": _given(provenance)}
    del known["samples_hash"]
    key = hashlib.sha256(msgspec.json.encode(known, order="sorted")).hexdigest()
    return folder / f"{key[:32]}.json"


def load_cached(folder: Path, provenance: Provenance) -> Profile | None:
    """Return the cached profile of this provenance; None if there is none that can be read."""
    path = cached_path(folder, provenance)
    if not path.exists():
        return None
    try:
        profile = load(path)
    except InvalidInput:
        return None
    found = profile.provenance
    return profile if found is not None and cached_path(folder, found) == path else None


def _given(provenance: Provenance) -> dict[str, int]:
    return {name: size for name, size in provenance.dimensions.items() if size != DEFAULT_AXIS}


def _plain(provenance: Provenance) -> dict[str, object]:
    return {field.name: _as_is(getattr(provenance, field.name)) for field in fields(Provenance)}


def _as_is(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


def _short(value: object) -> str:
    text = str(dict(value)) if isinstance(value, Mapping) else str(value) or "none"
    return text if len(text) <= 40 else f"{text[:12]}…"


def _check(path: Path, point: ProfilePoint) -> None:
    if point.threads < 1 or point.batch < 1 or not (isfinite(point.mean_ms) and point.mean_ms > 0):
        raise InvalidInput(
            f"{path}: a point has threads {point.threads}, batch {point.batch}, mean_ms {point.mean_ms}; "
            "expected all above 0"
        )


def write_whole(path: Path, content: bytes, what: str = "the profile") -> None:
    """Write beside the file, flush to disk, then rename over it. Raises `SaveFailed`."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise SaveFailed(
            f"{what} cannot be written to {path}: {error.strerror}; what was there is kept"
        ) from error
