"""P, the worker's output arena: a few slots that batches' outputs are written into."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InferenceFailed
from partita.core.tensors import DataType, Signature
from partita.system.shared_memory import PAGE_BYTES, SharedMemory
from partita.wire.messages import Output
from partita.worker.elements import pack_elements
from partita.worker.results import Part, joined_shape

ALIGNMENT_BYTES = 64
_SMALL_BYTES = 8192  # below, a second copy costs less than making an array over the slot


class OutputArena:
    """Owns P. A slot whose batch does not fit moves to newly added space at the end of the file.

    The head names a slot only when it has taken what the slot held before.
    """

    __slots__ = ("_batched", "_max_item_bytes", "_memory", "_slots", "_texts", "_view")

    def __init__(self, signature: Signature, *, slots: int, slot_bytes: int, max_item_bytes: int) -> None:
        self._batched = signature.batched
        self._max_item_bytes = max_item_bytes
        """Most that the outputs of one item may have, in a batch on average."""
        slot_bytes = _rounded(max(slot_bytes, 1), PAGE_BYTES)
        self._memory = SharedMemory.create(slots * slot_bytes, "outputs")
        self._view = self._memory.view
        self._slots = [(index * slot_bytes, slot_bytes) for index in range(slots)]
        self._texts = any(spec.datatype is DataType.BYTES for spec in signature.outputs)

    @property
    def nbytes(self) -> int:
        """Bytes of the file; grows."""
        return self._memory.nbytes

    def reopen_read_only(self) -> int:
        """Return a descriptor for the head, which only reads."""
        return self._memory.reopen_read_only()

    def close(self) -> None:
        """Unmap P here."""
        self._memory.close()

    def write(self, slot: int, parts: list[Part]) -> tuple[Output, ...]:
        """Write the outputs of a batch's executions, joined along the batch axis, into a slot.

        Offsets are from the start of the file. Raises `InferenceFailed` if the executions' shapes differ, or
        if the outputs are larger than is allowed.
        """
        if len(parts) == 1 and not self._texts:
            arrays = parts[0]
            outputs = self._place(slot, [(array.nbytes, array.shape) for array in arrays])
            view = self._view
            for array, output in zip(arrays, outputs, strict=True):
                if output.size <= _SMALL_BYTES:
                    view[output.offset : output.offset + output.size] = array.tobytes()
                else:
                    np.ndarray(array.shape, array.dtype, view, output.offset)[...] = array
            return outputs
        return self._write_general(slot, parts)

    def _write_general(self, slot: int, parts: list[Part]) -> tuple[Output, ...]:
        shapes = [
            joined_shape(parts, index) if len(parts) > 1 else parts[0][index].shape
            for index in range(len(parts[0]))
        ]
        columns = [[_numeric(part[index]) for part in parts] for index in range(len(shapes))]
        sizes = [sum(array.nbytes for array in column) for column in columns]
        outputs = self._place(slot, list(zip(sizes, shapes, strict=True)))
        for column, output in zip(columns, outputs, strict=True):
            at = output.offset
            for array in column:
                np.ndarray(array.shape, array.dtype, self._view, at)[...] = array
                at += array.nbytes
        return outputs

    def _place(self, slot: int, wanted: list[tuple[int, tuple[int, ...]]]) -> tuple[Output, ...]:
        start, capacity = self._slots[slot]
        at = start
        outputs = []
        for nbytes, shape in wanted:
            outputs.append(Output(at, nbytes, shape))
            at += (nbytes + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES
        if at - start > self._max_item_bytes:
            self._check_size(wanted)
        if at - start <= capacity:
            return tuple(outputs)
        moved = self._enlarge(slot, at - start) - start
        return tuple(Output(o.offset + moved, o.size, o.shape) for o in outputs)

    def _check_size(self, wanted: list[tuple[int, tuple[int, ...]]]) -> None:
        items = wanted[0][1][0] if self._batched else 1
        nbytes = sum(size for size, _ in wanted) // max(1, items)
        if nbytes > self._max_item_bytes:
            raise InferenceFailed(
                f"an item's outputs have {nbytes} bytes; max_output_bytes = {self._max_item_bytes}"
            )

    def _enlarge(self, slot: int, nbytes: int) -> int:
        """Move a slot to new space with room to spare; its old pages go back to the system."""
        start, capacity = self._slots[slot]
        self._memory.release(start, capacity)
        moved = self._memory.nbytes
        enlarged = _rounded(nbytes + nbytes // 2, PAGE_BYTES)
        self._memory.grow(moved + enlarged)
        self._view = self._memory.view
        self._slots[slot] = (moved, enlarged)
        return moved


def slot_bytes(arrays: list[NDArray[Any]]) -> int:
    """Return the bytes of a slot that holds these outputs."""
    return sum(_rounded(_numeric(array).nbytes, ALIGNMENT_BYTES) for array in arrays)


def _numeric(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of plain bytes for one of texts."""
    return np.frombuffer(pack_elements(array), np.uint8) if array.dtype.kind in "OSU" else array


def _rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit
