"""Everything of the protocol but inference: health, metadata, configuration, statistics."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version as package_version
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from partita.core.errors import InvalidRequest, PartitaError
from partita.engine.engine import Engine
from partita.engine.service import Service
from partita.protocols.oip.describe import configuration, metadata, statistics
from partita.protocols.oip.inference import STATUS
from partita.protocols.oip.run_settings import RunSettings, check_unchanged

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)


Unknown = Callable[[Request], Response | None]
"""Answers a path that no route has; None = as the protocol does."""


def json(document: object, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def application(routes: Sequence[BaseRoute], unknown: Unknown = lambda _: None) -> Starlette:
    """Return an ASGI application that shapes errors as the protocol does, but for what `unknown` answers."""

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        other = unknown(request) if error.status_code == 404 else None
        return _http_error(request, error) if other is None else other

    handlers = {PartitaError: _known_error, HTTPException: http_error}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # such a path is unknown, like any other
    return app


class Application:
    """The endpoints over one engine."""

    def __init__(self, engine: Engine, run: RunSettings) -> None:
        self._engine = engine
        self._run = run

    def starlette(self, extra: Sequence[BaseRoute] = (), unknown: Unknown = lambda _: None) -> Starlette:
        """Return the ASGI application, with further routes of the same port."""
        model = "/v2/models/{model}"
        routes = [
            Route("/", self.about),
            Route("/v2", self.server),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            Route("/v2/models/stats", self.all_statistics),
            *self._model_routes(model),
            *self._model_routes(model + "/versions/{version}"),
            Route("/v2/trace/setting", self.trace_settings, methods=["GET", "POST"]),
            Route(model + "/trace/setting", self.trace_settings, methods=["GET", "POST"]),
            Route("/v2/logging", self.log_settings, methods=["GET", "POST"]),
            Route("/v1/models/{model}", self.v1_ready),
            *extra,
        ]
        return application(routes, unknown)

    def _model_routes(self, prefix: str) -> list[Route]:
        return [
            Route(prefix, self.metadata),
            Route(prefix + "/ready", self.model_ready),
            Route(prefix + "/config", self.configuration),
            Route(prefix + "/stats", self.statistics),
            Route(prefix + "/infer", self.infer_needs_post),
        ]

    def _service(self, request: Request) -> Service:
        return self._engine.service(request.path_params["model"], request.path_params.get("version", ""))

    def _versions(self, service: Service) -> list[str]:
        return [one.version for one in self._engine.all_versions(service.name)]

    async def about(self, request: Request) -> Response:  # noqa: ARG002
        """What this is and where to read on."""
        return json(
            {
                "name": "partita",
                "version": package_version("partita"),
                "models": sorted(self._engine.services),
                "protocol": "Open Inference Protocol (V2) under /v2",
                "documentation": "README.md and docs/ of the partita distribution; partita --help",
            }
        )

    async def server(self, request: Request) -> Response:  # noqa: ARG002
        """Server metadata."""
        return json(
            {"name": "partita", "version": package_version("partita"), "extensions": list(EXTENSIONS)}
        )

    async def live(self, request: Request) -> Response:  # noqa: ARG002
        """The head answers, so it lives."""
        return json({"live": True})

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        """Whether every model can answer."""
        is_ready = self._engine.is_ready
        return json({"ready": is_ready}, 200 if is_ready else 503)

    async def model_ready(self, request: Request) -> Response:
        """Whether one model can answer."""
        service = self._service(request)
        return json({"name": service.name, "ready": service.is_ready}, 200 if service.is_ready else 503)

    async def v1_ready(self, request: Request) -> Response:
        """KServe V1's and TorchServe's readiness of one model."""
        service = self._service(request)
        return json({"name": service.name, "ready": service.is_ready}, 200 if service.is_ready else 503)

    async def metadata(self, request: Request) -> Response:
        """Model metadata."""
        service = self._service(request)
        return json(metadata(service, self._versions(service)))

    async def configuration(self, request: Request) -> Response:
        """Model configuration, in Triton's shape."""
        service = self._service(request)
        return json(configuration(service, self._versions(service)))

    async def statistics(self, request: Request) -> Response:
        """Statistics of one version, or of all versions of a model."""
        service = self._service(request)
        wanted = [service] if "version" in request.path_params else self._engine.all_versions(service.name)
        return json({"model_stats": [statistics(one) for one in wanted]})

    async def all_statistics(self, request: Request) -> Response:  # noqa: ARG002
        """Statistics of all models."""
        services = self._engine.versions.values()
        return json({"model_stats": [statistics(s) for s in services if s.has_signature]})

    async def trace_settings(self, request: Request) -> Response:
        """How requests are traced; changing that is refused."""
        if "model" in request.path_params:
            self._service(request)
        return await _settings_reply(request, self._run.trace())

    async def log_settings(self, request: Request) -> Response:
        """What is logged; changing that is refused."""
        return await _settings_reply(request, self._run.log())

    async def infer_needs_post(self, request: Request) -> Response:
        """Inference by any method but POST."""
        self._service(request)
        raise HTTPException(405, headers={"Allow": "POST"})


async def _settings_reply(request: Request, now: Mapping[str, Any]) -> Response:
    try:
        wanted = msgspec.json.decode(await request.body() or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a JSON object: {error}") from None
    check_unchanged(now, wanted)
    return json(now)


async def _known_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, PartitaError)
    return json({"error": str(error)}, STATUS.get(error.code, 500))


def _http_error(request: Request, error: HTTPException) -> Response:
    texts = {
        404: "Not Found",
        405: f"method {request.method} is not allowed for {request.scope['path']}",
    }
    response = json({"error": texts.get(error.status_code, error.detail)}, error.status_code)
    response.headers.update(error.headers or {})
    return response
