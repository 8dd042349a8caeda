"""A model as its runtime has prepared it, kept by the first who loads it, for those after it.

A large model loads many times faster so: nothing is optimized, and its weights are mapped, so that what
instances do not rearrange for themselves they have in memory once. The first load prepares into a file and
then loads that. Where anything is in doubt, the model's own file is loaded.
"""

import ctypes
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.system.artefacts import cache_dir, kept, limit_kept, remove_kept, used
from partita.system.instructions import instructions
from partita.system.model_files import external_data

LEAST_BYTES = 10 << 20
"""Smaller models load within some 50 ms anyway."""
MOST_BYTES = 8 << 30
"""What all that are kept of one kind may take on the disk together."""
_RECORD = "files.json"
_FREE_TIMES = 4
"""How many times a model's size must be free on the disk."""
_WAIT_S = 20.0
"""How long to wait for another who prepares the same model."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_State = list[list[str | int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How one runtime prepares ``.onnx`` models, and loads what came of it."""

    kind: str
    """The folder's name in the cache."""
    facts: tuple[object, ...]
    """What the result depends on beside the model's files and the CPU's instructions."""
    make: Callable[[Path], bool]
    """Fills a folder; False where that comes to nothing. Raises `MemoryError`, or `OSError` where it may do
    another time."""
    load: Callable[[Path], Any]
    """Loads what is in such a folder; raises whatever the library raises."""


def kept_model(file: Path, way: Preparation, *, of_any_size: bool = False) -> Any | None:
    """Return what loads of what is kept of a model, made now if it can be; None = load the model itself.

    Raises `OSError` where nothing can be kept, with the reason, and `MemoryError`.
    """
    file = file.resolve()
    is_small = file.stat().st_size < LEAST_BYTES
    size = sum(part.stat().st_size for part in _parts(file) or ()) if is_small else LEAST_BYTES
    if size < LEAST_BYTES and not of_any_size:
        return None
    # Nothing is flushed to the disk, so that what was made before the machine's last start is not trusted.
    folder = cache_dir() / way.kind / _BOOT_ID.read_text(encoding="ascii").strip()
    place = kept(
        folder, _key(file, way), lambda place: _make(file, place, way), is_good=_is_current, limit_s=_WAIT_S
    )
    return _loaded(place, way) if _record(place)[1] else None


def _loaded(place: Path, way: Preparation) -> Any | None:
    """Load what is kept; what does not load is removed, for the next one to make it anew."""
    record = (place / _RECORD).read_bytes()
    try:
        model = way.load(place)
    except MemoryError:
        raise
    except Exception as error:
        remove_kept(place)
        raise OSError(f"what was kept does not load: {error}") from error
    if (place / _RECORD).read_bytes() != record or not _is_current(place):  # its parts may be of two models
        return None
    used(place)
    return model


def _make(file: Path, place: Path, way: Preparation) -> None:
    """Prepare a model into a folder; without a file in it where that comes to nothing.

    Raises `OSError` where it may do another time, and `MemoryError`.
    """
    parts = _parts(file)
    before = _state([file] if parts is None else parts)
    size = sum(part.stat().st_size for part in parts or [file])
    if size > MOST_BYTES:
        raise OSError(f"it has {size} bytes, and all that are kept may have {MOST_BYTES}")
    if shutil.disk_usage(place).free < _FREE_TIMES * size:
        raise OSError(f"no room for it in {place.parent}")
    is_usable = parts is not None and way.make(place)
    _give_back_memory()
    if not is_usable:
        _check_room(place, size)
        for left in place.iterdir():
            left.unlink()
    if _state([file] if parts is None else parts) != before:
        raise OSError("the model's files are being changed")
    made = _state(sorted(place.iterdir()), settle=False)
    for one in made:
        one[0] = Path(str(one[0])).name
    (place / _RECORD).write_text(json.dumps([before, made]), encoding="utf-8")
    limit_kept(place.parent, MOST_BYTES)


def _check_room(place: Path, nbytes: int) -> None:
    """Raise `OSError` where a folder cannot take so many bytes more: then it is why nothing came of it."""
    with tempfile.TemporaryFile(dir=place) as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)


def _key(file: Path, way: Preparation) -> str:
    facts = (str(file), way.facts, sorted(instructions()))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


# --- the files --------------------------------------------------------------------------------------


def _parts(file: Path) -> list[Path] | None:
    """Return the model's own file and those of weights that it names; None unless it is sure which."""
    beside = external_data(file)
    return None if beside is None else [file, *beside]


def _record(place: Path) -> tuple[_State, _State]:
    """Return the states of the model's files and of those made of them. Raises `OSError` or `ValueError`."""
    before, made = json.loads((place / _RECORD).read_bytes())
    return before, made


def _is_current(place: Path) -> bool:
    """Whether this was made of the files as they are now, and is as it was made."""
    try:
        before, made = _record(place)
        files = [Path(str(name)) for name, *_ in before]
        own = _state([place / str(name) for name, *_ in made], settle=False)
        is_whole = [fields[1:] for fields in own] == [fields[1:] for fields in made]
        return is_whole and _state(files, settle=False) == before
    except (OSError, ValueError, TypeError):
        return False


def _state(files: list[Path], *, settle: bool = True) -> _State:
    """Return what differs between two states of files; `settle`: waits until it will, for a change from now.

    Two changes within one step of the file system's clock look alike: mostly some ms, whole seconds at most.
    """
    found: _State = []
    for file in files:
        stat = file.stat()
        if settle:
            step_s = 0.05 if stat.st_ctime_ns % 1_000_000_000 else 2.0
            time.sleep(min(step_s, max(0.0, step_s - (time.time_ns() - stat.st_ctime_ns) / 1e9)))
        found.append([str(file), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])
    return found


def _give_back_memory() -> None:
    """Return what was freed to the system: workers are started so that the C library would keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
