"""Two applications on one port, told apart by method and path."""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

IsFirst = Callable[[str, str], bool]
"""Whether a request of this method and path is the first application's."""


def either(first: ASGIApp, second: ASGIApp, is_first: IsFirst) -> ASGIApp:
    """Return an application that hands each request to one of the two."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        chosen = first if is_first(scope["method"], scope["path"]) else second
        await chosen(scope, receive, send)

    return application
