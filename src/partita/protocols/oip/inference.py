"""The request path: from a complete HTTP request to the engine, and from its answer to bytes."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from partita.core.errors import (
    InvalidRequest,
    PayloadTooLarge,
    RequestError,
)
from partita.core.tensors import DataType
from partita.engine.engine import Engine
from partita.engine.observing import say_request_id
from partita.engine.request import Buffer, Request, Shapes
from partita.engine.service import Service
from partita.protocols.http.compression import decompressed
from partita.protocols.http.connection import Connection
from partita.protocols.http.handler import Repeat
from partita.protocols.http.heads import RequestHead
from partita.protocols.http.responses import error_response
from partita.protocols.oip.documents import InferRequest, InputTensor, parse_infer_request
from partita.protocols.oip.replies import Replies
from partita.protocols.oip.templates import Template, make_template
from partita.protocols.oip.tensors import element_ends, pack_json

STATUS = {
    "invalid_request": 400,
    "invalid_input": 400,
    "download_failed": 400,
    "payload_too_large": 413,
    "not_authorized": 403,
    "foreign_caller": 403,
    "model_not_found": 404,
    "model_unavailable": 503,
    "queue_full": 503,
    "shutting_down": 503,
    "deadline_exceeded": 504,
    "cancelled": 499,
    "inference_failed": 500,
    "worker_died": 500,
    "load_failed": 400,
}
"""HTTP status of each error code; 500 for any other."""

MEMO_ENTRIES = 512
MEMO_TEXT_BYTES = 4096
COPY_BYTES = 4096
"""Up to here a copy of a body is cheaper than a view of it."""


Enveloped = Callable[[Service, Connection, RequestHead, bytes, int], bool]
"""Takes a request if the service's handler is to see it as it came; returns whether it is."""


class ServiceMemo:
    """What this protocol derived from one service's signature."""

    __slots__ = ("repeats", "replies", "templates")

    def __init__(self, service: Service) -> None:
        self.replies = Replies(service.name, service.version, service.signature)
        self.templates: dict[bytes, Template] = {}
        self.repeats: dict[bytes, InferAgain] = {}
        """By everything before the tensors' bytes: the HTTP head and the JSON part."""


class InferAgain(Repeat):
    """An inference that differs from an earlier one in its tensors' bytes alone."""

    __slots__ = ("_binary", "_inference", "_key", "_service", "_start", "_table", "_template", "_version")

    def __init__(
        self,
        head: RequestHead,
        prefix: bytes,
        *,
        start: int,
        version: str,
        inference: "Inference",
        service: Service,
        template: Template,
    ) -> None:
        self._binary = len(prefix)
        super().__init__(head, prefix, self._binary + template.binary_bytes)
        self._start = start
        self._version = version
        self._inference = inference
        self._service = service
        self._template = template
        self._table: Mapping[Any, Service] = inference.versions if version else inference.services
        self._key: Any = (service.name, version) if version else service.name

    def handle(self, connection: Connection, data: bytes) -> None:
        """Submit it, or start anew where the name is no longer served by this service."""
        service, template = self._service, self._template
        if self._table.get(self._key) is not service:
            connection.repeat = None
            self._inference.infer(connection, self.head, service.name, self._version, data, self._start)
            return
        try:
            connection.pending = service.submit(
                (data[self._binary :],),
                template.n_items,
                template.layout,
                self._inference,
                (connection, template, service),
                template.deadline_s,
            )
        except RequestError as error:
            connection.respond(_error(error))


