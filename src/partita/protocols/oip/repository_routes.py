"""The repository extension: the index, loading and unloading."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from partita.core.errors import InvalidRequest
from partita.protocols.access import Access
from partita.protocols.repository import Repository, load_request


class RepositoryRoutes:
    """The extension's routes. Whoever loads or unloads must show a token; the index is for everybody."""

    def __init__(self, repository: Repository, access: Access | None) -> None:
        self._repository = repository
        self._access = access
        """None = nothing can be changed over this port."""

    def routes(self) -> list[Route]:
        """Return them, with and without the name of a repository, of which there is one."""
        routes = [
            Route(f"/v2/repository{part}/index", self.index, methods=["POST"])
            for part in ("", "/{repository}")
        ]
        if self._access is not None:
            for part in ("", "/{repository}"):
                model = f"/v2/repository{part}/models/{{model}}"
                routes.append(Route(f"{model}/load", self.load, methods=["POST"]))
                routes.append(Route(f"{model}/unload", self.unload, methods=["POST"]))
        return routes

    async def index(self, request: Request) -> Response:
        """Every model that is served or could be; ``{"ready": true}`` lists only those that can answer."""
        only_ready = bool((await _document(request)).get("ready"))
        entries = await self._repository.index()
        found = [msgspec.to_builtins(e) for e in entries if not only_ready or e.state == "READY"]
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def load(self, request: Request) -> Response:
        """Load a model, or its newest version."""
        self._check(request)
        parameters = (await _document(request)).get("parameters", {})
        if not isinstance(parameters, dict):
            raise InvalidRequest("parameters: expected an object")
        await self._repository.load(request.path_params["model"], load_request(parameters))
        return Response()

    async def unload(self, request: Request) -> Response:
        """Unload a model."""
        self._check(request)
        await self._repository.unload(request.path_params["model"])
        return Response()

    def _check(self, request: Request) -> None:
        assert self._access is not None
        given = request.headers
        self._access.check(given.get("authorization"), given.get("host"), given.get("origin"))


async def _document(request: Request) -> dict[str, Any]:
    body = await request.body()
    if not body:
        return {}
    try:
        document: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a JSON object: {error}") from None
    return document
