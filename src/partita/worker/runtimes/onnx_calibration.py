"""The user's items, as ONNX Runtime's quantisation reads them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader

from partita.core.errors import InvalidInput
from partita.worker.runtimes.axes import batch_axis

_ROWS = 8
"""Items in one execution, where the model takes any number."""
_DATATYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
}


class ItemReader(CalibrationDataReader):  # type: ignore[misc]
    """Items of a ``.npy`` or ``.npz`` file in batches that a model takes. Raises `InvalidInput`."""

    def __init__(self, model: Path, items: Path) -> None:
        settings = ort.SessionOptions()
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
        inputs = {node.name: node for node in session.get_inputs()}
        outputs = [node.shape for node in session.get_outputs()]
        batched, fixed = batch_axis([node.shape for node in inputs.values()], outputs)
        arrays = _read(items, list(inputs))
        self._arrays = {
            name: array.astype(_DATATYPES.get(inputs[name].type, array.dtype), copy=False)
            for name, array in arrays.items()
        }
        self._rows = (fixed or _ROWS) if batched else 1
        self._batched, self._whole = batched, fixed is not None
        self._batches = self._all()

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """Return the inputs of the next execution, None after the last."""
        return next(self._batches, None)

    def _all(self) -> Iterator[dict[str, NDArray[Any]]]:
        count = min(map(len, self._arrays.values()))
        for start in range(0, count, self._rows):
            rows = np.arange(start, start + self._rows if self._whole else min(start + self._rows, count))
            batch = {name: array[rows % count] for name, array in self._arrays.items()}
            yield batch if self._batched else {name: array[0] for name, array in batch.items()}


def _read(items: Path, names: list[str]) -> dict[str, NDArray[Any]]:
    try:
        loaded = np.load(items, allow_pickle=False)
        found = {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{items}: cannot be read as .npy or .npz items: {error}") from error
    if len(found) == len(names) == 1:
        return dict(zip(names, found.values(), strict=True))
    if found.keys() != set(names):
        raise InvalidInput(f"{items} has items for {sorted(found)}; the model's inputs are {sorted(names)}")
    return found
