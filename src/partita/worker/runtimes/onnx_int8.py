"""An ``.onnx`` model that computes with 8-bit whole numbers, made once and kept.

Without calibration items only dense layers do: their weights are quantised beforehand, activations as they
come (dynamically). With items activations are quantised as those show (statically), and convolutions too.
Whether what comes of it is near enough is for whoever asks for it to say, and for us to measure.
"""

from pathlib import Path

from partita.core.errors import InvalidInput, LoadFailed
from partita.core.formats import CALIBRATION
from partita.system.artefacts import artefact_key, cache_dir
from partita.system.instructions import instructions
from partita.worker.preparing import prepared
from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.onnx_export import OPTIONS, onnx_file

KIND = "int8"
FILE = "model.onnx"
_DYNAMIC = ["MatMul", "Gemm", "Attention", "LSTM"]
"""Convolutions are left out: with activations quantised as they come they become slower."""
_WHOLE_RANGE = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Without one of these the sum of two products of 8 bits may overflow, so that weights have 7."""


def int8_file(request: LoadRequest) -> Path:
    """Return the quantised model. Raises `InvalidInput`, `MissingExtra` or `LoadFailed`."""
    wanted = (*OPTIONS, "batched", CALIBRATION)
    about = {key: value for key, value in request.options.items() if key in wanted}
    only = LoadRequest(path=request.path, model=request.model, options=about, inputs=request.inputs)
    from importlib import metadata  # costs who does without it some 30 ms

    facts: list[object] = [metadata.version("onnxruntime")]
    if items := request.option(CALIBRATION, ""):
        facts.append(bool(_WHOLE_RANGE & instructions()))
        if (file := _by_hand(request, items)) is not None:
            facts.append(artefact_key([file]))
    return prepared(KIND, only, *facts) / FILE


def make(request: LoadRequest, folder: Path) -> None:
    """Quantise into a folder; raises `LoadFailed` with the reason, or what exporting to ONNX raises."""
    about = {key: value for key, value in request.options.items() if key != CALIBRATION}
    plain = LoadRequest(path=request.path, model=request.model, options=about, inputs=request.inputs)
    items = request.option(CALIBRATION, "")
    try:
        if items:
            _make_static(onnx_file(plain), folder, _items_file(request, items))
        else:
            _make_dynamic(onnx_file(plain), folder)
    except (InvalidInput, MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:
        raise LoadFailed(f"{request.file.name} cannot be quantised: {error}") from error


def _make_dynamic(file: Path, folder: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        str(file),
        str(folder / FILE),
        op_types_to_quantize=_DYNAMIC,
        weight_type=QuantType.QInt8,
        use_external_data_format=False,
    )


def _make_static(file: Path, folder: Path, items: Path) -> None:
    """Fold normalisations into convolutions, see what range every activation has, and quantise."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from partita.worker.runtimes.onnx_calibration import ItemReader

    folded = folder / "folded.onnx"
    quant_pre_process(str(file), str(folded), skip_symbolic_shape=True)
    quantize_static(
        str(folded),
        str(folder / FILE),
        ItemReader(folded, items),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=not _WHOLE_RANGE & instructions(),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        use_external_data_format=False,
    )
    folded.unlink()


def _by_hand(request: LoadRequest, items: str) -> Path | None:
    """Return the file that the option names, from the model's folder; None where it names kept items."""
    file = request.file.parent / items
    return file if file.is_file() else None


def _items_file(request: LoadRequest, items: str) -> Path:
    """Return where the items lie. Raises `InvalidInput`."""
    kept = cache_dir() / CALIBRATION / items / "items.npz"
    file = _by_hand(request, items) or kept
    if not file.is_file():
        raise InvalidInput(
            f"option calibration = {items!r} is neither a file in {request.file.parent} nor the name of "
            "items that are kept; choose again: partita profile --calibration FILE --again"
        )
    return file
