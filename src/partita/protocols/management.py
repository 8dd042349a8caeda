"""The management port: what changes the server, behind the token.

TorchServe's management API has the port's ``/models`` and ``/token``; everything else is ours.
"""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from partita.protocols.oip.application import application


def management_application(routes: Sequence[BaseRoute]) -> Starlette:
    """Return our part of the port. A route that changes anything asks `Access.check` first."""
    return application(routes)
