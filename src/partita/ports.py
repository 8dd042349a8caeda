"""The head's ports: what listens where, over which protocol, within which limits, with which certificate."""

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from partita.core.errors import MissingExtra
from partita.engine.engine import Engine
from partita.protocols.access import Access
from partita.protocols.by_path import either
from partita.protocols.door import Door
from partita.protocols.failures import (
    inference_failure,
    management_failure,
    metrics_failure,
    unknown_path,
)
from partita.protocols.http.asgi import AsgiBridge
from partita.protocols.http.cors import Origins
from partita.protocols.http.handler import Handler
from partita.protocols.http.listener import HttpLimits, Listener
from partita.protocols.http.responses import Failures
from partita.protocols.interfaces import inference_interface, management_interface, metrics_interface
from partita.protocols.management import management_application
from partita.protocols.metrics import metrics_route
from partita.protocols.observed import ObservedHandler
from partita.protocols.oip.application import Application
from partita.protocols.oip.inference import Inference
from partita.protocols.oip.repository_routes import RepositoryRoutes
from partita.protocols.oip.run_settings import RunSettings
from partita.protocols.openapi import document, openapi_route
from partita.protocols.plans import PlanRoutes, Plans
from partita.protocols.repository import Repository
from partita.protocols.torchserve.direct import DirectPredictions
from partita.protocols.torchserve.enveloped import EnvelopedInference
from partita.protocols.torchserve.gpu_gauges import GpuGauges
from partita.protocols.torchserve.inference import TorchServeInference, is_inference_path
from partita.protocols.torchserve.management import TorchServeManagement, is_management_path
from partita.protocols.torchserve.operations import TorchServeOperations
from partita.protocols.torchserve.predictions import Predictor
from partita.protocols.torchserve.registry import Registry
from partita.protocols.torchserve.replies import http_error
from partita.settings import GRPC_EXTRA, ServerSettings
from partita.system.addresses import Address
from partita.system.certificates import Certificate, CertificateFiles
from partita.system.clock import SystemClock
from partita.system.descriptors import allow_descriptors

if TYPE_CHECKING:
    from partita.protocols.grpc.server import GrpcServer

log = logging.getLogger("partita")

RENEWAL_S = 5.0
"""How often certificate files are looked at."""
OTHER_DESCRIPTORS = 512
"""Open files that are not clients: channels, memory and processes of workers, the runtime's own."""


