"""Names, datatypes and shapes of a model's inputs and outputs."""

from dataclasses import dataclass, field
from enum import StrEnum
from math import prod

import numpy as np

DYNAMIC = -1
"""An axis whose size may differ from request to request."""


class DataType(StrEnum):
    """Element types, by their Open Inference Protocol names."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    BF16 = "BF16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"

    @property
    def item_bytes(self) -> int:
        """Bytes of one element; 0 for BYTES, whose elements carry their own length."""
        return 0 if self is DataType.BYTES else _NUMPY[self].itemsize

    @property
    def numpy(self) -> np.dtype:
        """The numpy dtype an element is held as: BF16 as its raw 16 bits, BYTES as Python objects."""
        return _NUMPY[self]

    @classmethod
    def of(cls, dtype: "np.dtype") -> "DataType":
        """Return the datatype of a numpy dtype; `KeyError` where the protocol has none."""
        if dtype.kind in "OSU":
            return cls.BYTES
        return _FROM_NUMPY[dtype.newbyteorder("=")]


_NUMPY = {
    DataType.BOOL: np.dtype("?"),
    DataType.UINT8: np.dtype("u1"),
    DataType.UINT16: np.dtype("<u2"),
    DataType.UINT32: np.dtype("<u4"),
    DataType.UINT64: np.dtype("<u8"),
    DataType.INT8: np.dtype("i1"),
    DataType.INT16: np.dtype("<i2"),
    DataType.INT32: np.dtype("<i4"),
    DataType.INT64: np.dtype("<i8"),
    DataType.FP16: np.dtype("<f2"),
    DataType.BF16: np.dtype("<u2"),
    DataType.FP32: np.dtype("<f4"),
    DataType.FP64: np.dtype("<f8"),
    DataType.BYTES: np.dtype("O"),
}
_FROM_NUMPY = {numpy: datatype for datatype, numpy in _NUMPY.items() if datatype is not DataType.BF16}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named input or output; `shape` is that of one item, without the batch axis.

    `DYNAMIC` (−1) marks an axis that differs between requests.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    symbols: tuple[str, ...] = field(default=(), compare=False)
    """Names that the model file gives these axes, ``""`` for those without; empty = none is named."""

    @property
    def is_static(self) -> bool:
        """Whether every item has the same number of bytes."""
        return self.datatype is not DataType.BYTES and DYNAMIC not in self.shape

    @property
    def item_bytes(self) -> int:
        """Bytes of one item; only for static tensors."""
        assert self.is_static, self
        return prod(self.shape) * self.datatype.item_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What one model takes and gives.

    `batched` says whether tensors have a leading batch axis on the wire; a model without one takes one
    item per request. `fixed_batch` is the size that the network's own batch axis is frozen at, if it is:
    smaller batches are padded up to it by the worker.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool = True
    fixed_batch: int | None = None

    @property
    def is_static(self) -> bool:
        """Whether all items of all inputs have equal shapes."""
        return all(spec.is_static for spec in self.inputs)
