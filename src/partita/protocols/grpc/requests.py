"""Inference requests: from a message's bytes to a checked request and the bytes of each of its inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from partita.core.errors import InvalidRequest
from partita.core.tensors import DataType, Signature
from partita.engine.request import Buffer
from partita.protocols.grpc.messages import CLASSES
from partita.protocols.oip.documents import (
    InferRequest,
    InputParameters,
    InputTensor,
    OutputParameters,
    RequestedOutput,
    RequestParameters,
)
from partita.protocols.oip.templates import Template

T = TypeVar("T", bound=msgspec.Struct)

_RAW_TAG = 0x3A
"""Field 7, `raw_input_contents`, as it stands before each raw tensor."""
_PLAIN_TAGS = frozenset((0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32))
"""Fields 1 to 6, all of them with a length."""

CONTENTS = {
    DataType.BOOL: "bool_contents",
    DataType.INT8: "int_contents",
    DataType.INT16: "int_contents",
    DataType.INT32: "int_contents",
    DataType.INT64: "int64_contents",
    DataType.UINT8: "uint_contents",
    DataType.UINT16: "uint_contents",
    DataType.UINT32: "uint_contents",
    DataType.UINT64: "uint64_contents",
    DataType.FP32: "fp32_contents",
    DataType.FP64: "fp64_contents",
    DataType.BYTES: "bytes_contents",
}
"""Field of typed contents of each datatype; FP16 and BF16 have none."""


def split(data: bytes) -> tuple[bytes, list[memoryview]] | None:
    """Return what precedes the raw tensors, and these, of a message that is written in the usual order.

    What precedes them says everything but the data, so equal bytes mean equal requests. None for a message
    of any other order, which `parse` takes.
    """
    view = memoryview(data)
    at, end, prefix_end = 0, len(data), 0
    raws: list[memoryview] = []
    while at < end:
        tag = data[at]
        at += 1
        size = shift = 0
        while True:
            if at >= end or shift > 28:
                return None
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if at + size > end:
            return None
        if tag == _RAW_TAG:
            raws.append(view[at : at + size])
        elif tag not in _PLAIN_TAGS or raws:
            return None
        at += size
        if tag != _RAW_TAG:
            prefix_end = at
    return (data[:prefix_end], raws) if raws else None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request, with the data of its inputs in the request's order."""

    model: str
    version: str
    request: InferRequest
    data: list[Buffer]
    is_typed: bool
    """Whether the data came as typed contents: the answer does as well then, where it can."""


def parse(data: bytes, raws: Sequence[Buffer] | None = None) -> Parsed:
    """Parse a message, `raws` aside where `split` has found them. Raises `InvalidRequest`."""
    try:
        message = CLASSES["ModelInferRequest"].FromString(data)
    except DecodeError:
        raise InvalidRequest("the message is not a ModelInferRequest") from None
    if raws is None:
        raws = list(message.raw_input_contents)
    contents = _raw(message, raws) if raws else [_typed(tensor) for tensor in message.inputs]
    request = InferRequest(
        id=message.id,
        parameters=_struct(RequestParameters, _values(message.parameters), "parameters"),
        inputs=tuple(
            InputTensor(t.name, t.datatype, tuple(t.shape), InputParameters(binary_data_size=_nbytes(t)))
            for t in message.inputs
        ),
        outputs=tuple(
            RequestedOutput(o.name, _struct(OutputParameters, _values(o.parameters), f"output {o.name!r}"))
            for o in message.outputs
        ),
    )
    return Parsed(message.model_name, message.model_version, request, contents, is_typed=not raws)


def _nbytes(tensor: Any) -> int:
    """Bytes that an input's shape asks for; what there are is checked by `ordered`."""
    try:
        return max(0, prod(map(int, tensor.shape)) * DataType(tensor.datatype).item_bytes)
    except ValueError:
        return 0


def order_of(request: InferRequest, signature: Signature) -> tuple[int, ...]:
    """Of each input of the signature, its place in the request."""
    places = {tensor.name: place for place, tensor in enumerate(request.inputs)}
    return tuple(places[spec.name] for spec in signature.inputs)


def ordered(
    data: Sequence[Buffer], order: tuple[int, ...], template: Template, signature: Signature
) -> list[Buffer]:
    """Return the inputs' data in signature order; raises `InvalidRequest` for a size that is not the shape's.

    BYTES are checked element by element where they are split.
    """
    if len(data) != len(order):
        raise InvalidRequest(f"raw_input_contents has {len(data)} entries, inputs {len(order)}")
    buffers = []
    for place, spec, shape in zip(order, signature.inputs, template.shapes, strict=True):
        buffer = data[place]
        if spec.datatype is not DataType.BYTES:
            expected = prod(shape) * spec.datatype.item_bytes
            if len(buffer) != expected:
                raise InvalidRequest(
                    f"input {spec.name!r} has {len(buffer)} bytes, but shape {list(shape)} of "
                    f"{spec.datatype} has {expected}"
                )
        buffers.append(buffer)
    return buffers


def _raw(message: Any, raws: Sequence[Buffer]) -> list[Buffer]:
    for tensor in message.inputs:
        _values(tensor.parameters)
        if tensor.HasField("contents"):
            raise InvalidRequest(
                f"input {tensor.name!r} has contents, and raw_input_contents is used as well"
            )
    return list(raws)


def _typed(tensor: Any) -> Buffer:
    """Return typed contents as raw bytes; empty for a datatype that is none, which the signature refuses."""
    name = tensor.name
    _values(tensor.parameters)
    try:
        datatype = DataType(tensor.datatype)
    except ValueError:
        return b""
    field = CONTENTS.get(datatype)
    if field is None:
        raise InvalidRequest(f"input {name!r}: {datatype} has no typed contents; use raw_input_contents")
    values = getattr(tensor.contents, field)
    expected = prod(tensor.shape)
    if len(values) != expected:
        raise InvalidRequest(
            f"input {name!r}: contents.{field} has {len(values)} values, "
            f"its shape {list(tensor.shape)} {expected}"
        )
    if datatype is DataType.BYTES:
        return b"".join(len(value).to_bytes(4, "little") + value for value in values)
    wide = np.array(values, np.int64 if field in ("int_contents", "uint_contents") else datatype.numpy)
    if wide.dtype != datatype.numpy and wide.size:
        info = np.iinfo(datatype.numpy)
        if wide.min() < info.min or wide.max() > info.max:
            raise InvalidRequest(f"input {name!r}: {datatype} holds {info.min} to {info.max}, and no more")
    return wide.astype(datatype.numpy).tobytes()


def names_of(data: bytes) -> tuple[str, str]:
    """Return the model and the id that a message names, empty where it cannot be read."""
    try:
        message = CLASSES["ModelInferRequest"].FromString(data)
    except DecodeError:
        return "", ""
    return message.model_name, message.id


def _values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as plain values; refuses those that ask for shared memory, which no door offers."""
    values = {}
    for name, parameter in parameters.items():
        if name.startswith("shared_memory_"):
            raise InvalidRequest(f"{name}: shared memory of clients is not supported; send the tensors")
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:
            values[name] = getattr(parameter, choice)
    return values


def _struct(kind: type[T], values: dict[str, Any], where: str) -> T:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{where}: {error}") from None