class Inference:
    """Submits inference requests and answers their connections. The engine's `Sink` for them."""

    def __init__(self, engine: Engine, *, max_body_bytes: int, enveloped: Enveloped | None = None) -> None:
        """Take who asks handlers that speak the protocol themselves, if any may."""
        self._enveloped = enveloped
        self.services = engine.services
        self.versions = engine.versions
        self._engine = engine
        self._max_body_bytes = max_body_bytes

    def infer(
        self, connection: Connection, head: RequestHead, model: str, version: str, data: bytes, start: int
    ) -> None:
        """Take a request whose body is ``data[start:]``; every failure is answered."""
        try:
            service = self._engine.service(model, version)
            memo: ServiceMemo | None = service.memo.get("oip")
            if memo is None:
                memo = service.memo["oip"] = ServiceMemo(service)
            binary = start + (head.inference_header_length or 0)
            template = memo.templates.get(data[start:binary])
            if template is None or head.content_encoding or binary > len(data):
                connection.repeat = None
                self._submit(service, memo, connection, head, data, start)
            else:
                connection.repeat = self._repeat(service, memo, head, version, template, data, start)
                self._submit_binary(service, connection, template, data, binary)
        except RequestError as error:
            connection.respond(_error(error))

    def _repeat(
        self,
        service: Service,
        memo: ServiceMemo,
        head: RequestHead,
        version: str,
        template: Template,
        data: bytes,
        start: int,
    ) -> Repeat | None:
        """Return what to remember of a request, None for one whose like deserves a second look."""
        is_plain = start and head.keep_alive and not head.response_coding and not template.layout.is_ragged
        if not is_plain or len(template.spans) != 1 or template.binary_bytes > COPY_BYTES:
            return None
        prefix = data[: start + (head.inference_header_length or 0)]
        repeat = memo.repeats.get(prefix)
        if repeat is None:
            if len(memo.repeats) >= MEMO_ENTRIES:
                memo.repeats.clear()
            repeat = memo.repeats[prefix] = InferAgain(
                head, prefix, start=start, version=version, inference=self, service=service, template=template
            )
        return repeat

    def _submit(
        self,
        service: Service,
        memo: ServiceMemo,
        connection: Connection,
        head: RequestHead,
        data: bytes,
        start: int,
    ) -> None:
        """Take a request whose JSON part was not seen before, or is not to be remembered."""
        if head.content_encoding and head.content_encoding != "identity":
            data, start = decompressed(data[start:], head.content_encoding, max_bytes=self._max_body_bytes), 0
        if self._enveloped is not None and self._enveloped(service, connection, head, data, start):
            return
        length = head.inference_header_length
        if length is None:
            text, binary = data[start:] if start else data, len(data)
        elif length == 0:
            self._submit_raw(service, connection, data, start)
            return
        else:
            binary = start + length
            if binary > len(data):
                raise InvalidRequest(
                    f"Inference-Header-Content-Length is {length}, but the body has {len(data) - start} bytes"
                )
            text = data[start:binary]
        request = parse_infer_request(text)
        template = make_template(request, service.signature)
        if not template.is_all_binary:
            self._submit_json(service, connection, request, template, data, binary)
            return
        if not template.request_id and len(text) <= MEMO_TEXT_BYTES:
            if len(memo.templates) >= MEMO_ENTRIES:
                memo.templates.clear()
            memo.templates[text] = template
        self._submit_binary(service, connection, template, data, binary)

    def _submit_binary(
        self, service: Service, connection: Connection, template: Template, data: bytes, binary: int
    ) -> None:
        """Take a request whose tensors are ``data[binary:]``."""
        _check_size(len(data) - binary, template.binary_bytes)
        if len(template.spans) == 1:
            few = template.binary_bytes <= COPY_BYTES
            buffers: list[Buffer] = [data[binary:] if few else memoryview(data)[binary:]]
        else:
            view = memoryview(data)
            buffers = [view[binary + s[0] : binary + s[1]] for s in template.spans if s is not None]
        self._enqueue(service, connection, template, buffers)

    def _submit_json(
        self,
        service: Service,
        connection: Connection,
        request: InferRequest,
        template: Template,
        data: bytes,
        binary: int,
    ) -> None:
        given: dict[str, InputTensor] = {tensor.name: tensor for tensor in request.inputs}
        _check_size(len(data) - binary, template.binary_bytes)
        buffers: list[Buffer] = []
        for spec, span in zip(service.signature.inputs, template.spans, strict=True):
            tensor = given[spec.name]
            if span is not None:
                buffers.append(memoryview(data)[binary + span[0] : binary + span[1]])
            else:
                buffers.append(pack_json(spec.name, spec.datatype, tensor.shape, tensor.data or []))
        self._enqueue(service, connection, template, buffers)

    def _submit_raw(self, service: Service, connection: Connection, data: bytes, start: int) -> None:
        """Raw binary request: the whole body is the one input."""
        signature = service.signature
        if len(signature.inputs) != 1 or not (signature.is_static or signature.inputs[0].shape in ((), (1,))):
            raise InvalidRequest("a raw binary request needs a model with one input of a fixed item shape")
        spec = signature.inputs[0]
        size = len(data) - start
        if spec.datatype is DataType.BYTES:
            body = size.to_bytes(4, "little") + data[start:]
            n_items, size = 1, len(body)
        else:
            body = data[start:]
            n_items, rest = divmod(size, spec.item_bytes)
            if rest or not n_items or (not signature.batched and n_items != 1):
                raise InvalidRequest(
                    f"the raw body has {size} bytes, one item of the model has {spec.item_bytes}"
                )
        shape = (n_items, *spec.shape) if signature.batched else spec.shape
        request = parse_infer_request(b'{"inputs":[]}')
        tensor = InputTensor(spec.name, spec.datatype.value, shape, data=[])
        request = InferRequest(inputs=(tensor,), parameters=request.parameters)
        template = make_template(request, signature, default_binary=True)
        self._enqueue(service, connection, template, [body])

    def _enqueue(
        self, service: Service, connection: Connection, template: Template, buffers: list[Buffer]
    ) -> None:
        context = (connection, template, service)
        items = split_items(service, template, buffers) if template.layout.is_ragged else None
        if template.request_id:
            say_request_id(template.request_id)
        if items is not None:
            connection.pending = service.submit_ragged(
                items, template.layout, self, context, template.deadline_s
            )
        else:
            connection.pending = service.submit(
                buffers, template.n_items, template.layout, self, context, template.deadline_s
            )

    # --- Sink -------------------------------------------------------------------------------------

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:
        """Write the response straight from the worker's memory."""
        connection, template, service = request.context
        coding = connection.head.response_coding
        newest = template.newest
        if newest is not None and newest[0] is shapes and not coding:
            connection.respond(newest[1] + outputs[template.outputs[0].index])
            return
        start = template.heads.get(shapes)
        if start is not None and len(template.outputs) == 1:
            template.newest = (shapes, start)
        try:
            response = service.memo["oip"].replies.response(template, outputs, shapes, coding)
        except RequestError as error:
            response = _error(error)
        connection.respond(response)

    def failed(self, request: Request, error: RequestError) -> None:
        """Answer with the error."""
        request.context[0].respond(_error(error))

    def abandoned(self, connection: Connection) -> None:
        """The client is gone: cancel its request."""
        request = connection.pending
        if isinstance(request, Request):  # and not what else this connection may have asked
            request.context[2].cancel(request)


