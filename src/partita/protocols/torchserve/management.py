"""TorchServe's management API: register, list, describe, scale, unregister."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from partita.core.errors import InvalidRequest, ModelNotFound, NotAuthorized, PartitaError
from partita.engine.engine import Engine
from partita.protocols.access import KINDS, Access, bearer
from partita.protocols.key_document import key_entry
from partita.protocols.repository import LoadRequest, Repository
from partita.protocols.torchserve.describe import describe, parked
from partita.protocols.torchserve.inference import find_service
from partita.protocols.torchserve.replies import (
    Conflict,
    VersionNotFound,
    http_error,
    known_error,
    reply,
    status_reply,
)

log = logging.getLogger(__name__)

PREFIXES = ("/models", "/token")
"""Paths of this API on the management port."""
MAX_WORKERS = 1024
_UPDATING = "Processing worker updates..."
_SETTINGS = {
    "batch_size": ("max_batch", int),
    "max_batch_delay": ("batch_timeout_ms", float),
    "response_timeout": ("execution_limit_s", float),
    "startup_timeout": ("load_limit_s", float),
}
"""Parameters of a registration, and the keys of ``[model.NAME]`` that they stand for."""


def is_management_path(method: str, path: str) -> bool:  # noqa: ARG001
    """Whether a request on the management port is one of TorchServe's."""
    return path.startswith(PREFIXES)


@dataclass(frozen=True, slots=True)
class Registered:
    """What a model was registered with."""

    request: LoadRequest
    version: str
    limits: tuple[int, int] | None = None
    """Least and most workers that were asked for."""


