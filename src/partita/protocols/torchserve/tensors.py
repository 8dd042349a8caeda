"""From fields to a model's inputs, and from its outputs to what is answered.

A model that takes one input of type BYTES gets the field as it is. One that takes numbers gets them from
JSON, or from raw bytes if there are as many as its items have. JSON of an item is one item, a list of items
is several.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np

from partita.core.errors import InvalidRequest
from partita.core.tensors import DataType, Signature, TensorSpec
from partita.engine.request import Buffer, Request, Shapes, Sink
from partita.engine.service import Service
from partita.protocols.oip.documents import InferRequest, InputParameters, InputTensor
from partita.protocols.oip.inference import split_items
from partita.protocols.oip.templates import Template, make_template
from partita.protocols.oip.tensors import elements, pack_json, unpack_json

MEMO_ENTRIES = 256
Tensor = tuple[tuple[int, ...], bytes]
"""Shape, with the batch axis, and raw bytes."""


class Asked:
    """A checked request: its template, and the data of each input in signature order."""

    __slots__ = ("buffers", "is_single", "template")

    def __init__(
        self, signature: Signature, given: Mapping[str, Any], memo: dict[Shapes, Template] | None = None
    ) -> None:
        """Take a value for each input: bytes as a field has them, or what JSON says.

        `memo` keeps the templates of shapes. Raises `InvalidRequest` for what is no such input.
        """
        shapes: list[tuple[int, ...]] = []
        self.buffers: list[Buffer] = []
        self.is_single = True
        for spec in signature.inputs:
            (shape, data), is_single = _tensor(spec, given[spec.name], batched=signature.batched)
            shapes.append(shape)
            self.buffers.append(data)
            self.is_single &= is_single
        key = tuple(shapes)
        template = memo.get(key) if memo is not None else None
        if template is None:
            template = _template(signature, key, self.buffers)
            if memo is not None:
                if len(memo) >= MEMO_ENTRIES:
                    memo.clear()
                memo[key] = template
        self.template = template

    def submit(self, service: Service, sink: Sink, context: Any, deadline_s: float | None = None) -> Request:
        """Hand the request to the engine. Raises `RequestError`."""
        template = self.template
        if template.layout.is_ragged:
            items = split_items(service, template, self.buffers)
            return service.submit_ragged(items, template.layout, sink, context, deadline_s)
        return service.submit(self.buffers, template.n_items, template.layout, sink, context, deadline_s)


def _template(signature: Signature, shapes: Shapes, buffers: Sequence[Buffer]) -> Template:
    """Check the shapes; the buffers have as many bytes as these say, by the way they were made."""
    tensors = (
        InputTensor(spec.name, spec.datatype.value, shape, InputParameters(binary_data_size=len(data)))
        for spec, shape, data in zip(signature.inputs, shapes, buffers, strict=True)
    )
    return make_template(InferRequest(inputs=tuple(tensors)), signature)


def by_input(signature: Signature, fields: Mapping[str, bytes]) -> dict[str, Any]:
    """Return each input's value: from the field of its name, or from the only field there is.

    Raises `InvalidRequest` naming the fields that there should be.
    """
    names = [spec.name for spec in signature.inputs]
    if set(names) == set(fields):
        return dict(fields)
    if len(fields) == 1:
        (content,) = fields.values()
        if len(names) == 1 and not _is_object_of(names, content):
            return {names[0]: content}
        return from_object(names, _json(content))
    raise InvalidRequest(f"expected one field, or a field for each input: {', '.join(names)}")


def from_object(names: Sequence[str], document: Any) -> dict[str, Any]:
    """Return each input's value from a JSON object. Raises `InvalidRequest`."""
    if not isinstance(document, dict) or set(document) != set(names):
        raise InvalidRequest(f"expected a JSON object with a value for each input: {', '.join(names)}")
    return document


def _is_object_of(names: Sequence[str], content: bytes) -> bool:
    if content.lstrip()[:1] != b"{":
        return False
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(document, dict) and set(document) == set(names)


def _json(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None


def _tensor(spec: TensorSpec, value: Any, *, batched: bool) -> tuple[Tensor, bool]:
    """Return the tensor, and whether it is a single item."""
    if isinstance(value, bytes):
        if spec.datatype is DataType.BYTES:
            value = [value] if spec.shape == (1,) else value
            return _packed(spec, value, batched=batched)
        if (
            spec.is_static
            and value
            and not len(value) % max(1, spec.item_bytes)
            and not _looks_like_json(value)
        ):
            items = len(value) // spec.item_bytes
            if batched:
                return ((items, *spec.shape), value), items == 1
            return (spec.shape, value), True
        value = _json(value)
    return _packed(spec, value, batched=batched)


def _looks_like_json(value: bytes) -> bool:
    if value.lstrip()[:1] not in b"[-0123456789tf":
        return False
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _packed(spec: TensorSpec, value: Any, *, batched: bool) -> tuple[Tensor, bool]:
    shape = _shape(value)
    rank = len(spec.shape)
    is_single = not batched or len(shape) == rank
    if batched and is_single:
        shape, value = (1, *shape), [value]
    if spec.datatype is DataType.BYTES:
        data = b"".join(_element(spec.name, item) for item in _flat(value))
        return (shape, data), is_single
    values = list(_flat(value))
    return (shape, pack_json(spec.name, spec.datatype, shape, values)), is_single


def _shape(value: Any) -> tuple[int, ...]:
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _flat(value: Any) -> list[Any]:
    values = [value]
    while values and isinstance(values[0], list):
        if not all(isinstance(row, list) for row in values):
            raise InvalidRequest("the data mix lists and values")
        values = [item for row in values for item in row]
    return values


def _element(name: str, value: Any) -> bytes:
    raw = value.encode("utf-8") if isinstance(value, str) else value
    if not isinstance(raw, bytes):
        raise InvalidRequest(f"input {name!r}: expected text, not {type(value).__name__}")
    return len(raw).to_bytes(4, "little") + raw


# --- outputs --------------------------------------------------------------------------------------


def values_of(signature: Signature, outputs: Sequence[Buffer], shapes: Shapes, *, is_single: bool) -> Any:
    """Return what is answered: an only output's values, or an object of all; a single item has no batch axis.

    The only string of a single item is answered as its bytes.
    """
    values = {}
    for spec, data, shape in zip(signature.outputs, outputs, shapes, strict=True):
        own = shape[1:] if signature.batched and is_single else shape
        if spec.datatype is DataType.BYTES and prod(own) == 1 and len(signature.outputs) == 1 and is_single:
            return next(elements(data, 1))
        values[spec.name] = _nested(spec.name, spec.datatype, own, data)
    return next(iter(values.values())) if len(values) == 1 else values


def _nested(name: str, datatype: DataType, shape: tuple[int, ...], data: Buffer) -> Any:
    if datatype in (DataType.FP16, DataType.BF16):
        data, datatype = _as_fp32(datatype, data), DataType.FP32
    flat: list[Any] = unpack_json(name, datatype, shape, data) if prod(shape) else []
    for size in reversed(shape[1:]):
        flat = [flat[k : k + size] for k in range(0, len(flat), size)] if size else [[]] * prod(shape[:1])
    return flat if shape else flat[0]


def _as_fp32(datatype: DataType, data: Buffer) -> bytes:
    if datatype is DataType.FP16:
        return np.frombuffer(data, np.float16).astype(np.float32).tobytes()
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).astype(np.uint32).tobytes()
