"""An ``.onnx`` model as OpenVINO has read and transformed it, in a file that all instances map.

OpenVINO's own cache writes the file, since exporting goes through copies in memory. What it is read back by
is the ordinary import, so that nothing but us decides which file is of which model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.kept_models import Preparation, kept_model
from partita.worker.runtimes.openvino_signature import signature_of

KIND = "openvino"
_FILE = "model.blob"
_HEADER = b"<?xml"
_LONGEST_HEADER = 1 << 16

Imported = tuple[Any, NDArray[np.uint8]]
"""A compiled model, and the mapped file that must outlive it, since OpenVINO does not hold it."""


def kept_network(file: Path, request: LoadRequest, core: Any, settings: Mapping[str, Any]) -> Imported | None:
    """Return a compiled model of what is kept, made now if it can be; None = compile the file itself.

    Raises `OSError` where nothing can be kept, with the reason, and `MemoryError`.
    """
    return kept_model(file, preparation(file, request, core, settings)) if file.suffix == ".onnx" else None


def preparation(file: Path, request: LoadRequest, core: Any, settings: Mapping[str, Any]) -> Preparation:
    """Return how a model is transformed, and its transformed form compiled.

    Threads and streams are not among what that form depends on; precisions are not, as far as was seen.
    """
    ways = tuple((name, request.options.get(name)) for name in ("precision", "denormals_as_zero"))
    return Preparation(
        kind=KIND,
        facts=(ways, ov.get_version()),
        make=lambda folder: _is_written(file, folder, request, core, settings),
        load=lambda folder: _imported(folder / _FILE, core, settings),
    )


def _is_written(
    file: Path, place: Path, request: LoadRequest, core: Any, settings: Mapping[str, Any]
) -> bool:
    own = {**settings, "CACHE_DIR": str(place), "CACHE_MODE": "OPTIMIZE_SPEED"}
    try:
        signature = signature_of(core.compile_model(str(file), "CPU", own), request)
        made = list(place.iterdir())
        if len(made) != 1:
            return False
        made[0].rename(place / _FILE)
        compiled, content = _imported(place / _FILE, core, settings)
        return bool(content.size and signature_of(compiled, request) == signature)
    except MemoryError:
        raise
    except Exception:  # one that cannot be compiled at all says so when it is compiled itself
        return False


def _imported(file: Path, core: Any, settings: Mapping[str, Any]) -> Imported:
    content = np.memmap(file, np.uint8, "r", offset=_header_bytes(file))
    tensor = ov.Tensor(content, content.shape, ov.Type.u8)
    return core.import_model(tensor, "CPU", dict(settings)), content


def _header_bytes(file: Path) -> int:
    """Return the length of the line that OpenVINO's cache writes before what `import_model` takes."""
    with file.open("rb") as stream:
        line = stream.readline(_LONGEST_HEADER)
    return len(line) if line.startswith(_HEADER) and line.endswith(b"\n") else 0
