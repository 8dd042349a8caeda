"""Arrays to torch's tensors and back: datatypes, and the names of what a network returns."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from partita.core.errors import InferenceFailed, LoadFailed
from partita.core.tensors import DataType, TensorSpec

DATATYPES = {
    torch.bool: DataType.BOOL,
    torch.uint8: DataType.UINT8,
    torch.uint16: DataType.UINT16,
    torch.uint32: DataType.UINT32,
    torch.uint64: DataType.UINT64,
    torch.int8: DataType.INT8,
    torch.int16: DataType.INT16,
    torch.int32: DataType.INT32,
    torch.int64: DataType.INT64,
    torch.float16: DataType.FP16,
    torch.bfloat16: DataType.BF16,
    torch.float32: DataType.FP32,
    torch.float64: DataType.FP64,
}
OUTPUT = "output"
"""Name of a network's only output; ``output_0`` and so on where it returns several without names."""

with (
    warnings.catch_warnings()
):  # torch says once that it cannot keep a tensor over read-only memory unwritten
    warnings.simplefilter("ignore")
    _unwritable = np.zeros(1, np.float32)
    _unwritable.flags.writeable = False
    torch.from_numpy(_unwritable)


def check_datatypes(specs: tuple[TensorSpec, ...]) -> None:
    """Raise `LoadFailed` for an input that no tensor can hold."""
    for spec in specs:
        if spec.datatype is DataType.BYTES:
            raise LoadFailed(f"input {spec.name!r} is BYTES: torch's tensors hold no texts; use a handler")


def to_tensor(array: NDArray[Any], datatype: DataType) -> torch.Tensor:
    """Return a tensor over the array's own memory, which must not be written through it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.view(torch.bfloat16) if datatype is DataType.BF16 else tensor


def to_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the tensor's values; bfloat16 as its raw 16 bits."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.contiguous().view(torch.uint16)
    array: NDArray[Any] = tensor.contiguous().numpy()
    return array


def named_outputs(result: Any, name: str = OUTPUT) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in what a network returned, with their names; what is None is left out.

    A tensor is ``output``, those of a tuple ``output_0`` and on, those of a dict have its keys.
    """
    if isinstance(result, torch.Tensor):
        yield name, result
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from named_outputs(value, str(key) if name == OUTPUT else f"{name}_{key}")
    elif isinstance(result, tuple | list):
        for index, value in enumerate(result):
            yield from named_outputs(value, f"{name}_{index}")
    elif result is not None:
        raise InferenceFailed(
            f"the network returned {type(result).__name__}; tensors, or a tuple or dict of them, are expected"
        )
