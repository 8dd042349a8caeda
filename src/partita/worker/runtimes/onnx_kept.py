"""An ``.onnx`` model as ONNX Runtime has optimized it, its weights in a file that all instances map."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime as ort

from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.kept_models import Preparation, kept_model

KIND = "optimized"
_FILE, _WEIGHTS = "model.onnx", "weights.bin"
_LEAST_EXTERNAL_BYTES = 1024
"""Smaller constants stay in the model's own file."""

OpenSession = Callable[[Path, Any], Any]
"""Loads a file with these options; raises what ONNX Runtime raises."""


def kept_session(
    file: Path, request: LoadRequest, options: Callable[[], Any], open_session: OpenSession
) -> Any | None:
    """Return a session of what is kept of a model, made now if it can be; None = load the model itself.

    `options` makes those of a new session. Raises `OSError` where nothing can be kept, with the reason, and
    `MemoryError`.
    """
    way = preparation(file, request, options, open_session)
    return kept_model(file, way, of_any_size=request.option("share_weights", False))


def preparation(
    file: Path, request: LoadRequest, options: Callable[[], Any], open_session: OpenSession
) -> Preparation:
    """Return how a model is optimized, and its optimized form loaded.

    Threads are not among what the graph and the layouts of weights depend on: ONNX Runtime folds constants
    without a pool.
    """
    ways = tuple((name, request.options.get(name)) for name in ("optimization", "denormals_as_zero"))
    return Preparation(
        kind=KIND,
        facts=(ways, ort.__version__, ort.get_build_info()),
        make=lambda folder: _is_written(file, folder, options, open_session),
        load=lambda folder: open_session(folder / _FILE, _as_it_is(options())),
    )


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
