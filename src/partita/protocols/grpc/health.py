"""The standard health service, ``grpc.health.v1``: the whole server, or one model by its name."""

from typing import Any

from partita.core.errors import ModelNotFound
from partita.engine.engine import Engine
from partita.protocols.grpc.pool import message_classes

SERVICE = "grpc.health.v1.Health"
CLASSES = message_classes(
    "grpc.health.v1",
    """
HealthCheckRequest: 1 service string
HealthCheckResponse: 1 status enum HealthCheckResponse.ServingStatus
""",
    {"HealthCheckResponse.ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")},
)
_SERVING, _NOT_SERVING = 1, 2


class GrpcHealth:
    """Answers `Check`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def check(self, request: Any) -> Any:
        """Whether the server, or the model of that name, can answer. Raises `ModelNotFound`."""
        if not request.service:
            is_ready = self._engine.is_ready
        elif (service := self._engine.services.get(request.service)) is not None:
            is_ready = service.is_ready
        else:
            raise ModelNotFound(f"model {request.service[:80]!r} is not served here")
        return CLASSES["HealthCheckResponse"](status=_SERVING if is_ready else _NOT_SERVING)
