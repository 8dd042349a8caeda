"""Everything of the protocol but inference, over gRPC: health, metadata, statistics, repository."""

from importlib.metadata import version as package_version
from typing import Any

import msgspec
from google.protobuf.json_format import ParseDict

from partita.core.errors import RequestError
from partita.engine.engine import Engine
from partita.engine.service import Service
from partita.protocols.access import Access
from partita.protocols.grpc.handlers import AsyncMethod, Method
from partita.protocols.grpc.messages import CLASSES
from partita.protocols.oip.application import EXTENSIONS
from partita.protocols.oip.describe import configuration, metadata, statistics
from partita.protocols.oip.run_settings import RunSettings, check_unchanged
from partita.protocols.repository import Repository, load_request

_LOG_TYPES = {bool: "bool_param", int: "uint32_param", str: "string_param"}


class GrpcMethods:
    """The methods that one look at the engine answers."""

    def __init__(self, engine: Engine, run: RunSettings) -> None:
        self._engine = engine
        self._run = run

    def by_name(self) -> dict[str, Method]:
        """Return each method under the protocol's name for it."""
        return {
            "ServerLive": self.live,
            "ServerReady": self.ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server,
            "ModelMetadata": self.metadata,
            "ModelConfig": self.configuration,
            "ModelStatistics": self.statistics,
            "TraceSetting": self.trace_settings,
            "LogSettings": self.log_settings,
        }

    def _versions(self, service: Service) -> list[str]:
        return [one.version for one in self._engine.all_versions(service.name)]

    def live(self, request: Any) -> Any:  # noqa: ARG002
        """The head answers, so it lives."""
        return CLASSES["ServerLiveResponse"](live=True)

    def ready(self, request: Any) -> Any:  # noqa: ARG002
        """Whether every model can answer."""
        return CLASSES["ServerReadyResponse"](ready=self._engine.is_ready)

    def model_ready(self, request: Any) -> Any:
        """Whether one model can answer; one that is not served cannot, as Triton says too."""
        try:
            is_ready = self._engine.service(request.name, request.version).is_ready
        except RequestError:
            is_ready = False
        return CLASSES["ModelReadyResponse"](ready=is_ready)

    def server(self, request: Any) -> Any:  # noqa: ARG002
        """Server metadata."""
        return CLASSES["ServerMetadataResponse"](
            name="partita", version=package_version("partita"), extensions=EXTENSIONS
        )

    def metadata(self, request: Any) -> Any:
        """Model metadata."""
        service = self._engine.service(request.name, request.version)
        document = metadata(service, self._versions(service))
        return ParseDict(document, CLASSES["ModelMetadataResponse"]())

    def configuration(self, request: Any) -> Any:
        """Model configuration, in Triton's shape; what only we say of instances is left out."""
        service = self._engine.service(request.name, request.version)
        document = configuration(service, self._versions(service))
        return ParseDict({"config": document}, CLASSES["ModelConfigResponse"](), ignore_unknown_fields=True)

    def statistics(self, request: Any) -> Any:
        """Statistics of one version, of all versions of a model, or of all models."""
        if request.name and request.version:
            services = [self._engine.service(request.name, request.version)]
        elif request.name:
            services = self._engine.all_versions(self._engine.service(request.name).name)
        else:
            services = [service for service in self._engine.versions.values() if service.has_signature]
        document = {"model_stats": [statistics(service) for service in services]}
        return ParseDict(document, CLASSES["ModelStatisticsResponse"]())

    def trace_settings(self, request: Any) -> Any:
        """How requests are traced; changing that is refused."""
        if request.model_name:
            self._engine.service(request.model_name)
        now = {name: _listed(value) for name, value in self._run.trace().items()}
        check_unchanged(now, {name: list(given.value) or None for name, given in request.settings.items()})
        document = {name: {"value": value} for name, value in now.items()}
        return ParseDict({"settings": document}, CLASSES["TraceSettingResponse"]())

    def log_settings(self, request: Any) -> Any:
        """What is logged; changing that is refused."""
        now = self._run.log()
        check_unchanged(now, _values(request.settings))
        document = {name: {_LOG_TYPES[type(value)]: value} for name, value in now.items()}
        return ParseDict({"settings": document}, CLASSES["LogSettingsResponse"]())


class GrpcRepository:
    """The repository extension; whoever loads or unloads sends the token as metadata ``authorization``."""

    def __init__(self, repository: Repository, access: Access | None) -> None:
        self._repository = repository
        self._access = access
        """None = nothing can be changed."""

    def by_name(self) -> dict[str, AsyncMethod]:
        """Return each method under the protocol's name for it."""
        changing: dict[str, AsyncMethod] = {
            "RepositoryModelLoad": self.load,
            "RepositoryModelUnload": self.unload,
        }
        return {"RepositoryIndex": self.index, **(changing if self._access is not None else {})}

    async def index(self, request: Any, authorization: str | None) -> Any:  # noqa: ARG002
        """Every model that is served or could be."""
        entries = [msgspec.to_builtins(entry) for entry in await self._repository.index()]
        wanted = [entry for entry in entries if not request.ready or entry["state"] == "READY"]
        return ParseDict({"models": wanted}, CLASSES["RepositoryIndexResponse"]())

    async def load(self, request: Any, authorization: str | None) -> Any:
        """Load a model, or its newest version."""
        self._check(authorization)
        await self._repository.load(request.model_name, load_request(_values(request.parameters)))
        return CLASSES["RepositoryModelLoadResponse"]()

    async def unload(self, request: Any, authorization: str | None) -> Any:
        """Unload a model."""
        self._check(authorization)
        await self._repository.unload(request.model_name)
        return CLASSES["RepositoryModelUnloadResponse"]()

    def _check(self, authorization: str | None) -> None:
        assert self._access is not None
        self._access.check(authorization)


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _values(parameters: Any) -> dict[str, Any]:
    choices = {name: parameter.WhichOneof("parameter_choice") for name, parameter in parameters.items()}
    return {name: getattr(parameters[name], choice) for name, choice in choices.items() if choice}
