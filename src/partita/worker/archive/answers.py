"""From elements of a BYTES tensor to what a handler gets, and from what it returns to elements."""

import io
import json
import sys
from collections.abc import Sequence
from typing import Any

from partita.core.errors import InferenceFailed
from partita.wire.archive_call import Answer, Call, Field, pack_answer
from partita.worker.archive.ts.context import Context, RequestProcessor

NOT_A_LIST = "Invalid model predict output"
MISMATCHED = "number of batch response mismatched"
UNSUPPORTED = "Unsupported model output data type."
_SUCCESS = 200


def row_of(call: Call, *, decodes: bool) -> tuple[dict[str, Any], RequestProcessor]:
    """Return one request as the handler gets it, and its headers; those of a field under the field's name."""
    row: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    for field in call.fields:
        row[field.name] = _decoded(field) if decodes else bytearray(field.value)
        headers[field.name] = {"content-type": field.content_type}
    headers.update(call.headers)
    return row, RequestProcessor(headers)


def body_call(element: bytes) -> Call:
    """Return the call that a body alone stands for."""
    return Call("", (Field("body", "", element),))


def _decoded(field: Field) -> Any:
    """Return JSON and text as what they are, anything else as bytes."""
    kind = field.content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            return json.loads(field.value)
        if kind.startswith("text/"):
            return field.value.decode("utf-8")
    except (ValueError, RecursionError):
        pass  # as the handler may know what to do with
    return bytearray(field.value)


def checked(returned: Any, count: int) -> list[Any]:
    """Return what a handler returned. Raises `InferenceFailed` if that is not an answer for each request."""
    if not isinstance(returned, list):
        raise InferenceFailed(NOT_A_LIST)
    if len(returned) != count:
        raise InferenceFailed(MISMATCHED)
    return returned


def answer_of(value: Any, context: Context, index: int, before: bytes = b"") -> Answer:
    """Return one answer, with the status and headers that the handler has set for it.

    `before` is what was kept of it as it came in parts.
    """
    body, kind = encoded(value)
    body = before + body
    status, _ = context.get_response_status(index)
    headers = dict(context.get_response_headers(index))
    kind = next((headers.pop(key) for key in list(headers) if key.lower() == "content-type"), kind)
    return Answer(body, status, kind, tuple(headers.items()))


def encoded(value: Any) -> tuple[bytes, str]:
    """Return an answer's bytes and media type, empty where the value does not tell it."""
    if isinstance(value, bytes | bytearray):
        return bytes(value), ""
    if isinstance(value, str):
        return value.encode("utf-8"), "text/plain"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        return buffer.getvalue(), "application/octet-stream"
    try:
        return json.dumps(value, indent=2).encode("utf-8"), "application/json"
    except (TypeError, ValueError, RecursionError):
        raise InferenceFailed(UNSUPPORTED) from None


def elements_of(answers: Sequence[Answer], wrapped: Sequence[bool]) -> list[bytes]:
    """Return answers as elements; one to a body alone is a body alone.

    Raises `InferenceFailed` for such an answer whose status says that it failed.
    """
    elements = []
    for answer, is_wrapped in zip(answers, wrapped, strict=True):
        if is_wrapped:
            elements.append(pack_answer(answer))
        elif answer.status >= 400 or answer.error:
            raise InferenceFailed(answer.error or f"the handler answered with status {answer.status}")
        else:
            elements.append(answer.body)
    return elements
