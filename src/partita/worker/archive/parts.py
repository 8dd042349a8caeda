"""Answers that a handler tells in parts: sent at once to who wants that, kept for the others."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from partita.wire.archive_call import Answer, pack_answer
from partita.wire.messages import PART_BYTES
from partita.worker.archive.answers import answer_of
from partita.worker.archive.ts.context import Context
from partita.worker.runtimes.interface import SendPart

ATTRIBUTE = "partita_parts"
"""Of the context, where ``send_intermediate_predict_response`` finds this."""


class Parts:
    """Takes parts of answers while the handler has a batch at hand; later ones are nobody's."""

    def __init__(
        self, context: Context, takes_parts: Sequence[bool], send: SendPart | None, first: int
    ) -> None:
        self._context = context
        self._takes_parts = takes_parts
        """Of each request of the batch."""
        self._send = send
        self._first = first
        """Item of the execution that the batch begins with."""
        self._kept: dict[int, list[bytes]] = {}

    def __enter__(self) -> Self:
        setattr(self._context, ATTRIBUTE, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setattr(self._context, ATTRIBUTE, None)

    def take(self, index: int, value: Any) -> None:
        """Take a part of one request's answer. Raises `InferenceFailed` for what cannot be one."""
        answer = answer_of(value, self._context, index)
        if self._send is None or not self._takes_parts[index]:
            self._kept.setdefault(index, []).append(answer.body)
            return
        for start in range(0, len(answer.body), PART_BYTES):
            piece = answer.body[start : start + PART_BYTES]
            part = Answer(piece, answer.status, answer.content_type, answer.headers)
            self._send(self._first + index, pack_answer(part))

    def kept(self, index: int) -> bytes:
        """Return what is still to be answered of the parts of one request."""
        return b"".join(self._kept.get(index, ()))
