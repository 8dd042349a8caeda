"""What speaks at each port, for its OpenAPI document."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from partita.protocols.oip.inference import STATUS
from partita.protocols.openapi import (
    ANYTHING,
    INFER,
    INSTANCES,
    OBJECT,
    OIP_ERROR,
    TORCHSERVE_ERROR,
    Described,
)
from partita.protocols.torchserve.operations import SETTINGS
from partita.protocols.torchserve.replies import ERRORS

_OIP = frozenset({200, 405, 431, 500, *STATUS.values()})
_TORCHSERVE = frozenset({200, 202, 206, 403, 405, 431, 500, 507, *(status for status, _ in ERRORS.values())})
_REGISTER = ("url", "model_name", "handler", "runtime", "initial_workers", "synchronous", *SETTINGS)
_SCALE = ("min_worker", "max_worker", "synchronous")


async def _infer(request: Request) -> Response:
    """Inference: JSON, or JSON and binary tensors."""  # which takes a shorter way than routes
    raise NotImplementedError(request)


def inference_interface(torchserve: Starlette, ours: Starlette) -> list[Described]:
    """Return what speaks at the inference port."""
    model = "/v2/models/{model}"
    infer = [Route(f"{p}/infer", _infer, methods=["POST"]) for p in (model, f"{model}/versions/{{version}}")]
    return [
        _oip("OpenInferenceProtocol", [*infer, *ours.routes]),
        Described(
            name="TorchServe",
            routes=torchserve.routes,
            statuses=_TORCHSERVE,
            error=TORCHSERVE_ERROR,
            bodies={":predict": INSTANCES, ":explain": INSTANCES, "": ANYTHING},
            queries={f"{method} /invocations": ("model_name",) for method in ("GET", "POST")},
            is_open=True,
        ),
    ]


def management_interface(torchserve: Starlette, ours: Starlette) -> list[Described]:
    """Return what speaks at the management port."""
    model = "/models/{model}"
    queries = {
        "POST /models": _REGISTER,
        "GET /models": ("limit", "next_page_token"),
        f"GET {model}": ("customized",),
        f"GET {model}/{{version}}": ("customized",),
        f"PUT {model}": _SCALE,
        f"PUT {model}/{{version}}": _SCALE,
        "GET /token": ("type",),
    }
    theirs = Described(
        name="TorchServe",
        routes=torchserve.routes,
        statuses=_TORCHSERVE,
        error=TORCHSERVE_ERROR,
        bodies={"/models": OBJECT},
        queries=queries,
    )
    return [_oip("Partita", ours.routes), theirs]


def metrics_interface(metrics: Starlette) -> list[Described]:
    """Return what speaks at the metrics port."""
    queries = {"GET /metrics": ("name[]",)}
    statuses = frozenset({200, 400, 404, 405, 431})
    return [
        Described(
            name="Metrics",
            routes=metrics.routes,
            statuses=statuses,
            error=TORCHSERVE_ERROR,
            queries=queries,
        )
    ]


def _oip(name: str, routes: Sequence[BaseRoute]) -> Described:
    return Described(
        name=name,
        routes=routes,
        statuses=_OIP,
        error=OIP_ERROR,
        bodies={"/infer": INFER, "": OBJECT},
        left_out=frozenset({"infer_needs_post"}),
    )
