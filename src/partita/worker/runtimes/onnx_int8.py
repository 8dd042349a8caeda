"""An ``.onnx`` model whose dense layers compute with 8-bit whole numbers, made once and kept.

Weights are quantised beforehand, activations as they come (dynamically), so that no calibration is needed.
Whether what comes of it is near enough is for whoever asks for it to say, and for us to measure.
"""

from pathlib import Path

from partita.core.errors import LoadFailed
from partita.worker.preparing import prepared
from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.onnx_export import OPTIONS, onnx_file

KIND = "int8"
FILE = "model.onnx"
_OPERATORS = ["MatMul", "Gemm", "Attention", "LSTM"]
"""Convolutions are left out: with activations quantised as they come they become slower."""


def int8_file(request: LoadRequest) -> Path:
    """Return the quantised model. Raises `InvalidInput`, `MissingExtra` or `LoadFailed`."""
    about = {key: value for key, value in request.options.items() if key in (*OPTIONS, "batched")}
    only = LoadRequest(path=request.path, model=request.model, options=about, inputs=request.inputs)
    from importlib import metadata  # costs who does without it some 30 ms

    return prepared(KIND, only, metadata.version("onnxruntime")) / FILE


def make(request: LoadRequest, folder: Path) -> None:
    """Quantise into a folder; raises `LoadFailed` with the reason, or what exporting to ONNX raises."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    try:
        quantize_dynamic(
            str(onnx_file(request)),
            str(folder / FILE),
            op_types_to_quantize=_OPERATORS,
            weight_type=QuantType.QInt8,
            use_external_data_format=False,
        )
    except (MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:
        raise LoadFailed(f"{request.file.name} cannot be quantised: {error}") from error
