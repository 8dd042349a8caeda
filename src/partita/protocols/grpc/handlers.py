"""One call with one answer, as a handler: bytes to a message, a message to bytes, errors to statuses."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from partita.core.errors import PartitaError
from partita.protocols.grpc.status import status_of

Method = Callable[[Any], Any]
"""From a request message to its response message; raises `PartitaError`."""
AsyncMethod = Callable[[Any, str | None], Awaitable[Any]]
"""The same, waited for, with the call's ``authorization``."""
TimedMethod = Callable[[Any, str | None, float | None], Awaitable[Any]]
"""The same, with what is left of the call's deadline, seconds."""
StreamMethod = Callable[[Any, str | None, float | None], AsyncGenerator[Any, None]]
"""The same, with several responses, each as soon as it is there."""
StatusOf = Callable[[PartitaError], tuple[grpc.StatusCode, str]]
"""The status and text that an error is answered with."""


def _ours(error: PartitaError) -> tuple[grpc.StatusCode, str]:
    return status_of(error), str(error)


def unary(
    message: Any, method: AsyncMethod | TimedMethod, *, says: StatusOf = _ours, is_timed: bool = False
) -> grpc.RpcMethodHandler:
    """Return a handler; `message` is the class of its requests."""

    async def answer(data: bytes, context: Any) -> bytes:
        more = (context.time_remaining(),) if is_timed else ()
        request = await _parsed(message, data, context)
        try:
            response = await method(request, _authorization(context), *more)
        except PartitaError as error:
            await context.abort(*says(error))
        packed: bytes = response.SerializeToString()
        return packed

    return grpc.unary_unary_rpc_method_handler(answer)


def one_to_many(message: Any, method: StreamMethod, *, says: StatusOf = _ours) -> grpc.RpcMethodHandler:
    """Return a handler whose method yields responses one by one."""

    async def answer(data: bytes, context: Any) -> None:
        request = await _parsed(message, data, context)
        try:
            async with aclosing(
                method(request, _authorization(context), context.time_remaining())
            ) as responses:
                async for response in responses:
                    await context.write(response.SerializeToString())
        except PartitaError as error:
            await context.abort(*says(error))

    return grpc.unary_stream_rpc_method_handler(answer)


async def _parsed(message: Any, data: bytes, context: Any) -> Any:
    """Return a call's request, or end the call where its bytes are none."""
    try:
        return message.FromString(data)
    except DecodeError:
        name = message.DESCRIPTOR.name
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message is not a {name}")


def _authorization(context: Any) -> str | None:
    given = {key: value for key, value in context.invocation_metadata() or () if key == "authorization"}
    return given.get("authorization")


def at_once(method: Method) -> AsyncMethod:
    """Return a method that needs no waiting as one that is waited for."""

    async def answer(request: Any, authorization: str | None) -> Any:  # noqa: ARG001
        return method(request)

    return answer
