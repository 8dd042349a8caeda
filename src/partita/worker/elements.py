"""BYTES elements as the Open Inference Protocol's binary extension packs them: length (4 bytes, little
endian), then the bytes, one element after another in row order.
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InvalidRequest

_LENGTH = struct.Struct("<I")


def pack_elements(array: NDArray[Any]) -> bytes:
    """Return the packed elements of an array of bytes or strings (any shape); strings become UTF-8."""
    parts: list[bytes] = []
    for element in array.ravel().tolist():
        data = element.encode() if isinstance(element, str) else bytes(element)
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def unpack_elements(packed: memoryview, count: int) -> NDArray[Any]:
    """Return `count` elements as an object array (count,) of bytes; raises `InvalidRequest`."""
    elements = np.empty(count, dtype=object)
    at = 0
    for index in range(count):
        if at + _LENGTH.size > len(packed):
            raise InvalidRequest(f"{count} BYTES elements were announced, only {index} are there")
        (size,) = _LENGTH.unpack_from(packed, at)
        at += _LENGTH.size
        if at + size > len(packed):
            raise InvalidRequest(f"BYTES element {index} is cut short: {len(packed) - at} of {size} bytes")
        elements[index] = bytes(packed[at : at + size])
        at += size
    if at != len(packed):
        raise InvalidRequest(f"{len(packed) - at} bytes follow the last of {count} BYTES elements")
    return elements
