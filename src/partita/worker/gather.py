"""The items of a batch, found in X and read in place."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InvalidRequest
from partita.core.tensors import DataType, Signature
from partita.wire.messages import Chunk, Execute
from partita.worker.elements import unpack_elements
from partita.worker.runtimes.interface import Batch


class Gather:
    """Turns the chunks of `Execute` into arrays over the input arena.

    One chunk is a view, without a copy; several are joined once. Arrays are as read-only as the arena is.
    """

    __slots__ = ("_arena", "_batched", "_specs", "_static")

    def __init__(self, arena: memoryview, signature: Signature) -> None:
        self._arena = arena
        self._batched = signature.batched
        self._specs = signature.inputs
        self._static = (
            tuple((spec.name, spec.datatype.numpy, spec.shape) for spec in signature.inputs)
            if signature.is_static and signature.batched
            else None
        )

    def batch(self, message: Execute) -> tuple[Batch, int]:
        """Return the arrays by name, each (rows, *item shape), and the number of rows.

        A model without a batch axis gets the one item itself.
        """
        chunks = message.chunks
        if len(chunks) == 1 and self._static is not None and message.shapes is None:
            rows, offsets = chunks[0].rows, chunks[0].offsets
            arena = self._arena
            return {
                name: np.ndarray((rows, *shape), dtype, arena, offset)
                for (name, dtype, shape), offset in zip(self._static, offsets, strict=True)
            }, rows
        return self._general(message)

    def _general(self, message: Execute) -> tuple[Batch, int]:
        shapes = message.shapes or tuple(spec.shape for spec in self._specs)
        sizes = message.sizes or (None,) * len(message.chunks)
        batch: Batch = {}
        for index, (spec, shape) in enumerate(zip(self._specs, shapes, strict=True)):
            parts = [
                self._texts(chunk, index, shape, size)
                if spec.datatype is DataType.BYTES
                else np.ndarray((chunk.rows, *shape), spec.datatype.numpy, self._arena, chunk.offsets[index])
                for chunk, size in zip(message.chunks, sizes, strict=True)
            ]
            array = parts[0] if len(parts) == 1 else np.concatenate(parts)
            batch[spec.name] = array if self._batched else array[0]
        return batch, sum(chunk.rows for chunk in message.chunks)

    def _texts(
        self, chunk: Chunk, index: int, shape: tuple[int, ...], sizes: tuple[int, ...] | None
    ) -> NDArray[Any]:
        if sizes is None:
            raise InvalidRequest(f"no size was given for the BYTES input {self._specs[index].name!r}")
        start = chunk.offsets[index]
        packed = self._arena[start : start + sizes[index]]
        return unpack_elements(packed, chunk.rows * prod(shape)).reshape(chunk.rows, *shape)
