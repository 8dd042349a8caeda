"""The management port: what changes the server, behind the token.

TorchServe's management API has ``/models``, ``/v1/models`` and ``/token``; everything else is ours.
"""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from partita.protocols.oip.application import Unknown, application


def management_application(routes: Sequence[BaseRoute], unknown: Unknown) -> Starlette:
    """Return our part of the port. A route that changes anything asks `Access.check` first."""
    return application(routes, unknown)
