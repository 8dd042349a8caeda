"""Inference responses as bytes: the tensors' data never pass through protobuf."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from partita.core.tensors import DataType
from partita.engine.request import Buffer, Shapes, missing_members
from partita.engine.service import Service
from partita.protocols.grpc.messages import CLASSES
from partita.protocols.grpc.requests import CONTENTS
from partita.protocols.oip.replies import MEMO_HEADS, MISSING, Replies
from partita.protocols.oip.templates import Template
from partita.protocols.oip.tensors import elements

_RAW_TAG = b"\x32"
"""Field 6, `raw_output_contents`."""
_RESPONSE_TAG = b"\x12"
"""Field 2 of `ModelStreamInferResponse`, `infer_response`."""


def varint(value: int) -> bytes:
    """Return a length as protobuf writes it."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


class GrpcReplies:
    """Builds the responses of one service."""

    __slots__ = ("_name", "_tensors", "_version")

    def __init__(self, service: Service) -> None:
        self._name = service.name
        self._version = service.version
        self._tensors = Replies(service.name, service.version, service.signature)

    def response(
        self, template: Template, outputs: Sequence[Buffer], shapes: Shapes, *, typed: bool
    ) -> bytes:
        """Return a ``ModelInferResponse``; raises `InvalidRequest` for an output in a form it cannot have."""
        head = template.heads.get(shapes)
        if head is not None:
            tensors: Sequence[Buffer] = [outputs[wanted.index] for wanted in template.outputs]
        else:
            missing = missing_members(shapes)
            described = [self._tensors.tensor(wanted, outputs, shapes) for wanted in template.outputs]
            if typed and all(datatype in CONTENTS for _, datatype, _, _ in described):
                return self._head(template, described, missing, typed=True)
            head = self._head(template, described, missing, typed=False)
            tensors = [data for _, _, _, data in described]
            if not any(wanted.classes for wanted in template.outputs) and not typed and not missing:
                if len(template.heads) >= MEMO_HEADS:
                    template.heads.clear()
                template.heads[shapes] = head
        parts: list[Buffer] = [head]
        for data in tensors:
            parts += (_RAW_TAG, varint(len(data)), data)
        return b"".join(parts)

    def _head(
        self,
        template: Template,
        tensors: Sequence[tuple[str, DataType, tuple[int, ...], Buffer]],
        missing: tuple[str, ...],
        *,
        typed: bool,
    ) -> bytes:
        response = CLASSES["ModelInferResponse"](
            model_name=self._name, model_version=self._version, id=template.request_id
        )
        if missing:
            response.parameters[MISSING].string_param = ",".join(missing)
        for name, datatype, shape, data in tensors:
            output = response.outputs.add(name=name, datatype=datatype.value, shape=shape)
            if typed:
                getattr(output.contents, CONTENTS[datatype]).extend(_values(datatype, shape, data))
        packed: bytes = response.SerializeToString()
        return packed


def _values(datatype: DataType, shape: tuple[int, ...], data: Buffer) -> list[Any]:
    if datatype is DataType.BYTES:
        return list(elements(data, prod(shape)))
    values: list[Any] = np.frombuffer(data, datatype.numpy).tolist() if len(data) else []
    return values


def _final_response() -> bytes:
    message = CLASSES["ModelInferResponse"]()
    message.parameters["triton_final_response"].bool_param = True
    packed: bytes = message.SerializeToString()
    return packed


_FINAL = _final_response()
"""The parameter that says that a request of a stream has no more responses, to be appended to a response."""


def stream_response(response: bytes) -> bytes:
    """Return a ``ModelStreamInferResponse`` around a response."""
    return b"".join((_RESPONSE_TAG, varint(len(response) + len(_FINAL)), response, _FINAL))


def stream_error(message: str, model: str, request_id: str) -> bytes:
    """Return a ``ModelStreamInferResponse`` that says what went wrong with one request of a stream."""
    response = CLASSES["ModelStreamInferResponse"](error_message=message)
    response.infer_response.model_name = model
    response.infer_response.id = request_id
    response.infer_response.parameters["triton_final_response"].bool_param = True
    packed: bytes = response.SerializeToString()
    return packed
