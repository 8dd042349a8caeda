"""TorchServe's inference API: predictions, and whether the server is healthy."""

import asyncio
from collections.abc import Container, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from partita.core.errors import (
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    NotAuthorized,
    PartitaError,
    RequestError,
)
from partita.engine.engine import Engine
from partita.engine.request import Buffer, Request, Shapes
from partita.engine.service import Service
from partita.protocols.access import Keys, bearer
from partita.protocols.oip.inference import split_items
from partita.protocols.torchserve.fields import fields_of
from partita.protocols.torchserve.replies import (
    VersionNotFound,
    http_error,
    known_error,
    reply,
    status_reply,
)
from partita.protocols.torchserve.tensors import Asked, by_input, from_object, values_of

ANY = ["GET", "POST", "PUT", "DELETE", "PATCH"]
PREFIXES = ("/ping", "/predictions", "/explanations", "/invocations", "/models/")
"""Paths of this API on the inference port."""
SUFFIXES = (":predict", ":explain")


NO_WORKER = (
    'Model "{}" has no worker to serve inference request. Please use scale workers API to add workers. '
    "If this is a sequence inference, please check if it is closed, or expired; "
    "or exceeds maxSequenceJobQueueSize"
)


def is_inference_path(method: str, path: str) -> bool:
    """Whether a request on the inference port is one of TorchServe's."""
    is_v1 = path.startswith("/v1/models/") and path.endswith(SUFFIXES)
    return path.startswith(PREFIXES) or is_v1 or (method == "OPTIONS" and path == "/")


class Prediction:
    """One request in the engine; its `Sink`."""

    __slots__ = ("_is_single", "_service", "answer", "request")

    def __init__(self, service: Service, asked: Asked) -> None:
        self._service = service
        self._is_single = asked.is_single
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """Values, or what kept them from coming."""
        template = asked.template
        if template.layout.is_ragged:
            items = split_items(service, template, asked.buffers)
            self.request = service.submit_ragged(items, template.layout, self)
        else:
            self.request = service.submit(asked.buffers, template.n_items, template.layout, self)

    async def values(self) -> Any:
        """Wait for them; who is cancelled meanwhile cancels the request. Raises `RequestError`."""
        try:
            outcome = await self.answer
        except asyncio.CancelledError:
            self._service.cancel(self.request)
            raise
        if isinstance(outcome, PartitaError):
            raise outcome
        return outcome

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:  # noqa: ARG002
        """Keep the values: the buffers are the worker's."""
        if not self.answer.done():
            signature = self._service.signature
            self.answer.set_result(values_of(signature, outputs, shapes, is_single=self._is_single))

    def failed(self, request: Request, error: RequestError) -> None:  # noqa: ARG002
        """Keep the error."""
        if not self.answer.done():
            self.answer.set_result(error)