class TorchServeManagement:
    """The API's routes over one engine and one repository. Every route needs the token."""

    def __init__(
        self,
        engine: Engine,
        repository: Repository,
        access: Access,
        registered: "dict[str, Registered]",
        *,
        model_api: bool,
    ) -> None:
        self._engine = engine
        self._repository = repository
        self._access = access
        self._has_model_api = model_api
        """Whether models may be registered and unregistered."""
        self._registered = registered
        """Models that came or were scaled over this API; those that are not served wait for workers."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/models", self.models, methods=["GET", "POST"]),
            Route("/models/{model}", self.model, methods=["GET", "PUT", "DELETE"]),
            Route("/models/{model}/{version}", self.model, methods=["GET", "PUT", "DELETE"]),
            Route("/models/{model}/{version}/set-default", self.set_default, methods=["PUT"]),
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
        return await self._register(request) if request.method == "POST" else self._list(request)

    async def model(self, request: Request) -> Response:
        """Describe, scale or unregister one model."""
        self._check(request)
        name, version = request.path_params["model"], request.path_params.get("version", "")
        if request.method == "PUT":
            return await self._scale(request, name, version)
        if request.method == "DELETE":
            return await self._unregister(request, name, version)
        return reply(request, [self._description(name, "" if version == "all" else version)])

    async def set_default(self, request: Request) -> Response:
        """Make a version the default, which the one that is served always is."""
        self._check(request)
        name, version = request.path_params["model"], request.path_params["version"]
        find_service(self._engine, name, version)
        return status_reply(
            request, f'Default version successfully updated for model "{name}" to "{version}"'
        )

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
        self._access.check(request.headers.get("authorization"), request.headers.get("host"))

    # --- reading ----------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return sorted({*self._engine.services, *self._registered})

    def _list(self, request: Request) -> Response:
        limit = _whole(request.query_params, "limit", 100, least=1)
        first = _whole(request.query_params, "next_page_token", 0, least=0)
        names = self._names()
        document: dict[str, Any] = {
            "models": [{"modelName": name, "modelUrl": name} for name in names[first : first + limit]]
        }
        if first + limit < len(names):
            document = {"nextPageToken": str(first + limit), **document}
        return reply(request, document)

    def _description(self, name: str, version: str) -> dict[str, Any]:
        known = self._registered.get(name)
        if name not in self._engine.services and known is not None:
            return parked(name, known.version)
        return describe(find_service(self._engine, name, version), known.limits if known else None)

    # --- changing ---------------------------------------------------------------------------------

    async def _register(self, request: Request) -> Response:
        if not self._has_model_api:
            raise HTTPException(405)
        given = await _parameters(request)
        source = _source(given.get("url", ""))
        name = given.get("model_name") or source
        if name in self._names():
            version = self._description(name, "")["modelVersion"]
            raise Conflict(f"Model version {version} is already registered for model {name}")
        settings = {key: _number(given, p, kind) for p, (key, kind) in _SETTINGS.items() if p in given}
        if given.get("handler"):
            raise InvalidRequest("handler: a model brings its own; another cannot be given")
        workers = _whole(given, "initial_workers", 0, least=0)
        load = LoadRequest(settings=settings, source=source, workers=workers or None)
        version = await self._repository.version(source)
        if not workers:
            self._registered[name] = Registered(load, version)
            text = (
                f'Model "{name}" Version: {version} registered with 0 initial workers. '
                "Use scale workers API to add workers for the model."
            )
            return status_reply(request, text)
        known = Registered(load, version, (workers, workers))
        if _flag(given, "synchronous", default=True):
            await self._load(name, known)
            text = f'Model "{name}" Version: {version} registered with {workers} initial workers'
            return status_reply(request, text)
        self._in_background(self._load(name, known))
        return status_reply(request, _UPDATING, 202)

    async def _load(self, name: str, known: Registered) -> None:
        await self._repository.load(name, known.request)
        self._registered[name] = known

    async def _scale(self, request: Request, name: str, version: str) -> Response:
        given = await _parameters(request)
        least = _whole(given, "min_worker", 1, least=0)
        most = _whole(given, "max_worker", least, least=0)
        if most < least:
            raise InvalidRequest("max_worker cannot be less than min_worker.")
        self._description(name, version)  # raises for a model or version that is not there
        change = self._scaled(name, least, most)
        if not _flag(given, "synchronous", default=False):
            self._in_background(change)
            return status_reply(request, _UPDATING, 202)
        count = await change
        said = f", version: {version}" if version else ""
        return status_reply(request, f"Workers scaled to {count} for model: {name}{said}")

    async def _scaled(self, name: str, least: int, most: int) -> int:
        """Bring a model's workers between these limits; returns how many there are."""
        service = self._engine.services.get(name)
        known = self._registered.get(name) or Registered(LoadRequest(), service.version if service else "")
        now = 0 if service is None else len(service.member.instances)
        wanted = min(max(now, least), most)
        request = replace(known.request, workers=wanted or None)
        if not wanted and now:
            await self._repository.unload(name)
        elif wanted != now:
            await self._repository.load(name, request)
        self._registered[name] = Registered(request, known.version, (least, most))
        service = self._engine.services.get(name)
        return 0 if service is None else len(service.member.instances)

    async def _unregister(self, request: Request, name: str, version: str) -> Response:
        if not self._has_model_api:
            raise HTTPException(405)
        if name in self._engine.services:
            find_service(self._engine, name, version)
            await self._repository.unload(name)
            self._registered.pop(name, None)
        elif (known := self._registered.get(name)) is None:
            raise ModelNotFound(f"Model not found: {name}")
        elif version not in ("", known.version):
            raise VersionNotFound(f"Model version: {version} does not exist for model: {name}")
        else:
            del self._registered[name]
        return status_reply(request, f'Model "{name}" unregistered')

    def _in_background(self, change: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(_logged(change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _logged(change: Coroutine[Any, Any, Any]) -> None:
    try:
        await change
    except PartitaError as error:
        log.warning("a change that nobody waited for failed: %s", error)


def _source(url: str) -> str:
    """Return the name of the model in the store that a ``url`` means."""
    if not url:
        raise InvalidRequest("Parameter url is required.")
    if "://" in url:
        raise InvalidRequest(f"Given URL {url[:200]} does not match any allowed URL(s)")
    if "/" in url or "\\" in url or ".." in url:
        raise InvalidRequest(f"Relative path is not allowed in url: {url[:200]}")
    return PurePosixPath(url).stem if url.endswith((".onnx", ".mar")) else url


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


def _whole(given: Any, name: str, default: int, *, least: int) -> int:
    value = int(_number(given, name, int)) if given.get(name) else default
    if not least <= value <= MAX_WORKERS * MAX_WORKERS:
        raise InvalidRequest(f"{name}: {value} is out of range")
    return value


def _number(given: Any, name: str, kind: type) -> float:
    try:
        value: float = kind(given[name])
    except ValueError:
        raise InvalidRequest(f"{name}: {given[name][:40]!r} is not a number") from None
    if not 0 <= value <= 1e9:
        raise InvalidRequest(f"{name}: {value} is out of range")
    return value


def _flag(given: Any, name: str, *, default: bool) -> bool:
    return str(given[name]).lower() == "true" if name in given else default
