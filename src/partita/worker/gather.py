"""The items of a batch, found in X and read in place."""

from collections.abc import Iterator, Sequence
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

    __slots__ = ("_arena", "_batched", "_row_bytes", "_specs", "_static")

    def __init__(self, arena: memoryview, signature: Signature) -> None:
        self._arena = arena
        self._batched = signature.batched
        self._specs = signature.inputs
        self._static = (
            tuple((spec.name, spec.datatype.numpy, spec.shape) for spec in signature.inputs)
            if signature.is_static and signature.batched
            else None
        )
        self._row_bytes = tuple(
            dtype.itemsize * prod(shape) for _, dtype, shape in self._static or ()
        )  # bytes of an item of each input

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

    def parts(self, message: Execute, sizes: Sequence[int]) -> Iterator[tuple[Batch, int]]:
        """Yield the arrays of consecutive items, `sizes` at a time, as `batch` returns them.

        Only what lies in several chunks is joined, so that executions of whole requests read in place.
        """
        if self._static is None or message.shapes is not None:
            batch, _ = self._general(message)
            start = 0
            for size in sizes:
                yield {name: array[start : start + size] for name, array in batch.items()}, size
                start += size
            return
        for chunks in _cut(message.chunks, sizes, self._row_bytes):
            yield self.batch(Execute(message.batch_id, message.slot, chunks))

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


def _cut(
    chunks: Sequence[Chunk], sizes: Sequence[int], row_bytes: tuple[int, ...]
) -> Iterator[tuple[Chunk, ...]]:
    """Yield the chunks of the next `size` items, for each of the sizes."""
    waiting = list(reversed(chunks))
    for size in sizes:
        taken: list[Chunk] = []
        missing = size
        while missing:
            chunk = waiting.pop()
            rows = min(missing, chunk.rows)
            taken.append(Chunk(rows, chunk.offsets))
            missing -= rows
            if rows < chunk.rows:
                offsets = tuple(o + rows * width for o, width in zip(chunk.offsets, row_bytes, strict=True))
                waiting.append(Chunk(chunk.rows - rows, offsets))
        yield tuple(taken)