class Ports:
    """Opens what the settings name, and closes it."""

    def __init__(
        self,
        settings: ServerSettings,
        engine: Engine,
        repository: Repository,
        access: Access,
        plans: Plans,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.addresses: dict[str, Address] = {}
        """Where each port really listens, by its setting's name."""
        self._settings = settings
        self._engine = engine
        self._repository = repository
        self._plans = plans
        self._origins = Origins(settings.cors_origins) if settings.cors_origins else None
        self._access = access if settings.management is not None else None
        self._loop = loop
        registered: Registry = {}
        has_keys = self._access is not None and settings.inference_token
        self._predictor = Predictor(engine, access.keys if has_keys else None, registered)
        self._operations = TorchServeOperations(
            engine, repository, registered, model_api=settings.enable_model_api
        )
        self._listeners: dict[str, Listener] = {}
        self._bridges: list[AsgiBridge] = []
        self._is_observed = settings.log_requests or settings.tracing is not None
        self._grpc: GrpcServer | None = None
        self._certificate: Certificate | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def scheme(self) -> str:
        """``http`` or ``https``."""
        return "http" if self._settings.tls_certificate is None else "https"

    async def open(self) -> None:
        """Open every port. Raises `InvalidInput` for one that is taken, or a wrong certificate."""
        settings = self._settings
        self._read_certificate()
        self._allow_connections()
        repository = RepositoryRoutes(self._repository, self._access)
        if settings.http is not None:
            predictions = TorchServeInference(self._predictor)
            torchserve = predictions.application()
            oip = Application(self._engine, self._run_settings()).starlette(repository.routes(), unknown_path)
            predictions.api = document("Inference", inference_interface(torchserve, oip))
            oip.routes.append(openapi_route(predictions.api))
            app = self._bridge(either(torchserve, oip, is_inference_path))
            direct = DirectPredictions(self._predictor)
            enveloped = EnvelopedInference(self._predictor).take
            inference = Inference(self._engine, max_body_bytes=settings.max_body_bytes, enveloped=enveloped)
            door: Handler = Door(inference, app, direct)
            door = ObservedHandler(door) if self._is_observed else door
            await self._listen("http", settings.http, door, inference_failure)
        if settings.management is not None:
            assert self._access is not None
            changes = TorchServeManagement(self._operations, self._access)
            torchserve = changes.application()
            plans = PlanRoutes(self._plans, self._access)
            ours = management_application((*repository.routes(), *plans.routes()), unknown_path)
            changes.api = document("Management", management_interface(torchserve, ours))
            ours.routes.append(openapi_route(changes.api))
            management = self._bridge(either(torchserve, ours, is_management_path))
            await self._listen("management", settings.management, management, management_failure)
        if settings.metrics is not None:
            routes = [metrics_route(self._engine, self._listeners, GpuGauges(SystemClock()))]
            metrics = Starlette(routes=routes, exception_handlers={HTTPException: http_error})
            metrics.routes.append(openapi_route(document("Metrics", metrics_interface(metrics))))
            await self._listen("metrics", settings.metrics, self._bridge(metrics), metrics_failure)
        grpc = {"grpc": settings.grpc, "grpc_management": settings.grpc_management}
        if any(grpc.values()):
            await self._listen_grpc({name: address for name, address in grpc.items() if address is not None})

    def drain(self) -> None:
        """Close each connection once the request at hand is answered."""
        for listener in self._listeners.values():
            listener.is_draining = True

    async def close(self) -> None:
        """Close every port and what is connected to it."""
        if self._timer is not None:
            self._timer.cancel()
        for listener in self._listeners.values():
            await listener.close()
        if self._grpc is not None:
            await self._grpc.close()
        for bridge in self._bridges:
            await bridge.close()

    # --- listening --------------------------------------------------------------------------------

    def _bridge(self, app: ASGIApp) -> AsgiBridge:
        bridge = AsgiBridge(app, self._loop, max_body_bytes=self._settings.max_body_bytes)
        self._bridges.append(bridge)
        return bridge

    async def _listen(self, name: str, address: Address, handler: Handler, failures: Failures) -> None:
        context = None if self._certificate is None else self._certificate.context
        limits = self._limits()
        listener = Listener(
            handler, limits, self._loop, tls=context, origins=self._origins, failures=failures
        )
        self._listeners[name] = listener
        port = await listener.start(address.host, address.port)
        self.addresses[name] = Address(address.host, port)

    async def _listen_grpc(self, addresses: dict[str, Address]) -> None:
        try:
            from partita.protocols.grpc.methods import GrpcRepository
            from partita.protocols.grpc.server import GrpcServer
            from partita.protocols.grpc.torchserve import TorchServeGrpc
        except ImportError:
            raise MissingExtra(GRPC_EXTRA) from None
        repository = GrpcRepository(self._repository, self._access)
        torchserve = TorchServeGrpc(self._predictor, self._operations, self._access)
        self._grpc = GrpcServer(
            self._engine,
            repository,
            torchserve,
            self._run_settings(),
            self._limits(),
            self._loop,
            tls=self._certificate,
            is_observed=self._is_observed,
        )
        bound = await self._grpc.start(list(addresses.values()))
        self.addresses.update(zip(addresses, bound, strict=True))

    def _run_settings(self) -> RunSettings:
        said = self._settings
        return RunSettings(
            tracing=said.tracing, trace_sampling=said.trace_sampling, log_requests=said.log_requests
        )

    def _limits(self) -> HttpLimits:
        settings = self._settings
        return HttpLimits(
            max_body_bytes=settings.max_body_bytes,
            max_header_bytes=settings.max_header_bytes,
            max_connections=settings.max_connections,
            idle_timeout_s=settings.idle_timeout_s,
            header_timeout_s=settings.header_timeout_s,
            body_timeout_s=settings.body_timeout_s,
            min_body_bytes_per_s=settings.min_body_bytes_per_s,
        )

    def _allow_connections(self) -> None:
        settings = self._settings
        ports = sum(a is not None for a in (settings.http, settings.management, settings.metrics))
        wanted = settings.max_connections * ports + OTHER_DESCRIPTORS
        allowed = allow_descriptors(wanted)
        if allowed < wanted:
            log.warning(
                "max_connections = %d on %d ports may need %d open files, and the system allows %d: "
                "raise its limit (ulimit -n), or lower max_connections",
                *(settings.max_connections, ports, wanted, allowed),
            )

    # --- the certificate --------------------------------------------------------------------------

    def _read_certificate(self) -> None:
        settings = self._settings
        if settings.tls_certificate is None or settings.tls_key is None:
            return
        self._certificate = Certificate(
            CertificateFiles(
                certificate=Path(settings.tls_certificate),
                key=Path(settings.tls_key),
                client_ca=None if settings.tls_client_ca is None else Path(settings.tls_client_ca),
            )
        )
        self._timer = self._loop.call_later(RENEWAL_S, self._renew)

    def _renew(self) -> None:
        assert self._certificate is not None
        self._certificate.renew()
        self._timer = self._loop.call_later(RENEWAL_S, self._renew)
