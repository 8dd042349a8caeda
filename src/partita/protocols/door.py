"""The inference port: sends inference down the request path and everything else to the application."""

from partita.protocols.http.asgi import AsgiBridge
from partita.protocols.http.connection import Connection
from partita.protocols.http.heads import RequestHead
from partita.protocols.oip.inference import Inference
from partita.protocols.torchserve.direct import PREFIX, DirectPredictions

_PREFIX = "/v2/models/"
_SUFFIX = "/infer"
MEMO_ENTRIES = 1024


class Door:
    """The `Handler` of the inference port."""

    def __init__(
        self, inference: Inference, rest: AsgiBridge, predictions: DirectPredictions | None = None
    ) -> None:
        self._inference = inference
        self._predictions = predictions
        self._rest = rest
        self._models: dict[str, tuple[str, str]] = {}

    def handle(self, connection: Connection, head: RequestHead, data: bytes, start: int) -> None:
        """Send the request where it belongs."""
        if head.method == "POST":
            target = self._models.get(head.path) or self._find(head.path)
            if target is not None:
                self._inference.infer(connection, head, target[0], target[1], data, start)
                return
        predictions = self._predictions
        if predictions and head.path.startswith(PREFIX) and is_plain(head):
            predictions.handle(connection, head, data, start)
        else:
            self._rest.handle(connection, head, data, start)

    def _find(self, path: str) -> tuple[str, str] | None:
        target = infer_target(path)
        if target is not None:
            if len(self._models) >= MEMO_ENTRIES:
                self._models.clear()
            self._models[path] = target
        return target

    def abandoned(self, connection: Connection) -> None:
        """Tell whoever has the request."""
        self._inference.abandoned(connection)
        self._rest.abandoned(connection)


def is_plain(head: RequestHead) -> bool:
    """Whether a prediction may take the short way."""
    return head.method in ("POST", "PUT") and not head.content_encoding


def infer_target(path: str) -> tuple[str, str] | None:
    """Return (model, version) of ``/v2/models/M[/versions/V]/infer``, None for any other path."""
    if not (path.startswith(_PREFIX) and path.endswith(_SUFFIX)):
        return None
    parts = path[len(_PREFIX) : -len(_SUFFIX)].split("/")
    match parts:
        case [model] if model:
            return model, ""
        case [model, "versions", version] if model and version:
            return model, version
        case _:
            return None
