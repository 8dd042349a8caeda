"""The head process's parts put together: the engine, and the ports that lead to it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from partita.catalogue import Catalogue
from partita.core.errors import MissingExtra
from partita.core.profile import Profile
from partita.engine.engine import Deployment, Engine
from partita.profiles import cached
from partita.protocols.access import Access, Keys
from partita.protocols.door import Door
from partita.protocols.http.asgi import AsgiBridge
from partita.protocols.http.listener import HttpLimits, Listener
from partita.protocols.management import management_application
from partita.protocols.metrics import metrics_route
from partita.protocols.oip.application import Application
from partita.protocols.oip.inference import Inference
from partita.protocols.oip.repository_routes import RepositoryRoutes
from partita.repository import DiskRepository
from partita.settings import GRPC_EXTRA, ServerSettings, Settings
from partita.sources import ModelSource
from partita.system.addresses import Address
from partita.system.clock import SystemClock
from partita.system.cpus import read_topology

if TYPE_CHECKING:
    from partita.protocols.grpc.server import GrpcServer


@dataclass(slots=True)
class Head:
    """Everything that runs on the head's one loop."""

    settings: ServerSettings
    loop: asyncio.AbstractEventLoop
    engine: Engine = field(init=False)
    repository: DiskRepository = field(init=False)
    access: Access = field(init=False)
    """What must be shown by whoever changes the server."""
    catalogue: Catalogue | None = None
    """Where models are found when they are to be loaded later; None = nowhere."""
    ports: dict[str, Address] = field(default_factory=dict)
    """Where each port really listens, by its setting's name."""
    _listeners: list[Listener] = field(default_factory=list)
    _bridges: list[AsgiBridge] = field(default_factory=list)
    _grpc: "GrpcServer | None" = None

    def __post_init__(self) -> None:
        self.engine = Engine(self.loop)
        catalogue = self.catalogue or Catalogue(paths=(), settings=Settings(server=self.settings))
        self.repository = DiskRepository(self.engine, catalogue, _kept_profile, self.loop)
        self.access = self._access()

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
        is_managed = settings.management is not None
        repository = RepositoryRoutes(self.repository, self.access if is_managed else None)
        app = Application(self.engine).starlette(repository.routes())
        inference = Inference(self.engine, max_body_bytes=settings.max_body_bytes)
        bridge = self._bridge(app)
        if settings.http is not None:
            await self._listen("http", settings.http, Door(inference, bridge))
        if settings.management is not None:
            management = management_application(repository.routes(), self.access)
            await self._listen("management", settings.management, self._bridge(management))
        if settings.metrics is not None:
            metrics = Starlette(routes=[metrics_route(self.engine)])
            await self._listen("metrics", settings.metrics, self._bridge(metrics))
        if settings.grpc is not None:
            await self._listen_grpc(settings.grpc)

    def _access(self) -> Access:
        settings = self.settings
        lifetime_s = settings.token_expiration_min * 60
        keys = (
            Keys(SystemClock(), lifetime_s=lifetime_s, fixed=settings.token) if settings.token_auth else None
        )
        open_at = (settings.http, settings.management)
        own = {address.host.lower() for address in open_at if address is not None}
        return Access(keys=keys, hosts=frozenset(own | {host.lower() for host in settings.allowed_hosts}))

    async def _listen_grpc(self, address: Address) -> None:
        try:
            from partita.protocols.grpc.methods import GrpcRepository
            from partita.protocols.grpc.server import GrpcServer
        except ImportError:
            raise MissingExtra(GRPC_EXTRA) from None
        is_managed = self.settings.management is not None
        repository = GrpcRepository(self.repository, self.access if is_managed else None)
        self._grpc = GrpcServer(self.engine, repository, self._limits(), self.loop)
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
        await self.repository.close()
        await self.engine.stop(grace_s)
        for listener in self._listeners:
            await listener.close()
        if self._grpc is not None:
            await self._grpc.close()
        for bridge in self._bridges:
            await bridge.close()


def _kept_profile(source: ModelSource, cores: tuple[int, ...]) -> Profile | None:  # noqa: ARG001
    """Return what is known of a model that is loaded while others serve: measuring would disturb them."""
    return cached(source, read_topology())
