"""TorchServe's inference API: predictions, and whether the server is healthy."""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from partita.core.errors import InvalidRequest, PartitaError
from partita.engine.service import Service
from partita.protocols.torchserve.archives import HandlerStatus, header_list, is_archive, response_of
from partita.protocols.torchserve.fields import Part, fields_of, parts_of
from partita.protocols.torchserve.predictions import Prediction, Predictor
from partita.protocols.torchserve.replies import (
    headers_of,
    http_error,
    known_error,
    media_of,
    reply,
    request_id,
    status_reply,
)
from partita.protocols.torchserve.tensors import Asked, from_object
from partita.wire.archive_call import Answer

ANY = ["GET", "POST", "PUT", "DELETE", "PATCH"]
PREFIXES = ("/ping", "/predictions", "/explanations", "/invocations", "/models/")
"""Paths of this API on the inference port."""
SUFFIXES = (":predict", ":explain")
LEGACY = re.compile(r"/[^/]+/predict")
"""Path of predictions before there was ``/predictions/{model}``."""


def is_inference_path(method: str, path: str) -> bool:
    """Whether a request on the inference port is one of TorchServe's."""
    is_v1 = path.startswith("/v1/models/") and path.endswith(SUFFIXES)
    is_v2 = path.startswith("/v2/models/") and path.endswith("/explain")
    is_other = is_v1 or is_v2 or (method == "OPTIONS" and path == "/") or LEGACY.fullmatch(path) is not None
    return path.startswith(PREFIXES) or is_other


class TorchServeInference:
    """The API's routes."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.api: dict[str, Any] = {}
        """What is answered to ``OPTIONS /``: the port's OpenAPI document."""

    def application(self) -> Starlette:
        """Return the ASGI application."""
        predict = self.predict
        routes = [
            Route("/ping", self.ping),
            Route("/predictions/{model}", predict, methods=ANY),
            Route("/predictions/{model}/{version}", predict, methods=ANY),
            Route("/predictions/{model}/{version}/{extra:path}", predict, methods=ANY),
            Route("/models/{model}/invoke", predict, methods=["POST"]),
            Route("/invocations", self.invocations, methods=["GET", "POST"]),
            Route("/{model}/predict", self.predict_with_query, methods=ANY),
            Route("/explanations/{model}", self.explain, methods=ANY),
            Route("/explanations/{model}/{version}", self.explain, methods=ANY),
            Route("/v2/models/{model}/explain", self.explain, methods=["POST"]),
            Route("/v1/models/{model}:explain", self.explain, methods=["POST"]),
            Route("/v1/models/{model}:predict", self.predict_v1, methods=["POST"]),
            Route("/", self.describe_api, methods=["OPTIONS"]),
        ]
        app = Starlette(
            routes=routes, exception_handlers={PartitaError: known_error, HTTPException: http_error}
        )
        app.router.redirect_slashes = False
        return app

    async def ping(self, request: Request) -> Response:
        """Whether every model has its workers."""
        if self._predictor.is_healthy:
            return status_reply(request, "Healthy")
        return status_reply(request, "Unhealthy", 500)

    async def predict(self, request: Request) -> Response:
        """Predict from a raw, url-encoded or multipart body."""
        service = self._service(request, request.path_params["model"], request.path_params.get("version", ""))
        return await self._predict(request, service)

    async def invocations(self, request: Request) -> Response:
        """Predict as SageMaker asks: the model is named in the query, or the only one there is."""
        names = list(self._predictor.engine.services)
        model = request.query_params.get("model_name") or (names[0] if len(names) == 1 else "")
        return await self._predict(request, self._service(request, model, ""), _query(request))

    async def predict_with_query(self, request: Request) -> Response:
        """Predict as TorchServe once was asked: what the query says are fields too."""
        service = self._service(request, request.path_params["model"], "")
        return await self._predict(request, service, _query(request))

    async def _predict(self, request: Request, service: Service, query: Sequence[Part] = ()) -> Response:
        body, kind = await request.body(), request.headers.get("content-type", "")
        if is_archive(service):
            return await self._call(request, service, [*query, *parts_of(body, kind)])
        fields = {part.name: part.value for part in query}
        fields |= fields_of(body, kind) if body or not query else {}
        values = await self._predictor.predict(service, fields)
        return reply(request, values, media=media_of(values) if isinstance(values, bytes) else None)

    async def _call(
        self, request: Request, service: Service, parts: list[Part], *more: tuple[str, str]
    ) -> Response:
        """Ask an archive's handler."""
        headers = [*header_list(request.headers.items()), *more]
        if extra := request.path_params.get("extra"):
            headers.append(("url_path", extra))
        name = request_id(request.headers.get("x-request-id"))
        if request.scope["http_version"] != "1.1":
            return _reply(request, response_of(await self._predictor.call(service, name, parts, headers)))
        answers = self._predictor.answers(service, name, parts, headers)
        first, is_all = await anext(answers)
        return _reply(request, response_of(first), None if is_all else answers)

    async def explain(self, request: Request) -> Response:
        """Explain a prediction, which archives' handlers may."""
        path = request.path_params
        service = self._service(request, path["model"], path.get("version", ""))
        if not is_archive(service):
            raise InvalidRequest(f"model {service.name!r} has no handler that explains; only archives do")
        parts = parts_of(await request.body(), request.headers.get("content-type", ""))
        return await self._call(request, service, parts, ("explain", "True"))

    async def predict_v1(self, request: Request) -> Response:
        """Predict as KServe V1 asks: ``{"instances": [...]}`` → ``{"predictions": [...]}``."""
        service = self._service(request, request.path_params["model"], "")
        if is_archive(service):
            kind = request.headers.get("content-type", "")
            return await self._call(request, service, parts_of(await request.body(), kind))
        document = _document(await request.body())
        instances = document.get("instances")
        if not isinstance(instances, list) or not instances:
            raise InvalidRequest('expected {"instances": [...]} with at least one instance')
        asked = Asked(service.signature, _columns(service, instances))
        values = await Prediction(service, asked).values()
        return reply(request, {"predictions": _rows(values, len(instances))})

    async def describe_api(self, request: Request) -> Response:
        """What can be asked here, as OpenAPI."""
        return reply(request, self.api)

    def _service(self, request: Request, model: str, version: str) -> Service:
        return self._predictor.find(model, version, request.headers.get("authorization"))


def _reply(
    request: Request,
    response: tuple[int, bytes, list[tuple[str, str]]],
    more: AsyncIterator[tuple[Answer, bool]] | None = None,
) -> Response:
    """Return what an archive answered as a response: whole, or in chunks as they come."""
    status, content, ((_, media), *own) = response
    if more is None:
        made: Response = reply(request, content, status, media)
    else:
        made = StreamingResponse(_chunks(content, more), status, headers_of(request, status), media)
    for header, value in own:
        made.headers[header] = value
    return made


async def _chunks(first: bytes, more: AsyncIterator[tuple[Answer, bool]]) -> AsyncIterator[bytes]:
    """Yield the content; raises where the handler fails in the middle of its answer."""
    yield first
    async for answer, _ in more:
        if answer.error:
            raise HandlerStatus(answer.status, answer.error)
        yield answer.body


def _query(request: Request) -> list[Part]:
    """Return what the query says, as fields."""
    return [
        Part(name, "", value.encode()) for name, value in request.query_params.items() if name != "model_name"
    ]


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
