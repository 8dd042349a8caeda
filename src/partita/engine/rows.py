"""The outputs of a batch in P, cut into the rows of its requests."""

from math import prod

from partita.core.tensors import DataType
from partita.engine.request import Buffer
from partita.wire.messages import Output

COPY_BYTES = 16384
"""Outputs of a batch up to this size are copied once: cutting bytes costs less than cutting views."""


class Rows:
    """The rows of one output in P."""

    __slots__ = ("_ends", "_row_bytes", "_start", "_view")

    def __init__(self, view: memoryview, output: Output, datatype: DataType, rows: int) -> None:
        self._start = output.offset
        self._row_bytes = output.size // rows
        self._ends = _element_row_ends(view, output, rows) if datatype is DataType.BYTES else None
        self._view: Buffer = view
        if output.size <= COPY_BYTES and self._ends is None:
            self._view, self._start = bytes(view[output.offset : output.offset + output.size]), 0

    def slice(self, first: int, end: int) -> Buffer:
        """Rows first … end − 1."""
        if self._ends is not None:
            return self._view[self._ends[first] : self._ends[end]]
        start, row_bytes = self._start, self._row_bytes
        return self._view[start + first * row_bytes : start + end * row_bytes]


def _element_row_ends(view: memoryview, output: Output, rows: int) -> list[int]:
    """Where each row of a BYTES output begins, and where the last one ends: rows + 1 offsets, bytes."""
    per_row = prod(output.shape[1:])
    at = output.offset
    ends = [at]
    for _ in range(rows):
        for _ in range(per_row):
            at += 4 + int.from_bytes(view[at : at + 4], "little")
        ends.append(at)
    return ends
