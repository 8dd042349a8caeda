"""OpenVINO on CPU cores: ``.onnx`` files, its own ``.xml`` with its weights, and exported torch models."""

import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InferenceFailed, InvalidInput, LoadFailed
from partita.core.formats import CALIBRATION
from partita.core.tensors import Signature
from partita.worker.runtimes.interface import Batch, LoadRequest
from partita.worker.runtimes.onnx_export import OPTIONS, onnx_file
from partita.worker.runtimes.onnx_int8 import int8_file

# Importing OpenVINO would tell its makers so, from every worker; without this package it does not.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
import openvino as ov  # noqa: E402

from partita.worker.runtimes.openvino_kept import Imported, kept_network  # noqa: E402
from partita.worker.runtimes.openvino_signature import signature_of  # noqa: E402

HINTS = ("latency", "throughput", "none")
PRECISIONS = ("f32", "bf16", "f16", "int8")
_OPTIONS = ("batched", CALIBRATION, "denormals_as_zero", "hint", "keep_optimized", "precision", "streams")


def load(request: LoadRequest) -> "OpenVino":
    """Load and compile a model; raises `InvalidInput` for an option, `LoadFailed` for the file."""
    request.check_options(*_OPTIONS, *OPTIONS)
    settings = _settings(request)
    path = _file(request)
    if not path.is_file():
        raise InvalidInput(f"there is no file {request.path}")
    core = ov.Core()
    kept, remark = _kept(path, request, core, settings)
    compiled, content = kept or (_compiled(path, core, settings), None)
    return OpenVino(
        compiled,
        signature_of(compiled, request),
        int(request.option("streams", 1)),
        content=content,
        remarks=(remark,) if remark else (),
    )


def _kept(
    path: Path, request: LoadRequest, core: Any, settings: Mapping[str, Any]
) -> tuple[Imported | None, str]:
    """Return what is kept, compiled, with the memory that it lies in, and otherwise why there is none."""
    if not request.option("keep_optimized", True):
        return None, ""
    try:
        return kept_network(path, request, core, settings), ""
    except (OSError, RuntimeError) as error:  # no home folder
        return None, f"the optimized model is not kept: {_short(error)}"


def _compiled(path: Path, core: Any, settings: Mapping[str, Any]) -> Any:
    try:
        return core.compile_model(core.read_model(path), "CPU", dict(settings))
    except MemoryError:
        raise
    except Exception as error:
        raise LoadFailed(f"OpenVINO cannot load {path.name}: {_short(error)}") from error


def _file(request: LoadRequest) -> Path:
    """Return what is to be compiled; 8 bits are in the file itself, quantised with the user's items."""
    if request.option("precision", "f32") != "int8":
        return onnx_file(request)
    if not request.option(CALIBRATION, ""):
        raise InvalidInput("option precision = 'int8' needs calibration items: calibration = \"items.npy\"")
    if request.file.suffix == ".xml":
        raise InvalidInput("option precision = 'int8' is for .onnx files and torch models")
    return int8_file(request)


class OpenVino:
    """A compiled model; a batch is divided over its streams, which share the weights."""

    version: str = metadata.version("openvino")

    def __init__(
        self,
        compiled: Any,
        signature: Signature,
        streams: int,
        *,
        content: NDArray[Any] | None = None,
        remarks: tuple[str, ...] = (),
    ) -> None:
        self.signature = signature
        self.remarks = remarks
        """What went otherwise than usual, and did no harm."""
        self._compiled = compiled
        self._requests = [compiled.create_infer_request() for _ in range(streams)]
        self._inputs = {
            spec.name: (port, port.get_element_type())
            for spec, port in zip(signature.inputs, compiled.inputs, strict=True)
        }
        self._outputs = list(zip((spec.name for spec in signature.outputs), compiled.outputs, strict=True))
        self._content = content
        """The memory that weights are read from, which OpenVINO does not hold by itself."""
        self._divides = streams > 1 and signature.batched and signature.fixed_batch is None

    @property
    def threads_seen(self) -> int | None:
        """The threads of all streams together, as OpenVINO says."""
        return int(self._compiled.get_property("INFERENCE_NUM_THREADS"))

    def infer(self, batch: Batch) -> Batch:
        """Execute once. Raises `InferenceFailed` for inputs of other names, else as OpenVINO does.

        The outputs lie in memory of a request, which the next execution overwrites: they are copied.
        """
        if batch.keys() != self._inputs.keys():
            raise InferenceFailed(f"inputs {list(batch)}; there are {list(self._inputs)}")
        if self._divides:
            return self._divided(batch)
        request = self._requests[0]
        self._set(request, batch)
        request.infer()
        return self._results(request)

    def _set(self, request: Any, batch: Batch) -> None:
        for name, array in batch.items():
            port, kind = self._inputs[name]
            request.set_tensor(port, _tensor(array, kind))

    def _results(self, request: Any) -> Batch:
        return {name: _array(request.get_tensor(port)) for name, port in self._outputs}

    def _divided(self, batch: Batch) -> Batch:
        """Execute an equal piece of the rows on each stream."""
        rows = len(next(iter(batch.values())))
        count = max(1, min(len(self._requests), rows))
        edges = [rows * k // count for k in range(count + 1)]
        running = self._requests[:count]
        for request, start, stop in zip(running, edges, edges[1:], strict=False):
            self._set(request, {name: array[start:stop] for name, array in batch.items()})
            request.start_async()
        for request in running:
            request.wait()
        parts = [self._results(request) for request in running]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _tensor(array: NDArray[Any], kind: Any) -> Any:
    """Return a tensor over the array's own memory; OpenVINO only reads what it is given as an input."""
    array = np.ascontiguousarray(array)
    return ov.Tensor(array, array.shape, kind)


def _array(tensor: Any) -> NDArray[Any]:
    if tensor.get_element_type() == ov.Type.bf16:
        return np.array(tensor.data).view(np.uint16)
    return np.array(tensor.data)


def _settings(request: LoadRequest) -> dict[str, Any]:
    """Return the properties to compile with; raises `InvalidInput`.

    A worker is pinned as a whole, so OpenVINO pins nothing itself. It would compute in bfloat16 wherever the
    CPU can; that is never done unasked.
    """
    hint, precision = request.option("hint", "latency"), request.option("precision", "f32")
    if hint not in HINTS:
        raise InvalidInput(f"option hint = {hint!r} must be one of {', '.join(HINTS)}")
    if precision not in PRECISIONS:
        raise InvalidInput(f"option precision = {precision!r} must be one of {', '.join(PRECISIONS)}")
    streams = request.option("streams", 1)
    if not 1 <= int(streams) <= request.threads:
        raise InvalidInput(f"option streams = {streams} must be from 1 to the {request.threads} threads")
    settings: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": request.threads,
        "NUM_STREAMS": int(streams),
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": "f32" if precision == "int8" else precision,
        "EXECUTION_MODE_HINT": "ACCURACY" if precision == "f32" else "PERFORMANCE",
    }
    if hint != "none":
        settings["PERFORMANCE_HINT"] = str(hint).upper()
    if "denormals_as_zero" in request.options:
        settings["CPU_DENORMALS_OPTIMIZATION"] = request.option("denormals_as_zero", False)
    return settings


def _short(error: Exception) -> str:
    """Return what went wrong, without the places in OpenVINO's own code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Exception from src", "Check '"))]
    text = " ".join(told or lines)
    return text[:300] + " …" if len(text) > 300 else text
