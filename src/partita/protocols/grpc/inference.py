"""Inference over gRPC: one call with one answer, and Triton's stream of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from partita.core.errors import DeadlineExceeded, PayloadTooLarge, RequestError
from partita.engine.engine import Engine
from partita.engine.observing import say_request_id
from partita.engine.request import Buffer, Request, Shapes
from partita.engine.service import Service
from partita.protocols.grpc.replies import GrpcReplies, stream_error, stream_response
from partita.protocols.grpc.requests import Parsed, names_of, order_of, ordered, parse, split
from partita.protocols.grpc.status import status_of
from partita.protocols.oip.inference import MEMO_ENTRIES, MEMO_TEXT_BYTES, split_items
from partita.protocols.oip.templates import Template, make_template

STREAM_REQUESTS = 64
"""Most requests of one stream in hand; the next one is read when the first of them is answered."""


class GrpcMemo:
    """What this protocol derived from one service's signature."""

    __slots__ = ("known", "replies")

    def __init__(self, service: Service) -> None:
        self.replies = GrpcReplies(service)
        self.known: dict[bytes, tuple[Template, tuple[int, ...]]] = {}
        """By all that a request says but its data: its template, and the place of each input in it."""

    @classmethod
    def of(cls, service: Service) -> "GrpcMemo":
        """Return the service's own."""
        memo: GrpcMemo | None = service.memo.get("grpc")
        if memo is None:
            memo = service.memo["grpc"] = cls(service)
        return memo


class Call:
    """One request in the engine; its `Sink`."""

    __slots__ = ("_is_typed", "_replies", "_request", "answer", "service", "template")

    def __init__(
        self,
        service: Service,
        replies: GrpcReplies,
        template: Template,
        answer: "asyncio.Future[bytes | RequestError]",
        *,
        is_typed: bool,
    ) -> None:
        self.service = service
        self.template = template
        self.answer = answer
        """The response message, or what kept it from coming."""
        self._replies = replies
        self._is_typed = is_typed
        self._request: Request | None = None

    def submit(self, buffers: list[Buffer], left_s: float | None) -> None:
        """Hand it to the engine, to be answered before the first of its deadlines. Raises `RequestError`."""
        service, template = self.service, self.template
        limits = (left_s, template.deadline_s or service.settings.deadline_s)
        deadline_s = min((limit for limit in limits if limit is not None), default=None)
        items = split_items(service, template, buffers) if template.layout.is_ragged else None
        say_request_id(template.request_id)  # also none: the requests of a stream share what is said of them
        if items is not None:
            self._request = service.submit_ragged(items, template.layout, self, None, deadline_s)
        else:
            self._request = service.submit(buffers, template.n_items, template.layout, self, None, deadline_s)

    def cancel(self) -> None:
        """The client is gone: nothing happens if the request has ended."""
        if self._request is not None:
            self.service.cancel(self._request)

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:  # noqa: ARG002
        """Write the response straight from the worker's memory."""
        try:
            response = self._replies.response(self.template, outputs, shapes, typed=self._is_typed)
        except RequestError as error:
            self._end(error)
        else:
            self._end(response)

    def failed(self, request: Request, error: RequestError) -> None:  # noqa: ARG002
        """End with the error."""
        self._end(error)

    def _end(self, outcome: bytes | RequestError) -> None:
        if not self.answer.done():
            self.answer.set_result(outcome)


