"""Everything of the protocol but inference, over gRPC: health, metadata, configuration, statistics, index."""

from collections.abc import Callable
from importlib.metadata import version as package_version
from typing import Any

from google.protobuf.json_format import ParseDict

from partita.core.errors import RequestError
from partita.engine.engine import Engine
from partita.protocols.grpc.messages import CLASSES
from partita.protocols.oip.application import EXTENSIONS
from partita.protocols.oip.describe import configuration, index_entry, metadata, statistics

Method = Callable[[Any], Any]
"""From a request message to its response message; raises `RequestError`."""


class GrpcMethods:
    """The methods that one look at the engine answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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
            "RepositoryIndex": self.index,
        }

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
        document = metadata(self._engine.service(request.name, request.version))
        return ParseDict(document, CLASSES["ModelMetadataResponse"]())

    def configuration(self, request: Any) -> Any:
        """Model configuration, in Triton's shape; what only we say of instances is left out."""
        document = configuration(self._engine.service(request.name, request.version))
        return ParseDict({"config": document}, CLASSES["ModelConfigResponse"](), ignore_unknown_fields=True)

    def statistics(self, request: Any) -> Any:
        """Statistics of one model, or of all."""
        if request.name:
            services = [self._engine.service(request.name, request.version)]
        else:
            services = [service for service in self._engine.services.values() if service.has_signature]
        document = {"model_stats": [statistics(service) for service in services]}
        return ParseDict(document, CLASSES["ModelStatisticsResponse"]())

    def index(self, request: Any) -> Any:
        """Repository index."""
        entries = [index_entry(service) for service in self._engine.services.values()]
        wanted = [entry for entry in entries if not request.ready or entry["state"] == "READY"]
        return ParseDict({"models": wanted}, CLASSES["RepositoryIndexResponse"]())
