"""TorchServe's management API over HTTP: register, list, describe, scale, unregister."""

from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from partita.core.errors import InvalidRequest, NotAuthorized, PartitaError
from partita.protocols.access import KINDS, Access, bearer
from partita.protocols.key_document import key_entry
from partita.protocols.torchserve.operations import Answer, TorchServeOperations
from partita.protocols.torchserve.replies import http_error, known_error, reply, status_reply

PREFIXES = ("/models", "/token", "/v1/models/")
"""Paths of this API on the management port."""


def is_management_path(method: str, path: str) -> bool:
    """Whether a request on the management port is one of TorchServe's."""
    return path.startswith(PREFIXES) or (method == "OPTIONS" and path == "/")


class TorchServeManagement:
    """The API's routes. Every one needs the token."""

    def __init__(self, operations: TorchServeOperations, access: Access) -> None:
        self._operations = operations
        self._access = access
        self.api: dict[str, Any] = {}
        """What is answered to ``OPTIONS /``: the port's OpenAPI document."""

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/models", self.models, methods=["GET", "POST"]),
            Route("/models/{model}", self.model, methods=["GET", "PUT", "DELETE"]),
            Route("/models/{model}/{version}", self.model, methods=["GET", "PUT", "DELETE"]),
            Route("/models/{model}/{version}/set-default", self.set_default, methods=["PUT"]),
            Route("/v1/models/{model}", self.ready),
            Route("/", self.describe_api, methods=["OPTIONS"]),
        ]
        if self._access.keys is not None:
            routes.append(Route("/token", self.renew_token))
        app = Starlette(
            routes=routes, exception_handlers={PartitaError: known_error, HTTPException: http_error}
        )
        app.router.redirect_slashes = False
        return app

    async def models(self, request: Request) -> Response:
        """List the models, or register one."""
        self._check(request)
        given = await _parameters(request)
        if request.method == "POST":
            return _said(request, await self._operations.register(given))
        return reply(request, self._operations.page(given))

    async def model(self, request: Request) -> Response:
        """Describe, scale or unregister one model."""
        self._check(request)
        name, version = request.path_params["model"], request.path_params.get("version", "")
        if request.method == "PUT":
            return _said(request, await self._operations.scale(name, version, await _parameters(request)))
        if request.method == "DELETE":
            return _said(request, await self._operations.unregister(name, version))
        if request.query_params.get("customized") == "true":
            return reply(request, await self._operations.customized(name, version))
        return reply(request, self._operations.descriptions(name, version))

    async def set_default(self, request: Request) -> Response:
        """Make a version the default."""
        self._check(request)
        path = request.path_params
        return _said(request, self._operations.set_default(path["model"], path["version"]))

    async def ready(self, request: Request) -> Response:
        """Whether a model can answer, as KServe asks."""
        self._check(request)
        return reply(request, self._operations.readiness(request.path_params["model"]))

    async def describe_api(self, request: Request) -> Response:
        """What can be asked here, as OpenAPI."""
        return reply(request, self.api)

    async def renew_token(self, request: Request) -> Response:
        """Replace a key by a new one."""
        assert self._access.keys is not None
        if not self._access.keys.allows_renewal(bearer(request.headers.get("authorization"))):
            raise NotAuthorized("the API key of the key file is needed to renew a token")
        kind = request.query_params.get("type", "")
        if kind not in KINDS:
            raise InvalidRequest(f"type {kind[:40]!r} is not one of {', '.join(KINDS)}")
        return reply(request, {kind: key_entry(self._access.keys.renew(kind))})

    def _check(self, request: Request) -> None:
        given = request.headers
        self._access.check(given.get("authorization"), given.get("host"), given.get("origin"))


def _said(request: Request, answer: Answer) -> Response:
    return status_reply(request, answer[1], answer[0])


async def _parameters(request: Request) -> dict[str, str]:
    """Return what the query and a JSON body say, as text. Raises `InvalidRequest`."""
    given = dict(request.query_params)
    body = await request.body()
    if body.strip():
        try:
            document = msgspec.json.decode(body, type=dict[str, str | int | float | bool | None])
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not a JSON object of plain values: {error}") from None
        given |= {key: _text(value) for key, value in document.items() if value is not None}
    return given


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