class TorchServeInference:
    """The API's routes over one engine."""

    def __init__(self, engine: Engine, keys: Keys | None = None, registered: Container[str] = ()) -> None:
        self._engine = engine
        self._registered = registered
        """Models that are known, also those that have no workers now."""
        self._keys = keys
        """Who asks for a prediction shows the inference key; None = need not."""

    def application(self) -> Starlette:
        """Return the ASGI application."""
        predict = self.predict
        routes = [
            Route("/ping", self.ping),
            Route("/predictions/{model}", predict, methods=ANY),
            Route("/predictions/{model}/{version}", predict, methods=ANY),
            Route("/predictions/{model}/{version}/{extra:path}", predict, methods=ANY),
            Route("/models/{model}/invoke", predict, methods=["POST"]),
            Route("/invocations", self.invocations, methods=["POST"]),
            Route("/v1/models/{model}:predict", self.predict_v1, methods=["POST"]),
            Route("/", self.describe_api, methods=["OPTIONS"]),
        ]
        app = Starlette(
            routes=routes, exception_handlers={PartitaError: known_error, HTTPException: http_error}
        )
        app.router.redirect_slashes = False
        return app

    async def ping(self, request: HttpRequest) -> Response:
        """Whether every model can answer."""
        if self._engine.is_ready:
            return status_reply(request, "Healthy")
        return status_reply(request, "Unhealthy", 500)

    async def predict(self, request: HttpRequest) -> Response:
        """Predict from a raw, url-encoded or multipart body."""
        service = self._service(request, request.path_params["model"], request.path_params.get("version", ""))
        return await self._predict(request, service)

    async def invocations(self, request: HttpRequest) -> Response:
        """Predict as SageMaker asks: the model is named in the query, or the only one there is."""
        names = list(self._engine.services)
        model = request.query_params.get("model_name") or (names[0] if len(names) == 1 else "")
        return await self._predict(request, self._service(request, model, ""))

    async def _predict(self, request: HttpRequest, service: Service) -> Response:
        fields = fields_of(await request.body(), request.headers.get("content-type", ""))
        values = await Prediction(
            service, Asked(service.signature, by_input(service.signature, fields))
        ).values()
        return reply(request, values, media=_media(values) if isinstance(values, bytes) else None)

    async def predict_v1(self, request: HttpRequest) -> Response:
        """Predict as KServe V1 asks: ``{"instances": [...]}`` → ``{"predictions": [...]}``."""
        service = self._service(request, request.path_params["model"], "")
        document = _document(await request.body())
        instances = document.get("instances")
        if not isinstance(instances, list) or not instances:
            raise InvalidRequest('expected {"instances": [...]} with at least one instance')
        asked = Asked(service.signature, _columns(service, instances))
        values = await Prediction(service, asked).values()
        return reply(request, {"predictions": _rows(values, len(instances))})

    async def describe_api(self, request: HttpRequest) -> Response:
        """What can be asked here, as OpenAPI."""
        paths = {
            "/ping": {"get": {"operationId": "ping"}},
            "/predictions/{model_name}": {"post": {"operationId": "predictions"}},
            "/predictions/{model_name}/{model_version}": {"post": {"operationId": "version_predictions"}},
        }
        responses = {"responses": {"200": {"description": "OK"}}}
        described = {
            path: {method: {**operation, **responses} for method, operation in methods.items()}
            for path, methods in paths.items()
        }
        info = {"title": "TorchServe's inference API, by Partita", "version": "0.12.0"}
        return reply(request, {"openapi": "3.0.1", "info": info, "paths": described})

    def _service(self, request: HttpRequest, model: str, version: str) -> Service:
        if self._keys is not None:
            given = bearer(request.headers.get("authorization"))
            if not self._keys.allows("inference", given):
                raise NotAuthorized("the inference token is missing, wrong or expired")
        if model not in self._engine.services and model in self._registered:
            raise ModelUnavailable(NO_WORKER.format(model))
        return find_service(self._engine, model, version)


def find_service(engine: Engine, model: str, version: str) -> Service:
    """Return a service, or raise with TorchServe's words. ``1.0`` means version 1 as well."""
    service = engine.services.get(model)
    if service is None:
        raise ModelNotFound(f"Model not found: {model}")
    if version and service.version not in (version, version.removesuffix(".0")):
        raise VersionNotFound(f"Model version: {version} does not exist for model: {model}")
    return service


def _document(body: bytes) -> dict[str, Any]:
    try:
        document: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a JSON object: {error}") from None
    return document


def _columns(service: Service, instances: list[Any]) -> dict[str, Any]:
    """Return each input's values from instances, which are values of an only input, or objects."""
    names = [spec.name for spec in service.signature.inputs]
    if len(names) == 1 and not isinstance(instances[0], dict):
        return {names[0]: instances}
    rows = [from_object(names, instance) for instance in instances]
    return {name: [row[name] for row in rows] for name in names}


def _rows(values: Any, count: int) -> list[Any]:
    """Return values as one entry for each instance."""
    if isinstance(values, dict):
        return [{name: column[k] for name, column in values.items()} for k in range(count)]
    return values if isinstance(values, list) else [values]


def _media(content: bytes) -> str:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain"
