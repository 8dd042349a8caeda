"""Each port's interface as an OpenAPI document, made from the very routes that answer there."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

PATH = "/openapi.json"
_CONVERTER = re.compile(r"\{(\w+):\w+\}")
_PARAMETER = re.compile(r"\{(\w+)\}")
_MEANINGS = {
    200: "Done.",
    202: "It is being done.",
    206: "It is being done: not all of its workers are there yet.",
    400: "The request is wrong; the body says how. Or the token is, at TorchServe's routes.",
    401: "The token is missing, wrong or expired.",
    403: "It may not be asked for by this name, or without the token.",
    404: "There is no such model, version or path.",
    405: "The path has no such method.",
    408: "The request's deadline has passed.",
    409: "The model is there already.",
    413: "The request is larger than a limit.",
    431: "The request's head is larger than a limit.",
    500: "The model cannot answer.",
    501: "It is not offered.",
    503: "The model cannot answer now, or its queue is full.",
    504: "The request's deadline has passed.",
    507: "The handler ran out of memory.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Routes that speak alike: which statuses they answer, and the schema of their errors."""

    name: str
    routes: Sequence[BaseRoute]
    statuses: frozenset[int]
    error: Mapping[str, Any]
    bodies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Content of request bodies by the end of a path."""
    queries: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Query parameters by ``METHOD path``."""
    is_open: bool = False
    """Whether a handler may answer with other statuses too."""
    left_out: frozenset[str] = frozenset()
    """Names of endpoints that only say what is wrong."""


OIP_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}
TORCHSERVE_ERROR = {
    "type": "object",
    "properties": {
        "code": {"type": "integer"},
        "type": {"type": "string"},
        "message": {"type": "string"},
    },
    "required": ["code", "type", "message"],
}
_TENSOR = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "datatype": {"type": "string"},
        "parameters": {"type": "object"},
        "data": {"type": "array"},
    },
    "required": ["name", "shape", "datatype"],
}
INFER = {
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {
                "id": {"type": "string"},
                "parameters": {"type": "object"},
                "inputs": {"type": "array", "items": _TENSOR, "minItems": 1},
                "outputs": {"type": "array", "items": {"type": "object"}},
            },
            "required": ["inputs"],
        }
    },
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
}
ANYTHING = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    "application/json": {"schema": {}},
}
OBJECT = {"application/json": {"schema": {"type": "object"}}}
INSTANCES = {
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {"instances": {"type": "array", "minItems": 1}},
            "required": ["instances"],
        }
    }
}


def document(title: str, parts: Iterable[Described]) -> dict[str, Any]:
    """Return the document of one port."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {}
    for part in parts:
        schemas[f"{part.name}Error"] = part.error
        for route in part.routes:
            if isinstance(route, Route) and _name(route) not in part.left_out:
                path = _CONVERTER.sub(r"{\1}", route.path)
                for method in sorted((route.methods or set()) - {"HEAD"}):
                    paths.setdefault(path, {})[method.lower()] = _operation(part, route, path, method)
    return {
        "openapi": "3.0.1",
        "info": {"title": title, "version": package_version("partita")},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def openapi_route(described: Mapping[str, Any]) -> Route:
    """Return the route that answers a document."""
    encoded = msgspec.json.encode(described)

    async def openapi(request: Request) -> Response:  # noqa: ARG001
        return Response(encoded, media_type="application/json")

    return Route(PATH, openapi)


def _operation(part: Described, route: Route, path: str, method: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": f"{method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', path)}",
        "summary": (inspect.getdoc(route.endpoint) or "").split("\n")[0],
        "tags": [part.name],
        "parameters": _parameters(part, path, method),
        "responses": {str(status): _response(part, status) for status in sorted(part.statuses)},
    }
    if part.is_open:
        described["responses"]["default"] = {"description": "As the handler wants."}
    content = next((body for end, body in part.bodies.items() if path.endswith(end)), None)
    if content is not None and method in ("POST", "PUT", "PATCH"):
        described["requestBody"] = {"content": dict(content)}
    return described


def _parameters(part: Described, path: str, method: str) -> list[dict[str, Any]]:
    text = {"type": "string"}
    found = [
        {"name": name, "in": "path", "required": True, "schema": {**text, "minLength": 1}}
        for name in _PARAMETER.findall(path)
    ]
    queries = part.queries.get(f"{method} {path}", ())
    return found + [{"name": name, "in": "query", "required": False, "schema": text} for name in queries]


def _response(part: Described, status: int) -> dict[str, Any]:
    described: dict[str, Any] = {"description": _MEANINGS.get(status, "As the handler wants.")}
    if status >= 400:
        schema = {"$ref": f"#/components/schemas/{part.name}Error"}
        described["content"] = {"application/json": {"schema": schema}}
    return described


def _name(route: Route) -> str:
    return getattr(route.endpoint, "__name__", "")
