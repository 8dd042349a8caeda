"""What a model returned, checked against its signature and put in its order."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InferenceFailed
from partita.core.tensors import DataType, Signature, TensorSpec
from partita.worker.runtimes.interface import Batch

Part = list[NDArray[Any]]
"""The outputs of one execution, in the signature's order."""


class Results:
    """Checks outputs: names, datatypes and the number of rows. Other axes may differ from batch to batch."""

    __slots__ = ("_batched", "_dtypes", "_names", "_specs")

    def __init__(self, signature: Signature) -> None:
        self._specs = signature.outputs
        self._batched = signature.batched
        self._names = tuple(spec.name for spec in signature.outputs)
        self._dtypes = tuple(spec.datatype.numpy for spec in signature.outputs)

    def ordered(self, outputs: Batch, rows: int) -> Part:
        """Return the arrays in order; raises `InferenceFailed` naming what was expected."""
        try:
            arrays = [outputs[name] for name in self._names]
        except (KeyError, TypeError):
            raise InferenceFailed(self._wrong_names(outputs)) from None
        if len(outputs) != len(arrays):
            raise InferenceFailed(self._wrong_names(outputs))
        for index, array in enumerate(arrays):
            if (
                type(array) is not np.ndarray
                or array.dtype != self._dtypes[index]
                or (self._batched and array.shape[:1] != (rows,))
            ):
                arrays[index] = self._converted(array, self._specs[index], rows)
        return arrays

    def _converted(self, value: object, spec: TensorSpec, rows: int) -> NDArray[Any]:
        """Return an output that is right in another form; raises `InferenceFailed` where it is not."""
        array = _as_datatype(value, spec)
        if self._batched and array.shape[:1] != (rows,):
            raise InferenceFailed(
                f"output {spec.name!r} has shape {list(array.shape)} for a batch of {rows} items; "
                f"its first axis must be {rows}"
            )
        return array

    def _wrong_names(self, outputs: object) -> str:
        got = list(outputs) if isinstance(outputs, dict) else type(outputs).__name__
        return f"the model returned {got}; a dict of the outputs {list(self._names)} is expected"


def _as_datatype(value: object, spec: TensorSpec) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InferenceFailed(f"output {spec.name!r} is not an array: {error}") from error
    if array.dtype == spec.datatype.numpy or (spec.datatype is DataType.BYTES and array.dtype.kind in "SU"):
        return array
    raise InferenceFailed(
        f"output {spec.name!r} is {array.dtype}; {spec.datatype} ({spec.datatype.numpy}) is expected"
    )


def joined_shape(parts: list[Part], index: int) -> tuple[int, ...]:
    """Return the shape of one output over all executions; raises `InferenceFailed` if they do not fit."""
    first = parts[0][index].shape
    if any(part[index].shape[1:] != first[1:] for part in parts):
        shapes = [list(part[index].shape) for part in parts]
        raise InferenceFailed(f"executions of one batch returned different shapes: {shapes}")
    return (sum(part[index].shape[0] for part in parts), *first[1:])
