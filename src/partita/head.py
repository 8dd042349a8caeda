"""The head process's parts put together: the engine, and the ports that lead to it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partita.adaptation import Adaptation
from partita.catalogue import Catalogue
from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.cores import CoreWatch
from partita.engine.engine import Deployment, Engine
from partita.engine.observing import Reporter, RequestObserver
from partita.logs import RequestLog
from partita.machines.tuning_pace import PaceRules
from partita.ports import Ports
from partita.profiles import cached
from partita.protocols.access import Access, Keys
from partita.repository import DiskRepository
from partita.settings import ServerSettings, Settings
from partita.sharing import CoreSharing
from partita.sources import ModelSource
from partita.system.addresses import Address
from partita.system.clock import SystemClock
from partita.system.cpus import read_topology
from partita.tuning import Tuning

if TYPE_CHECKING:
    from partita.tracing import Tracer


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
    sources: Sequence[ModelSource] = ()
    """Where the models come from that are served from the start, to be measured beside their traffic."""
    topology: Topology | None = None
    """The machine before the head was pinned to cores of its own; None = as it is now."""
    adaptation: Adaptation = field(init=False)
    """Plans that follow the load, or a user's word."""
    sharing: CoreSharing = field(init=False)
    """Divides the cores among the models."""
    tuning: Tuning | None = field(init=False)
    """Measures models that have no profile while they serve; None where that is not wanted."""
    _tracer: "Tracer | None" = field(init=False)
    _cores: CoreWatch = field(init=False)
    _ports: Ports = field(init=False)

    def __post_init__(self) -> None:
        first = self.topology or read_topology()
        self._tracer = _tracer(self.settings)
        self.engine = Engine(self.loop, observer=_observer(self.settings, self._tracer))
        catalogue = self.catalogue or Catalogue(paths=(), settings=Settings(server=self.settings))
        self.access = self._access()
        self.adaptation = Adaptation(
            self.engine,
            self.loop,
            adapts=self.settings.adapt,
            warm_bytes=self.settings.warm_memory_bytes,
            topology=first,
            has_head_cores=bool(self.settings.head_cores),
        )
        self.sharing = CoreSharing(self.engine, self.adaptation, self.loop, self.settings)
        self._cores = CoreWatch(self.sharing, self.loop, self.settings, first=first)
        self.repository = DiskRepository(
            self.engine, catalogue, self._kept_profile, self.loop, self._cores.topology
        )
        self.tuning = self._tuning() if self.settings.tune == "background" else None
        self._ports = Ports(
            self.settings, self.engine, self.repository, self.access, self.adaptation, self.loop
        )

    @property
    def ports(self) -> dict[str, Address]:
        """Where each port really listens, by its setting's name."""
        return self._ports.addresses

    @property
    def scheme(self) -> str:
        """``http`` or ``https``: what the ports speak, gRPC aside."""
        return self._ports.scheme

    async def start(
        self,
        deployments: Sequence[Deployment],
        *,
        ports: bool = True,
        opened: Callable[[], None] | None = None,
    ) -> None:
        """Start the workers, open the ports, and wait until every model can answer.

        `opened` is called once the ports are open.
        Raises `ModelUnavailable` for a model that cannot be loaded and `InvalidInput` for a port that is
        taken; `stop` is needed after either.
        """
        for deployment in deployments:  # before anybody can ask: a server of no models is ready
            self.engine.add(deployment)
        if ports:
            await self._ports.open()
        if opened is not None:
            opened()
        await self.engine.until_ready()
        self.adaptation.start()
        self.sharing.start()
        self._cores.start()
        if self.tuning is not None:
            self.tuning.start()

    def _tuning(self) -> Tuning:
        settings = self.settings
        tuning = Tuning(
            self.engine,
            self.adaptation,
            self.loop,
            budget_s=settings.tune_budget_s,
            rules=PaceRules(max_slowdown=settings.tune_slowdown),
            sample_bytes=settings.tune_sample_bytes,
        )
        for source in self.sources:
            tuning.know(source)
        return tuning

    def _kept_profile(self, source: ModelSource, cores: tuple[int, ...]) -> Profile | None:  # noqa: ARG002
        """Return what is known of a model that is loaded while others serve; measuring is for later."""
        if self.tuning is not None:
            self.tuning.know(source)
        return cached(source, self._cores.topology())

    def _access(self) -> Access:
        settings = self.settings
        lifetime_s = settings.token_expiration_min * 60
        keys = (
            Keys(SystemClock(), lifetime_s=lifetime_s, fixed=settings.token) if settings.token_auth else None
        )
        open_at = (settings.http, settings.management)
        own = {address.host.lower() for address in open_at if address is not None}
        return Access(
            keys=keys,
            hosts=frozenset(own | {host.lower() for host in settings.allowed_hosts}),
            origins=frozenset(settings.cors_origins),
        )

    async def stop(self, grace_s: float) -> None:
        """Refuse new work, answer what was accepted, end the workers, close the ports."""
        self._ports.drain()
        await self._cores.stop()
        await self.sharing.stop()
        if self.tuning is not None:
            await self.tuning.stop()
        await self.adaptation.stop()
        await self.repository.close()
        await self.engine.stop(grace_s)
        await self._ports.close()
        if self._tracer is not None:
            await self.loop.run_in_executor(None, self._tracer.close)


def _tracer(settings: ServerSettings) -> "Tracer | None":
    if settings.tracing is None:
        return None
    from partita.tracing import Tracer, sending_provider  # which few need

    return Tracer(sending_provider(settings.tracing, settings.trace_sampling), SystemClock())


def _observer(settings: ServerSettings, tracer: "Tracer | None") -> RequestObserver | None:
    reporters: list[Reporter] = [] if tracer is None else [tracer]
    if settings.log_requests:
        reporters.append(RequestLog())
    return RequestObserver(reporters, SystemClock().now_s) if reporters else None
