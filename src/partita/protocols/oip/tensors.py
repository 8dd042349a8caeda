"""Tensor data on the wire: JSON lists and raw bytes, row-major, little-endian."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from partita.core.errors import InvalidRequest
from partita.core.tensors import DataType

_NO_JSON = (DataType.FP16, DataType.BF16)


def flat(data: list[Any]) -> list[Any]:
    """Return nested lists as one list, row-major."""
    while data and isinstance(data[0], list):
        if not all(isinstance(row, list) for row in data):
            raise InvalidRequest("data mixes lists and values")
        data = [value for row in data for value in row]
    return data


def pack_json(name: str, datatype: DataType, shape: tuple[int, ...], data: list[Any]) -> bytes:
    """Return JSON data as raw bytes; raises `InvalidRequest` for a wrong count or a wrong kind of value."""
    if datatype in _NO_JSON:
        raise InvalidRequest(f"input {name!r}: {datatype} has no JSON form; send it as binary data")
    values = flat(data)
    expected = prod(shape)
    if len(values) != expected:
        raise InvalidRequest(
            f"input {name!r}: data has {len(values)} values, its shape {list(shape)} {expected}"
        )
    if datatype is DataType.BYTES:
        return b"".join(_element(name, value) for value in values)
    kinds = {type(value) for value in values}
    _check_kinds(name, datatype, kinds)
    if datatype.numpy.kind in "iu" and values:  # asked here: numpy 1 wraps them round
        info = np.iinfo(datatype.numpy)
        if min(values) < info.min or max(values) > info.max:
            raise InvalidRequest(f"input {name!r}: {datatype} holds {info.min} to {info.max}, and no more")
    try:
        with np.errstate(over="raise"):
            return np.array(values, dtype=datatype.numpy).tobytes()
    except (OverflowError, FloatingPointError):
        raise InvalidRequest(f"input {name!r}: a value is out of the range of {datatype}") from None


def _check_kinds(name: str, datatype: DataType, kinds: set[type]) -> None:
    if datatype is DataType.BOOL:
        allowed: tuple[type, ...] = (bool,)
    elif datatype in (DataType.FP32, DataType.FP64):
        allowed = (int, float)
    else:
        allowed = (int,)
    for kind in kinds:
        if kind not in allowed:
            wanted = " or ".join(a.__name__ for a in allowed)
            raise InvalidRequest(
                f"input {name!r}: {datatype} wants values of type {wanted}, not {kind.__name__}"
            )


def _element(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest(f"input {name!r}: BYTES wants strings, not {type(value).__name__}")
    raw = value.encode("utf-8")
    return len(raw).to_bytes(4, "little") + raw


def element_ends(name: str, data: bytes | memoryview, count: int) -> list[int]:
    """Where each of `count` BYTES elements ends; `InvalidRequest` unless they fill the data exactly."""
    ends = []
    at = 0
    for _ in range(count):
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        if at > len(data):
            raise InvalidRequest(f"input {name!r}: its BYTES data ends inside an element")
        ends.append(at)
    if at != len(data):
        raise InvalidRequest(
            f"input {name!r}: its BYTES data has {len(data) - at} bytes beyond its {count} elements"
        )
    return ends


def elements(data: bytes | bytearray | memoryview, count: int) -> Iterator[bytes]:
    """Yield the elements of BYTES data that is known to be well-formed."""
    at = 0
    for _ in range(count):
        size = int.from_bytes(data[at : at + 4], "little")
        yield bytes(data[at + 4 : at + 4 + size])
        at += 4 + size


def unpack_json(name: str, datatype: DataType, shape: tuple[int, ...], data: Any) -> list[Any]:
    """Return raw output bytes as a flat JSON list."""
    if datatype in _NO_JSON:
        raise InvalidRequest(f"output {name!r}: {datatype} has no JSON form; ask for binary data")
    if datatype is DataType.BYTES:
        return [raw.decode("utf-8", "replace") for raw in elements(data, prod(shape))]
    values: list[Any] = np.frombuffer(data, dtype=datatype.numpy).tolist()
    return values
