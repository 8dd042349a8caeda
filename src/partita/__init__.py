"""Partita: a self-tuning inference server.

`Server` embeds the engine, `predict` runs a model over an array, `plan` says which instances it wants. They
are imported when first used, so that ``import partita`` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partita.api import plan
    from partita.embedded import Server
    from partita.offline import predict

__all__ = ["Server", "plan", "predict"]

_PLACES = {"Server": "partita.embedded", "predict": "partita.offline", "plan": "partita.api"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module 'partita' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_PLACES[name]), name)
