"""Where calls are observed: what gRPC says of each is there while it is handed to the engine."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from partita.engine.observing import INCOMING, Incoming
from partita.protocols.observed import name_of


class GrpcObserved(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Reads the metadata of each call, in the task that then answers it."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler]], details: Any
    ) -> grpc.RpcMethodHandler:
        """Let the call go on, with its name and its trace."""
        said = {key: value for key, value in details.invocation_metadata or () if isinstance(value, str)}
        incoming = Incoming(
            "grpc",
            name_of(said.get("x-request-id", "")),
            traceparent=said.get("traceparent", ""),
            tracestate=said.get("tracestate", ""),
        )
        INCOMING.set(incoming)
        return await continuation(details)
