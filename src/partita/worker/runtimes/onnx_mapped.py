"""An ``.onnx`` model as ONNX Runtime has optimized it, its weights in a file beside it; made once and kept.

Every instance maps that file, so that the weights are in memory once for all of them, and none of them
optimizes anything when it starts.
"""

from importlib import metadata
from pathlib import Path

from partita.core.errors import LoadFailed
from partita.system.instructions import instructions
from partita.worker.preparing import prepared
from partita.worker.runtimes.interface import LoadRequest

KIND = "mapped"
FILE, WEIGHTS = "model.onnx", "weights.bin"
_LEAST_BYTES = 1024
"""Smaller constants stay in the model's own file."""
LEVELS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}
"""ONNX Runtime's names for how much it optimizes a graph."""


def mapped_file(file: Path, request: LoadRequest) -> Path:
    """Return what is to be loaded in place of an ``.onnx`` file. Raises `LoadFailed`.

    Layouts of weights are chosen for the CPU at hand, so it is made again for another.
    """
    only = LoadRequest(
        path=str(file), model=request.model, options={"optimization": request.option("optimization", "all")}
    )
    return prepared(KIND, only, metadata.version("onnxruntime"), sorted(instructions())) / FILE


def make(request: LoadRequest, folder: Path) -> None:
    """Optimize into a folder; raises `LoadFailed` with the reason."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.graph_optimization_level = getattr(
        ort.GraphOptimizationLevel, LEVELS[request.option("optimization", "all")]
    )
    settings.optimized_model_filepath = str(folder / FILE)
    for key, value in (
        ("session.optimized_model_external_initializers_file_name", WEIGHTS),
        ("session.optimized_model_external_initializers_min_size_in_bytes", str(_LEAST_BYTES)),
        ("session.disable_prepacking", "1"),
    ):
        settings.add_session_config_entry(key, value)
    try:
        ort.InferenceSession(request.path, settings, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise
    except Exception as error:
        raise LoadFailed(f"ONNX Runtime cannot optimize {request.file.name}: {error}") from error
