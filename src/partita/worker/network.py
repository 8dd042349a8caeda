"""A runtime's network, for any number of rows: padding up to an execution's size and to a frozen batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.tensors import Signature
from partita.worker.runtimes.interface import Batch


class Network:
    """Runs batches through a runtime; outputs have as many rows as the inputs."""

    __slots__ = ("_fixed", "_infer")

    def __init__(self, infer: Callable[[Batch], Batch], signature: Signature) -> None:
        self._infer = infer
        self._fixed = signature.fixed_batch

    def run(self, batch: Batch, rows: int, size: int) -> Batch:
        """Return the outputs of `rows` items, executed as `size` ≥ rows of them (or as the frozen batch)."""
        if self._fixed is not None:
            return self._run_fixed(batch, rows, self._fixed)
        if size <= rows:
            return self._infer(batch)
        return _cut(self._infer(_padded(batch, size)), rows)

    def _run_fixed(self, batch: Batch, rows: int, fixed: int) -> Batch:
        if rows == fixed:
            return self._infer(batch)
        pieces: list[Batch] = []
        for start in range(0, rows, fixed):
            piece = _slice(batch, start, start + fixed)
            count = min(fixed, rows - start)
            outputs = self._infer(_padded(piece, fixed) if count < fixed else piece)
            pieces.append(_cut(outputs, count))
        if len(pieces) == 1:
            return pieces[0]
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _slice(batch: Batch, start: int, stop: int) -> Batch:
    return {name: array[start:stop] for name, array in batch.items()}


def _cut(outputs: Batch, rows: int) -> Batch:
    return {name: array[:rows] for name, array in outputs.items()}


def _padded(batch: Batch, size: int) -> Batch:
    """Repeat the last item: whatever a network does with its values, it does for a real item too."""
    return {name: _pad(array, size) for name, array in batch.items()}


def _pad(array: NDArray[Any], size: int) -> NDArray[Any]:
    padded = np.empty((size, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    padded[len(array) :] = array[-1]
    return padded
