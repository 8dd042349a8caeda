"""An ``.onnx`` model as ONNX Runtime has optimized it, kept by the first who loads it, for those after it.

A large model loads many times faster so: nothing is optimized, and the weights are mapped, so that instances
have those of convolutions in memory once. The first load optimizes into a file and then loads that, which is
little more work than loading was. Where anything is in doubt, the model's own file is loaded.
"""

import ctypes
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime as ort

from partita.system.artefacts import cache_dir, kept, limit_kept, remove_kept, used
from partita.system.instructions import instructions
from partita.system.model_files import external_data
from partita.worker.runtimes.interface import LoadRequest

FOLDER = "optimized"
LEAST_BYTES = 10 << 20
"""Smaller models load within some 50 ms anyway."""
MOST_BYTES = 8 << 30
"""What all that are kept may take on the disk together."""
_FILE, _WEIGHTS, _FILES = "model.onnx", "weights.bin", "files.json"
_LEAST_EXTERNAL_BYTES = 1024
"""Smaller constants stay in the model's own file."""
_FREE_TIMES = 4
"""How many times a model's size must be free on the disk."""
_WAIT_S = 20.0
"""How long to wait for another who optimizes the same model."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_State = list[list[str | int]]

OpenSession = Callable[[Path, Any], Any]
"""Loads a file with these options; raises what ONNX Runtime raises."""


def kept_session(
    file: Path, request: LoadRequest, options: Callable[[], Any], open_session: OpenSession
) -> Any | None:
    """Return a session of what is kept of a model, made now if it can be; None = load the model itself.

    `options` makes those of a new session. Raises `OSError` where nothing can be kept, with the reason, and
    `MemoryError`.
    """
    file = file.resolve()
    size = sum(part.stat().st_size for part in _parts(file) or ()) if _is_small(file) else LEAST_BYTES
    if size < LEAST_BYTES and not request.option("share_weights", False):
        return None
    # Nothing is flushed to the disk, so that what was made before the machine's last start is not trusted.
    folder = cache_dir() / FOLDER / _BOOT_ID.read_text(encoding="ascii").strip()
    place = kept(
        folder,
        _key(file, request),
        lambda place: _make(file, place, options, open_session),
        is_good=_is_current,
        limit_s=_WAIT_S,
    )
    return _opened(place, options, open_session) if (place / _FILE).is_file() else None


def _opened(place: Path, options: Callable[[], Any], open_session: OpenSession) -> Any | None:
    """Load what is kept; what does not load is removed, for the next one to make it anew."""
    files = (place / _FILES).read_bytes()
    try:
        session = open_session(place / _FILE, _as_it_is(options()))
    except MemoryError:
        raise
    except Exception as error:
        remove_kept(place)
        raise OSError(f"what was kept does not load: {error}") from error
    if (place / _FILES).read_bytes() != files or not _is_current(place):  # its parts may be of two models
        return None
    used(place)
    return session


def _make(file: Path, place: Path, options: Callable[[], Any], open_session: OpenSession) -> None:
    """Optimize a model into a folder; without a model in it where that comes to nothing.

    Raises `OSError` where it may do another time, and `MemoryError`.
    """
    parts = _parts(file)
    before = _state([file] if parts is None else parts)
    size = sum(part.stat().st_size for part in parts or [file])
    if size > MOST_BYTES:
        raise OSError(f"it has {size} bytes, and all that are kept may have {MOST_BYTES}")
    if shutil.disk_usage(place).free < _FREE_TIMES * size:
        raise OSError(f"no room for it in {place.parent}")
    is_usable = parts is not None and _is_written(file, place, options, open_session)
    _give_back_memory()
    if not is_usable:
        _check_room(place, size)
        (place / _FILE).unlink(missing_ok=True)
        (place / _WEIGHTS).unlink(missing_ok=True)
    if _state([file] if parts is None else parts) != before:
        raise OSError("the model's files are being changed")
    (place / _FILES).write_text(json.dumps(before), encoding="utf-8")
    limit_kept(place.parent, MOST_BYTES)


def _check_room(place: Path, nbytes: int) -> None:
    """Raise `OSError` where a folder cannot take so many bytes more: then it is why nothing came of it."""
    with tempfile.TemporaryFile(dir=place) as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)


def _is_written(file: Path, place: Path, options: Callable[[], Any], open_session: OpenSession) -> bool:
    settings = _without_packing(options())
    settings.optimized_model_filepath = str(place / _FILE)
    for key, value in (("file_name", _WEIGHTS), ("min_size_in_bytes", str(_LEAST_EXTERNAL_BYTES))):
        settings.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
    try:
        tensors = _tensors(open_session(file, settings))
        again = open_session(place / _FILE, _without_packing(_as_it_is(options())))
        return _tensors(again) == tensors
    except MemoryError:
        raise
    except Exception:  # one that cannot be loaded at all says so when it is loaded itself
        return False


def _as_it_is(settings: Any) -> Any:
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return settings


def _without_packing(settings: Any) -> Any:
    settings.add_session_config_entry("session.disable_prepacking", "1")
    return settings


def _tensors(session: Any) -> list[tuple[Any, ...]]:
    return [(node.name, node.type, node.shape) for node in (*session.get_inputs(), *session.get_outputs())]


def _key(file: Path, request: LoadRequest) -> str:
    """Return a name for one model's file and what else its graph and the layouts of weights depend on.

    Threads are not among that: ONNX Runtime folds constants without a pool.
    """
    ways = [(name, request.options.get(name)) for name in ("optimization", "denormals_as_zero")]
    facts = (str(file), ways, ort.__version__, ort.get_build_info(), sorted(instructions()))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


# --- the model's files ------------------------------------------------------------------------------


def _is_small(file: Path) -> bool:
    return file.stat().st_size < LEAST_BYTES


def _parts(file: Path) -> list[Path] | None:
    """Return the model's own file and those of weights that it names; None unless it is sure which."""
    beside = external_data(file)
    return None if beside is None else [file, *beside]


def _is_current(place: Path) -> bool:
    """Whether this was made of the files as they are now."""
    try:
        said = json.loads((place / _FILES).read_bytes())
        return bool(said == _state([Path(name) for name, *_ in said], settle=False))
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
