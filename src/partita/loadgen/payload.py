"""Requests made beforehand: random inputs from a model's metadata, in the binary tensor extension."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from partita.core.errors import InvalidInput
from partita.core.tensors import DataType
from partita.loadgen.target import Target

DEFAULT_AXIS = 64
"""Size of an axis that the metadata leave open, other than the batch axis."""
_VARIANTS = 8
_MOST_BYTES = 64 << 20
"""What all prepared requests may take together; a server that caches sees more than one either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Whole requests, head and body; they are sent in turn."""

    requests: tuple[bytes, ...]
    items: int
    """Items in each of them."""


def payload_for(
    target: Target,
    model: str,
    *,
    items: int = 1,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> Payload:
    """Ask the server for the model's inputs and prepare random requests of `items` items each.

    `shapes` gives whole item shapes where axes are open. Raises `Unreachable`, or `InvalidInput` where the
    model takes no such requests.
    """
    metadata = target.get_json(f"v2/models/{model}")
    rng = np.random.default_rng(seed)
    requests = [_request(target, model, metadata, items, shapes or {}, rng)]
    while len(requests) < _VARIANTS and sum(map(len, requests)) + len(requests[0]) <= _MOST_BYTES:
        requests.append(_request(target, model, metadata, items, shapes or {}, rng))
    return Payload(requests=tuple(requests), items=items)


def _request(
    target: Target,
    model: str,
    metadata: Mapping[str, Any],
    items: int,
    shapes: Mapping[str, tuple[int, ...]],
    rng: np.random.Generator,
) -> bytes:
    inputs, data = [], []
    for tensor in metadata["inputs"]:
        shape = _shape(tensor["name"], tensor["shape"], items, shapes.get(tensor["name"]))
        raw = random_bytes(DataType(tensor["datatype"]), prod(shape), rng)
        data.append(raw)
        inputs.append(
            {
                "name": tensor["name"],
                "shape": shape,
                "datatype": tensor["datatype"],
                "parameters": {"binary_data_size": len(raw)},
            }
        )
    return infer_request(target, model, {"inputs": inputs, "parameters": {"binary_data_output": True}}, data)


def infer_request(target: Target, model: str, header: Mapping[str, Any], data: list[bytes]) -> bytes:
    """Return one whole ``POST v2/models/{model}/infer`` with the tensors' bytes after the JSON."""
    described = json.dumps(header, separators=(",", ":")).encode()
    head = (
        f"POST {target.prefix}/v2/models/{model}/infer HTTP/1.1\r\n"
        f"Host: {target.address}\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(described)}\r\n"
        f"Content-Length: {len(described) + sum(map(len, data))}\r\n\r\n"
    )
    return b"".join([head.encode(), described, *data])


def random_bytes(datatype: DataType, elements: int, rng: np.random.Generator) -> bytes:
    """Return values that most models accept: floats in [0, 1), whole numbers 0 or 1, empty texts."""
    if datatype is DataType.BYTES:
        return bytes(4 * elements)
    if datatype in (DataType.FP16, DataType.FP32, DataType.FP64):
        return rng.random(elements, dtype=np.float32).astype(datatype.numpy).tobytes()
    if datatype is DataType.BF16:  # the upper half of a float32
        return (rng.random(elements, dtype=np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return rng.integers(0, 2, elements).astype(datatype.numpy).tobytes()


def _shape(name: str, shape: list[int], items: int, given: tuple[int, ...] | None) -> list[int]:
    """Return the wire shape of `items` items; the first axis is the batch where it is open."""
    batched = bool(shape) and shape[0] == -1
    if not batched and items > 1:
        raise InvalidInput(f"input {name} has shape {shape}, with no batch axis: use --batch 1")
    inner = shape[1:] if batched else shape
    if given is not None:
        if len(given) != len(inner) or any(s not in (-1, g) for s, g in zip(inner, given, strict=True)):
            raise InvalidInput(f"input {name}: the shape given, {list(given)}, does not fit {inner}")
        inner = list(given)
    inner = [DEFAULT_AXIS if size == -1 else size for size in inner]
    return [items, *inner] if batched else inner
