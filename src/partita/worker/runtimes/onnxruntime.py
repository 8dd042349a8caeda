"""ONNX Runtime on CPU cores or a GPU: ``.onnx`` files, and exported torch models."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from partita.core.errors import InvalidInput, LoadFailed
from partita.core.formats import CALIBRATION
from partita.core.tensors import DYNAMIC, DataType, Signature, TensorSpec
from partita.worker.runtimes.axes import batch_axis
from partita.worker.runtimes.interface import Batch, LoadRequest
from partita.worker.runtimes.onnx_export import OPTIONS, onnx_file
from partita.worker.runtimes.onnx_int8 import int8_file
from partita.worker.runtimes.onnx_kept import kept_session

_DATATYPES = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(string)": DataType.BYTES,
}
_LEVELS = {
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_OPTIONS = (
    *("arena", "batched", CALIBRATION, "denormals_as_zero", "keep_optimized", "mem_pattern"),
    *("optimization", "precision", "share_weights", "spin"),
)
PRECISIONS = ("f32", "int8")


def load(request: LoadRequest) -> "OnnxRuntime":
    """Load an ``.onnx`` file; raises `InvalidInput` for an option, `LoadFailed` for the file."""
    request.check_options(*_OPTIONS, *OPTIONS)
    ort.set_default_logger_severity(3)
    settings = _session_options(request)
    file = _file(request)
    if not file.is_file():
        raise InvalidInput(f"there is no file {request.path}")
    session, remark = _kept(file, request)
    try:
        session = session or _open_session(file, settings, request)
    except (MemoryError, LoadFailed):
        raise
    except Exception as error:
        raise LoadFailed(f"ONNX Runtime cannot load {request.path}: {_short(error)}") from error
    _check_providers(session, request)
    remarks = (remark,) if remark else ()
    return OnnxRuntime(
        session, _signature(session, request), is_on_gpu=request.gpu is not None, remarks=remarks
    )


def _kept(file: Path, request: LoadRequest) -> tuple[Any | None, str]:
    """Return a session of the optimized model that is kept, and otherwise why there is none, if known."""
    share = request.option("share_weights", False)
    if request.gpu is not None or not (request.option("keep_optimized", True) or share):
        return None, ""
    try:
        session = kept_session(
            file,
            request,
            options=lambda: _session_options(request),
            open_session=lambda path, settings: _open_session(path, settings, request),
        )
    except (OSError, InvalidInput) as error:  # no home folder
        return None, f"the optimized model is not kept: {_short(error)}"
    return session, "the optimized model cannot be kept" if share and session is None else ""


def _open_session(file: Path, settings: Any, request: LoadRequest) -> Any:
    with _out_of_memory():
        return ort.InferenceSession(str(file), settings, providers=_providers(request))


def _providers(request: LoadRequest) -> list[Any]:
    return ["CPUExecutionProvider"] if request.gpu is None else request.gpu.onnx_providers()


def _check_providers(session: Any, request: LoadRequest) -> None:
    """Raise `LoadFailed` where ONNX Runtime went on with the cores, which it does without a word."""
    first = _providers(request)[0]
    wanted, got = first if isinstance(first, str) else first[0], session.get_providers()
    if got[0] != wanted:
        raise LoadFailed(f"ONNX Runtime could not set up its {wanted} for {request.device}; it has {got[0]}")


@contextmanager
def _out_of_memory() -> Iterator[None]:
    """Turn ONNX Runtime's errors for a full GPU into Python's for want of memory."""
    try:
        yield
    except Exception as error:
        if any(said in str(error) for said in ("Failed to allocate memory", "out of memory")):
            raise MemoryError(_short(error)) from error
        raise


def _file(request: LoadRequest) -> Path:
    """Return what is to be executed: the model's own file, or what was made of it as the options say."""
    precision = request.option("precision", "f32")
    if precision not in PRECISIONS:
        raise InvalidInput(f"option precision = {precision!r} must be one of {', '.join(PRECISIONS)}")
    return int8_file(request) if precision == "int8" else onnx_file(request)


class OnnxRuntime:
    """A session with its signature."""

    version: str = ort.__version__
    is_warm_at_once = True
    """Whether the second execution takes as long as any, of whatever size: nothing is compiled on the way."""

    def __init__(
        self, session: Any, signature: Signature, *, is_on_gpu: bool, remarks: tuple[str, ...] = ()
    ) -> None:
        self.signature = signature
        self.remarks = remarks
        """What went otherwise than usual, and did no harm."""
        self.threads_seen: int | None = session.get_session_options().intra_op_num_threads
        self._run = session.run
        self._names = [spec.name for spec in signature.outputs]
        self._is_on_gpu = is_on_gpu
        self._texts = [spec.name for spec in signature.inputs if spec.datatype is DataType.BYTES]

    def infer(self, batch: Batch) -> Batch:
        """Execute once. Raises `MemoryError` where the GPU is full."""
        if self._texts:
            batch = {**batch, **{name: _decoded(batch[name]) for name in self._texts}}
        with _out_of_memory() if self._is_on_gpu else nullcontext():
            outputs = self._run(self._names, batch)
        return dict(zip(self._names, outputs, strict=True))


def _session_options(request: LoadRequest) -> Any:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = request.threads
    settings.inter_op_num_threads = 1
    settings.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    level = request.option("optimization", "all")
    if level not in _LEVELS:
        raise InvalidInput(f"option optimization = {level!r} must be one of {', '.join(_LEVELS)}")
    settings.graph_optimization_level = _LEVELS[str(level)]
    settings.log_severity_level = 3
    settings.enable_mem_pattern = request.option("mem_pattern", True)
    settings.enable_cpu_mem_arena = request.option("arena", True)
    if request.option("denormals_as_zero", False):
        settings.add_session_config_entry("session.set_denormal_as_zero", "1")
    if request.option("share_weights", False):  # what it packs for itself no other instance has
        settings.add_session_config_entry("session.disable_prepacking", "1")
    spin = request.option("spin", request.owns_cores)
    settings.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    return settings


def _signature(session: Any, request: LoadRequest) -> Signature:
    inputs, outputs = session.get_inputs(), session.get_outputs()
    batched, fixed = batch_axis([i.shape for i in inputs], [o.shape for o in outputs])
    if "batched" in request.options:
        batched = bool(request.option("batched", True))
        fixed = fixed if batched else None
    skip = 1 if batched else 0
    return Signature(
        inputs=tuple(_spec(node, skip) for node in inputs),
        outputs=tuple(_spec(node, skip) for node in outputs),
        batched=batched,
        fixed_batch=fixed,
    )


def _spec(node: Any, skip: int) -> TensorSpec:
    if node.type not in _DATATYPES:
        raise LoadFailed(f"tensor {node.name!r} has type {node.type}, which requests cannot carry")
    axes = node.shape[skip:]
    shape = tuple(axis if isinstance(axis, int) and axis >= 0 else DYNAMIC for axis in axes)
    symbols = tuple(axis if isinstance(axis, str) else "" for axis in axes)
    return TensorSpec(node.name, _DATATYPES[node.type], shape, symbols if any(symbols) else ())


def _decoded(array: NDArray[Any]) -> NDArray[Any]:
    decoded = np.empty(array.shape, dtype=object)
    decoded.ravel()[:] = [e.decode() if isinstance(e, bytes) else e for e in array.ravel().tolist()]
    return decoded


def _short(error: Exception) -> str:
    """Return the message without the library's ``[ONNXRuntimeError] : 7 : `` in front."""
    text = " ".join(str(error).split())
    return text.split(" : ", 2)[-1] if text.startswith("[ONNXRuntimeError]") else text
