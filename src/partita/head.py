"""The head process's parts put together: the engine, and the ports that lead to it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from partita.core.errors import MissingExtra
from partita.engine.engine import Deployment, Engine
from partita.protocols.door import Door
from partita.protocols.http.asgi import AsgiBridge
from partita.protocols.http.listener import HttpLimits, Listener
from partita.protocols.metrics import metrics_route
from partita.protocols.oip.application import Application
from partita.protocols.oip.inference import Inference
from partita.settings import GRPC_EXTRA, ServerSettings
from partita.system.addresses import Address

if TYPE_CHECKING:
    from partita.protocols.grpc.server import GrpcServer


@dataclass(slots=True)
class Head:
    """Everything that runs on the head's one loop."""

    settings: ServerSettings
    loop: asyncio.AbstractEventLoop
    engine: Engine = field(init=False)
    ports: dict[str, Address] = field(default_factory=dict)
    """Where each port really listens, by its setting's name."""
    _listeners: list[Listener] = field(default_factory=list)
    _bridges: list[AsgiBridge] = field(default_factory=list)
    _grpc: "GrpcServer | None" = None

    def __post_init__(self) -> None:
        self.engine = Engine(self.loop)

    async def start(self, deployments: Sequence[Deployment], *, ports: bool = True) -> None:
        """Start the workers, open the ports, and wait until every model can answer.

        Raises `ModelUnavailable` for a model that cannot be loaded and `InvalidInput` for a port that is
        taken; `stop` is needed after either.
        """
        if ports:
            await self._open_ports()
        for deployment in deployments:
            self.engine.add(deployment)
        await self.engine.until_ready()

    async def _open_ports(self) -> None:
        settings = self.settings
        app = Application(self.engine).starlette()
        inference = Inference(self.engine, max_body_bytes=settings.max_body_bytes)
        bridge = self._bridge(app)
        if settings.http is not None:
            await self._listen("http", settings.http, Door(inference, bridge))
        if settings.metrics is not None:
            metrics = Starlette(routes=[metrics_route(self.engine)])
            await self._listen("metrics", settings.metrics, self._bridge(metrics))
        if settings.grpc is not None:
            await self._listen_grpc(settings.grpc)

    async def _listen_grpc(self, address: Address) -> None:
        try:
            from partita.protocols.grpc.server import GrpcServer
        except ImportError:
            raise MissingExtra(GRPC_EXTRA) from None
        self._grpc = GrpcServer(self.engine, self._limits(), self.loop)
        port = await self._grpc.start(address.host, address.port)
        self.ports["grpc"] = Address(address.host, port)

    def _bridge(self, app: Starlette) -> AsgiBridge:
        bridge = AsgiBridge(app, self.loop)
        self._bridges.append(bridge)
        return bridge

    async def _listen(self, name: str, address: Address, handler: Door | AsgiBridge) -> None:
        listener = Listener(handler, self._limits(), self.loop)
        self._listeners.append(listener)
        port = await listener.start(address.host, address.port)
        self.ports[name] = Address(address.host, port)

    def _limits(self) -> HttpLimits:
        settings = self.settings
        return HttpLimits(
            max_body_bytes=settings.max_body_bytes,
            max_header_bytes=settings.max_header_bytes,
            max_connections=settings.max_connections,
            idle_timeout_s=settings.idle_timeout_s,
            header_timeout_s=settings.header_timeout_s,
            body_timeout_s=settings.body_timeout_s,
        )

    async def stop(self, grace_s: float) -> None:
        """Refuse new work, answer what was accepted, end the workers, close the ports."""
        for listener in self._listeners:
            listener.is_draining = True
        await self.engine.stop(grace_s)
        for listener in self._listeners:
            await listener.close()
        if self._grpc is not None:
            await self._grpc.close()
        for bridge in self._bridges:
            await bridge.close()
