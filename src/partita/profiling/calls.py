"""Calls to measure an archive with: from files that the user gives, or from what a served archive got."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from partita.core.errors import InvalidInput
from partita.profiling.inputs import Items
from partita.wire.archive_call import INPUT, Call, Field, pack_call, pack_calls

MOST_FILES = 1000
BODY = "body"
"""The field of a request that is no form."""
_MEDIA = {".json": "application/json", ".txt": "text/plain"}
"""What a client says of such a body, and a handler then gets it as what it is; others come as bytes."""


def load_calls(path: Path) -> Items:
    """Read calls: a file is a request's body, a folder holds one in each of its files.

    A folder within it is a form, each file a field that is named as the file is without its suffix. An
    ``.npy`` of numbers holds one body in each row, as raw bytes. Raises `InvalidInput`.
    """
    try:
        if path.suffix == ".npy":
            return as_items(_rows(path))
        if path.is_file():
            return as_items([_call(path)])
        places = sorted(place for place in path.iterdir() if not place.name.startswith("."))
        if not places or len(places) > MOST_FILES:
            raise InvalidInput(
                f"{path} holds {len(places)} files: give from 1 to {MOST_FILES}, a call in each"
            )
        return as_items([_call(place) for place in places])
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read as calls: {error.strerror}") from error


def as_items(calls: Sequence[bytes]) -> Items:
    """Return packed calls as the items of an archive's one input."""
    array = np.empty(len(calls), dtype=object)
    array[:] = list(calls)
    return {INPUT: array}


def calls_hash(calls: Sequence[bytes]) -> str:
    """Return what tells these calls from others, as hexadecimal digits."""
    return hashlib.sha256(pack_calls(calls)).hexdigest()


def _call(place: Path) -> bytes:
    if not place.is_dir():
        return pack_call(Call(place.name, (_field(place, BODY),)))
    fields = tuple(_field(file, file.stem) for file in sorted(place.iterdir()) if file.is_file())
    if not fields:
        raise InvalidInput(f"{place} holds no file: of a folder within, each file is a field of one call")
    return pack_call(Call(place.name, fields))


def _field(file: Path, name: str) -> Field:
    return Field(name, _MEDIA.get(file.suffix.lower(), ""), file.read_bytes())


def _rows(path: Path) -> list[bytes]:
    try:
        array = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise InvalidInput(f"{path}: cannot be read as .npy: {error}") from error
    if (
        not isinstance(array, np.ndarray)
        or not array.ndim
        or not len(array)
        or array.dtype.kind not in "biufc"
    ):
        raise InvalidInput(f"{path}: expected numbers, a body in each of one or more rows")
    return [pack_call(Call(str(at), (Field(BODY, "", row.tobytes()),))) for at, row in enumerate(array)]
