"""Archives as TorchServe's doors ask them: a request as a call of the handler, its answer as a response."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from partita.core.errors import InferenceFailed, PartitaError
from partita.engine.request import Buffer
from partita.engine.service import Service
from partita.protocols.torchserve.fields import Part
from partita.protocols.torchserve.replies import pretty
from partita.protocols.torchserve.tensors import Asked
from partita.wire.archive_call import INPUT, RUNTIME, Answer, Call, Field, pack_call, unpack_answer

_LENGTH_BYTES = 4
_OWN = frozenset({"content-length", "transfer-encoding", "connection", "content-encoding", "date", "server"})
"""Headers that the server sets, whatever a handler wants."""


def is_archive(service: Service) -> bool:
    """Whether a service is an archive, which gets what HTTP said and answers what HTTP is to say."""
    return service.member.launch.runtime == RUNTIME


def speaks_oip(service: Service) -> bool:
    """Whether a service is an archive whose handler is asked by the Open Inference Protocol's own JSON."""
    launch = service.member.launch
    return launch.runtime == RUNTIME and launch.options.get("envelope") == "kservev2"


def asked_archive(
    service: Service,
    request_id: str,
    parts: Iterable[Part],
    headers: Sequence[tuple[str, str]],
    *,
    takes_parts: bool = False,
) -> Asked:
    """Return a request to an archive: the body's parts, and the headers.

    `takes_parts` = its sink is a `PartSink`, which gets parts of the answer as soon as they are told.
    """
    fields = tuple(Field(part.name, part.content_type, part.value) for part in parts)
    element = pack_call(Call(request_id, fields, tuple(headers), takes_parts=takes_parts))
    return Asked(service.signature, {INPUT: [element]}, service.memo.setdefault("torchserve", {}))


def answer_in(outputs: Sequence[Buffer]) -> Answer:
    """Return the one answer that an archive's worker wrote. Raises `InferenceFailed` for what is none."""
    try:
        return unpack_answer(memoryview(outputs[0])[_LENGTH_BYTES:])
    except (msgspec.DecodeError, ValueError, IndexError):
        raise InferenceFailed("the worker's answer cannot be read") from None


def response_of(answer: Answer) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Return status, body, and headers with the media type first."""
    status = answer.status if 100 < answer.status < 1000 else 500
    if answer.error:
        status = 507 if status == 413 else status
        document = {"code": status, "type": "InternalServerException", "message": answer.error}
        return status, pretty(document), [("content-type", "application/json")]
    kind = answer.content_type or _media_of(answer.body)
    headers = [("content-type", _clean(kind))]
    headers += [(_clean(name), _clean(value)) for name, value in answer.headers if _may_be_set(name)]
    return status, answer.body, headers


class HandlerStatus(PartitaError):
    """A handler answered with a status that says that it failed."""

    code = "handler_status"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def content_of(answer: Answer) -> bytes:
    """Return an answer's body. Raises `HandlerStatus` where its status says that it failed."""
    status, body, _ = response_of(answer)
    if status >= 400:
        raise HandlerStatus(status, answer.error or body[:1000].decode("utf-8", "replace"))
    return body


def document_of(answer: Answer) -> Any:
    """Return an answer's JSON as what it says, or its text."""
    try:
        return msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        return answer.body.decode("utf-8", "replace")


def header_list(given: Mapping[str, str] | Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return headers as a list, without what proves who sent them."""
    pairs = given.items() if isinstance(given, Mapping) else given
    return [(name, value) for name, value in pairs if name.lower() != "authorization"]


def _may_be_set(name: str) -> bool:
    return name.lower() not in _OWN and name.replace("-", "").replace("_", "").isalnum()


def _clean(text: str) -> str:
    """Return text that can be a header's: no end of a line in it."""
    return "".join(ch for ch in text if ch.isprintable()).encode("latin-1", "replace").decode("latin-1")


def _media_of(body: bytes) -> str:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain"
