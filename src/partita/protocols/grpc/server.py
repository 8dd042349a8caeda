"""The gRPC port: a server on the head's own loop.

The library's loop that accepts calls ends at a path that is not UTF-8, and its server with it. Then another
one is opened in its place, while the calls that the first has taken go on.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

import grpc
import grpc.aio

from partita.core.errors import InvalidInput
from partita.engine.engine import Engine
from partita.protocols.grpc import health
from partita.protocols.grpc.handlers import at_once, unary
from partita.protocols.grpc.inference import GrpcInference
from partita.protocols.grpc.messages import CLASSES
from partita.protocols.grpc.methods import GrpcMethods, GrpcRepository
from partita.protocols.grpc.observed import GrpcObserved
from partita.protocols.grpc.schema import SERVICE
from partita.protocols.grpc.torchserve import TorchServeGrpc
from partita.protocols.http.listener import HttpLimits
from partita.protocols.oip.run_settings import RunSettings
from partita.system.addresses import Address
from partita.system.certificates import Certificate

log = logging.getLogger("partita")

UNLIMITED = -1
OLD_CALLS_S = 300.0
"""How long calls may go on that were taken by a server whose loop has ended."""
OPEN_AGAIN_S = 0.02
"""Between tries to open the port again."""
_ACCEPTING = "_server_main_loop"
"""What the library calls its loop that accepts calls."""


class GrpcServer:
    """Answers the Open Inference Protocol, TorchServe's services and health checks on every address."""

    def __init__(
        self,
        engine: Engine,
        repository: GrpcRepository,
        torchserve: TorchServeGrpc,
        run: RunSettings,
        limits: HttpLimits,
        loop: asyncio.AbstractEventLoop,
        *,
        tls: Certificate | None = None,
        is_observed: bool = False,
    ) -> None:
        self._engine = engine
        self._tls = tls
        self._interceptors = (GrpcObserved(),) if is_observed else ()
        self._repository = repository
        self._torchserve = torchserve
        self._run = run
        self._limits = limits
        self._loop = loop
        self._server: grpc.aio.Server | None = None
        self._addresses: Sequence[Address] = ()
        self._old: set[grpc.aio.Server] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, addresses: Sequence[Address]) -> list[Address]:
        """Listen; returns where, with a free port for 0. Raises `InvalidInput` for one that is taken."""
        self._addresses = await self._open(addresses)
        return list(self._addresses)

    async def _open(self, addresses: Sequence[Address]) -> list[Address]:
        server = grpc.aio.server(options=_options(self._limits), interceptors=self._interceptors)
        server.add_generic_rpc_handlers(self._handlers())
        bound = [Address(address.host, self._bind(server, address)) for address in addresses]
        others = asyncio.all_tasks()
        await server.start()
        self._server = server
        for task in asyncio.all_tasks() - others:
            if getattr(task.get_coro(), "__qualname__", "").endswith(_ACCEPTING):
                task.add_done_callback(partial(self._ended, server))
        return bound

    def _bind(self, server: grpc.aio.Server, address: Address) -> int:
        host, port = address.host, address.port
        try:
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if self._tls is None:
                return int(server.add_insecure_port(place))
            return int(server.add_secure_port(place, _credentials(self._tls)))
        except RuntimeError as error:
            raise InvalidInput(f"cannot listen on {host}:{port} for gRPC: {error}") from error

    def _ended(self, server: grpc.aio.Server, accepting: "asyncio.Task[None]") -> None:
        """Nobody accepts calls any more."""
        if server is not self._server or accepting.cancelled() or accepting.exception() is None:
            return
        log.warning("a call that is none of gRPC's has ended its server (%s)", accepting.exception())
        self._server = None
        for step in (self._open_again(), self._see_off(server)):
            task = self._loop.create_task(step)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open_again(self) -> None:
        while True:
            try:
                await self._open(self._addresses)
            except InvalidInput:  # the old one is about to leave it
                await asyncio.sleep(OPEN_AGAIN_S)
            else:
                return

    async def _see_off(self, server: grpc.aio.Server) -> None:
        """Let the calls of a server go on that accepts none any more."""
        self._old.add(server)
        await asyncio.sleep(OPEN_AGAIN_S)  # it is the library that shuts it down
        await server.stop(OLD_CALLS_S)
        self._old.discard(server)

    async def close(self) -> None:
        """End what calls are left, and the port."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        servers = [*self._old, *([] if self._server is None else [self._server])]
        self._server = None
        self._old.clear()
        await asyncio.gather(*(server.stop(0) for server in servers))

    def _handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        inference = GrpcInference(self._engine, self._loop, max_body_bytes=self._limits.max_body_bytes)
        known = GrpcMethods(self._engine, self._run).by_name()
        methods = {name: at_once(method) for name, method in known.items()}
        handlers = {
            name: unary(CLASSES[f"{name}Request"], method)
            for name, method in {**methods, **self._repository.by_name()}.items()
        }
        handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(inference.infer)
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(inference.stream)
        check = unary(health.CLASSES["HealthCheckRequest"], at_once(health.GrpcHealth(self._engine).check))
        return (
            grpc.method_handlers_generic_handler(SERVICE, handlers),
            grpc.method_handlers_generic_handler(health.SERVICE, {"Check": check}),
            *self._torchserve.handlers(),
        )


def _credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """Return credentials that take a renewed certificate for new connections."""

    def configuration() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([certificate.pem], certificate.client_ca)

    last = certificate.pem

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal last
        if certificate.pem is last:
            return None
        last = certificate.pem
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(), fetch, require_client_authentication=certificate.client_ca is not None
    )


def _options(limits: HttpLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a port that is taken is an error, not shared
        ("grpc.max_receive_message_length", limits.max_body_bytes),
        ("grpc.max_send_message_length", UNLIMITED),
        ("grpc.max_metadata_size", limits.max_header_bytes),
        ("grpc.max_connection_idle_ms", int(limits.idle_timeout_s * 1000)),
    ]