class GrpcInference:
    """``ModelInfer`` and ``ModelStreamInfer`` over one engine; messages in and out are bytes."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, *, max_body_bytes: int) -> None:
        self._engine = engine
        self._loop = loop
        self._max_body_bytes = max_body_bytes
        self._names: dict[bytes, tuple[str, str]] = {}
        """Model and version that a request names, by all that it says but its data."""

    async def infer(self, data: bytes, context: Any) -> bytes:
        """Answer one request; it ends with the client's deadline, or when the client cancels."""
        call: Call | None = None
        try:
            call = self._submit(data, context.time_remaining())
            outcome = await call.answer
        except asyncio.CancelledError:
            if call is not None:
                call.cancel()
            raise
        except RequestError as error:
            outcome = error
        if isinstance(outcome, RequestError):
            await context.abort(status_of(outcome), str(outcome))
            raise outcome  # `abort` has raised
        return outcome

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Answer the requests of a stream, in their order; an error concerns only its own request."""
        calls: asyncio.Queue[Call | bytes | None] = asyncio.Queue(STREAM_REQUESTS)
        in_hand: set[Call] = set()
        reading = self._loop.create_task(self._read(requests, context, calls, in_hand))
        try:
            while (call := await calls.get()) is not None:
                if isinstance(call, Call):
                    outcome = await call.answer
                    in_hand.discard(call)
                    await context.write(_streamed(call, outcome))
                else:
                    await context.write(call)
            await reading
        finally:
            reading.cancel()
            for call in in_hand:
                call.cancel()

    async def _read(
        self,
        requests: AsyncIterator[bytes],
        context: Any,
        calls: "asyncio.Queue[Call | bytes | None]",
        in_hand: set[Call],
    ) -> None:
        """Submit what comes; an item of the queue is a request's call, or at once its error."""
        try:
            async for data in requests:
                try:
                    call = self._submit(data, context.time_remaining())
                except RequestError as error:
                    await calls.put(stream_error(str(error), *names_of(data)))
                else:
                    in_hand.add(call)
                    await calls.put(call)
        finally:
            await calls.put(None)

    # --- one request ------------------------------------------------------------------------------

    def _submit(self, data: bytes, left_s: float | None) -> Call:
        """Hand a request to the engine. `left_s` is what is left of the call's deadline."""
        limit = self._max_body_bytes
        if len(data) > limit:  # gRPC refuses it by itself, unless it was compressed
            raise PayloadTooLarge(f"the message of {len(data)} bytes is over max_body_bytes = {limit}")
        if left_s is not None and left_s <= 0:
            raise DeadlineExceeded("the call's deadline passed before its request was read")
        parts = split(data)
        if parts is None:
            return self._new(parse(data), None, left_s)
        prefix, raws = parts
        name = self._names.get(prefix)
        if name is not None:
            service = self._engine.service(*name)
            memo = GrpcMemo.of(service)
            known = memo.known.get(prefix)
            if known is not None:
                buffers = ordered(raws, known[1], known[0], service.signature)
                return self._call(service, memo, known[0], buffers, left_s)
        return self._new(parse(prefix, raws), prefix, left_s)

    def _new(self, parsed: Parsed, prefix: bytes | None, left_s: float | None) -> Call:
        """Take a request whose like was not seen before, or is not to be remembered."""
        service = self._engine.service(parsed.model, parsed.version)
        memo = GrpcMemo.of(service)
        template = make_template(parsed.request, service.signature)
        order = order_of(parsed.request, service.signature)
        if prefix is not None and not template.request_id and len(prefix) <= MEMO_TEXT_BYTES:
            self._remember(prefix, parsed, memo, template, order)
        buffers = ordered(parsed.data, order, template, service.signature)
        return self._call(service, memo, template, buffers, left_s, is_typed=parsed.is_typed)

    def _remember(
        self, prefix: bytes, parsed: Parsed, memo: GrpcMemo, template: Template, order: tuple[int, ...]
    ) -> None:
        for table in (memo.known, self._names):
            if len(table) >= MEMO_ENTRIES:
                table.clear()
        memo.known[prefix] = template, order
        self._names[prefix] = parsed.model, parsed.version

    def _call(
        self,
        service: Service,
        memo: GrpcMemo,
        template: Template,
        buffers: list[Buffer],
        left_s: float | None,
        *,
        is_typed: bool = False,
    ) -> Call:
        call = Call(service, memo.replies, template, self._loop.create_future(), is_typed=is_typed)
        call.submit(buffers, left_s)
        return call


def _streamed(call: Call, outcome: bytes | RequestError) -> bytes:
    if isinstance(outcome, RequestError):
        return stream_error(str(outcome), call.service.name, call.template.request_id)
    return stream_response(outcome)
