"""Each port's OpenAPI document: it names every route, and what is answered is in it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partita.embedded import Server
from tests import models
from tests.e2e.test_torchserve import LOCAL, ask, serving

pytestmark = pytest.mark.e2e

PORTS = ("http", "management", "metrics")
METHODS = {"get", "post", "put", "delete", "patch", "options"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("store")
    models.linear(place / "linear.onnx")
    with serving(place, metrics=LOCAL, enable_model_api=True) as running:
        yield running


@pytest.fixture(scope="module")
def documents(server: Server) -> dict[str, Any]:
    return {port: json.loads(ask(server, "GET", "/openapi.json", port=port)[2]) for port in PORTS}


EXPECTED = {
    "http": [
        "/v2/models/{model}/infer",
        "/predictions/{model}",
        "/v2/health/ready",
        "/ping",
        "/explanations/{model}",
    ],
    "management": ["/models", "/models/{model}", "/v2/models/{model}/plan", "/v2/repository/index"],
    "metrics": ["/metrics"],
}


@pytest.mark.parametrize("port", PORTS)
def test_the_documents_are_whole(port: str, documents: dict[str, Any]) -> None:
    found = documents[port]
    assert found["openapi"] == "3.0.1"
    assert set(EXPECTED[port]) <= found["paths"].keys()
    ids = [one["operationId"] for methods in found["paths"].values() for one in methods.values()]
    assert len(ids) == len(set(ids))
    for path, methods in found["paths"].items():
        assert set(methods) <= METHODS
        for one in methods.values():
            named = {p["name"] for p in one["parameters"] if p["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path)), path
            assert one["summary"], path
            assert "200" in one["responses"]
    references = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found))
    assert set(references) <= found["components"]["schemas"].keys()


@pytest.mark.parametrize("port", PORTS)
def test_every_answer_to_a_bare_request_is_in_the_document(
    port: str, server: Server, documents: dict[str, Any]
) -> None:
    for path, methods in documents[port]["paths"].items():
        real = re.sub(r"\{(\w+)\}", lambda m: {"model": "linear", "version": "1"}.get(m[1], "x"), path)
        for method, one in methods.items():
            if method == "delete" or real.endswith("/unload"):
                continue
            status, _, body = ask(server, method.upper(), real, port=port)
            assert str(status) in one["responses"], (method, real, status, body)
            if status >= 400:
                tag = "TorchServe" if one["tags"] == ["TorchServe"] else "other"
                wanted = {"code", "type", "message"} if tag == "TorchServe" else {"error"}
                assert set(json.loads(body)) == wanted, (method, real, body)


def test_options_answers_the_document(server: Server, documents: dict[str, Any]) -> None:
    assert json.loads(ask(server, "OPTIONS", "/")[2]) == documents["http"]


def test_a_document_is_made_from_the_routes_that_there_are(tmp_path: Path) -> None:
    models.linear(tmp_path / "linear.onnx")
    with serving(tmp_path, management=None) as running:
        found = json.loads(ask(running, "GET", "/openapi.json")[2])
    assert "/v2/repository/models/{model}/load" not in found["paths"]
