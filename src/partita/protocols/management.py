"""The management port: what changes the server, behind the token."""

from collections.abc import Sequence

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from partita.core.errors import InvalidRequest, NotAuthorized
from partita.protocols.access import KINDS, Access, Keys, bearer
from partita.protocols.key_document import key_entry
from partita.protocols.oip.application import application


def management_application(routes: Sequence[BaseRoute], access: Access) -> Starlette:
    """Return the port's application: these routes, and the one that renews keys.

    A route that changes anything asks `access.check` first.
    """
    renewal = [] if access.keys is None else [_renewal(access.keys)]
    return application([*routes, *renewal])


def _renewal(keys: Keys) -> Route:
    async def renew(request: Request) -> Response:
        if not keys.allows_renewal(bearer(request.headers.get("authorization"))):
            raise NotAuthorized("the API key of the key file is needed to renew a token")
        kind = request.query_params.get("type", "")
        if kind not in KINDS:
            raise InvalidRequest(f"type {kind[:40]!r} is not one of {', '.join(KINDS)}")
        document = {kind: key_entry(keys.renew(kind))}
        return Response(msgspec.json.encode(document), media_type="application/json")

    return Route("/token", renew)