def _check_size(have: int, said: int) -> None:
    if have != said:
        raise InvalidRequest(f"the body has {have} bytes of tensor data, its inputs say {said}")


def _error(error: RequestError) -> bytes:
    status = STATUS.get(error.code, 500)
    return error_response(status, str(error), close=False)


def split_items(service: Service, template: Template, buffers: list[Buffer]) -> list[list[Buffer]]:
    """Of each item, the bytes of each input."""
    columns: list[list[Buffer]] = []
    n = template.n_items
    limit = service.settings.rules.max_queue_items
    if n > limit:  # asked before anything as long is made: items may be of no bytes
        service.statistics.count_refusal(PayloadTooLarge.code)
        raise PayloadTooLarge(f"{n} items are over queue_size = {limit} of model {service.name!r}")
    for spec, shape, buffer in zip(service.signature.inputs, template.shapes, buffers, strict=True):
        count = 1
        for size in shape[1:] if service.signature.batched else shape:
            count *= size
        view = memoryview(buffer)
        if spec.datatype is DataType.BYTES:
            ends = [0, *element_ends(spec.name, view, n * count)][:: max(count, 1)]
            if not count:
                ends = [0] * (n + 1)
            columns.append([view[a:b] for a, b in pairwise(ends)])
        else:
            row = count * spec.datatype.item_bytes
            columns.append([view[k * row : (k + 1) * row] for k in range(n)])
    return [list(item) for item in zip(*columns, strict=True)]
