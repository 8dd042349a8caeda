"""Inference responses: JSON, or JSON and binary tensors."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from partita.core.errors import InvalidRequest
from partita.core.tensors import DataType, Signature
from partita.engine.request import Buffer, Shapes, missing_members
from partita.protocols.http.compression import COMPRESS_FROM_BYTES, compressed
from partita.protocols.http.responses import response_head
from partita.protocols.oip.templates import Template, WantedOutput

_BINARY_TYPE = (b"content-type", b"application/octet-stream")
_JSON_TYPE = (b"content-type", b"application/json")
MISSING = "missing_members"
"""Response parameter: the members of an ensemble that have no part in the answer, separated by commas."""
MEMO_HEADS = 64
"""Most output shapes for which one template keeps heads."""


class Replies:
    """Builds the responses of one service."""

    __slots__ = ("_name", "_signature", "_version")

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self._name = name
        self._version = version
        self._signature = signature

    def response(
        self, template: Template, outputs: Sequence[Buffer], shapes: Shapes, coding: str = ""
    ) -> bytes:
        """Return the whole response, a large one in the content coding.

        Raises `InvalidRequest` if an output cannot have the form asked for.
        """
        if not coding:
            head = template.heads.get(shapes)
            if head is not None:
                return b"".join((head, *(outputs[w.index] for w in template.outputs)))
        document, binaries = self._document(template, outputs, shapes)
        text = msgspec.json.encode(document)
        length = len(text) + sum(len(b) for b in binaries)
        headers = [_JSON_TYPE]
        if binaries:
            headers = [_BINARY_TYPE, (b"inference-header-content-length", b"%d" % len(text))]
        if coding and length >= COMPRESS_FROM_BYTES:
            return _compressed(headers, b"".join((text, *binaries)), coding)
        head = response_head(200, headers, length) + text
        if self._is_constant(template) and not coding and not missing_members(shapes):
            if len(template.heads) >= MEMO_HEADS:
                template.heads.clear()
            template.heads[shapes] = head
        return b"".join((head, *binaries))

    def _is_constant(self, template: Template) -> bool:
        outputs = self._signature.outputs
        return all(
            w.is_binary and not w.classes and outputs[w.index].datatype is not DataType.BYTES
            for w in template.outputs
        )

    def _document(
        self, template: Template, outputs: Sequence[Buffer], shapes: Shapes
    ) -> tuple[dict[str, Any], list[Buffer]]:
        tensors: list[dict[str, Any]] = []
        binaries: list[Buffer] = []
        for wanted in template.outputs:
            name, datatype, shape, data = self.tensor(wanted, outputs, shapes)
            tensor: dict[str, Any] = {"name": name, "datatype": datatype.value, "shape": shape}
            if wanted.is_binary:
                tensor["parameters"] = {"binary_data_size": len(data)}
                binaries.append(data)
            else:
                values = np.frombuffer(data, np.uint8) if not len(data) else data
                tensor["data"] = _json_values(name, datatype, shape, values)
            tensors.append(tensor)
        document: dict[str, Any] = {"model_name": self._name, "model_version": self._version}
        if missing := missing_members(shapes):
            document["parameters"] = {MISSING: ",".join(missing)}
        if template.request_id:
            document["id"] = template.request_id
        document["outputs"] = tensors
        return document, binaries

    def tensor(
        self, wanted: WantedOutput, outputs: Sequence[Buffer], shapes: Shapes
    ) -> tuple[str, DataType, tuple[int, ...], Buffer]:
        """Return name, datatype, shape and raw data of one output, in the form asked for."""
        spec = self._signature.outputs[wanted.index]
        shape, data = shapes[wanted.index], outputs[wanted.index]
        if wanted.classes:
            batched = self._signature.batched
            shape, data = _classes(spec.name, spec.datatype, shape, data, wanted.classes, batched=batched)
            return spec.name, DataType.BYTES, shape, data
        return spec.name, spec.datatype, shape, data


def _json_values(name: str, datatype: DataType, shape: tuple[int, ...], data: Any) -> list[Any]:
    from partita.protocols.oip.tensors import unpack_json

    return unpack_json(name, datatype, shape, data)


def _compressed(headers: list[tuple[bytes, bytes]], body: bytes, coding: str) -> bytes:
    packed = compressed(body, coding)
    return response_head(200, [*headers, (b"content-encoding", coding.encode())], len(packed)) + packed


def _classes(
    name: str, datatype: DataType, shape: tuple[int, ...], data: Buffer, k: int, *, batched: bool
) -> tuple[tuple[int, ...], bytes]:
    """The k largest of each item as BYTES ``value:index`` (classification extension)."""
    if datatype in (DataType.BYTES, DataType.BF16, DataType.BOOL):
        raise InvalidRequest(f"output {name!r}: classification is not possible for {datatype}")
    rows = np.frombuffer(data, datatype.numpy).reshape(shape[0] if batched else 1, -1)
    k = min(k, rows.shape[1])
    falling = -rows if rows.dtype.kind == "f" else ~rows  # negating integers would overflow
    order = np.argsort(falling, axis=1, kind="stable")[:, :k]
    texts = [f"{row[i]:f}:{i}".encode() for row, best in zip(rows, order, strict=True) for i in best]
    packed = b"".join(len(t).to_bytes(4, "little") + t for t in texts)
    return (shape[0], k) if batched else (k,), packed
