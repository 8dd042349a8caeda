"""Pages of other origins: refused by browsers unless the server's settings name them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partita.embedded import Server
from partita.settings import ServerSettings
from tests import models
from tests.e2e.test_torchserve import LOCAL, serving
from tests.raw_client import RawClient, infer, request

pytestmark = pytest.mark.e2e

OURS, OTHER = "https://app.example:8443", "https://evil.example"
ALLOW = "access-control-allow-origin"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.linear(tmp_path_factory.mktemp("cors") / "linear.onnx")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with serving(model, metrics=LOCAL, cors_origins=(OURS,)) as running:
        yield running


def asked(url: str, raw: bytes, *fields: str) -> tuple[int, dict[str, str], bytes]:
    """Send a request with further header fields."""
    more = "".join(f"{field}\r\n" for field in fields).encode()
    with RawClient(url) as client:
        client.send(raw.replace(b"\r\n", b"\r\n" + more, 1).replace(b"Host: h", b"Host: localhost"))
        return client.answer()


def inference() -> bytes:
    data = [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]
    return infer("linear", json.dumps({"inputs": data}).encode())


WAYS = {
    "inference": ("http", inference()),
    "an unknown model": ("http", infer("none", b"{}")),
    "metadata": ("http", request("/v2/models/linear", b"", method="GET")),
    "a prediction": ("http", request("/predictions/linear", b"[1, 2, 3, 4]")),
    "an error of TorchServe's": ("http", request("/predictions/none", b"")),
    "management": ("management", request("/models", b"", method="GET")),
    "metrics": ("metrics", request("/metrics", b"", method="GET")),
}


@pytest.mark.parametrize("way", WAYS)
def test_answers_name_the_origins_of_the_settings_alone(server: Server, way: str) -> None:
    port, raw = WAYS[way]
    status, plain, body = asked(server.url(port), raw)
    assert ALLOW not in plain
    got, fields, same = asked(server.url(port), raw, f"Origin: {OURS}")
    assert (got, same) == (status, body) or port == "metrics"
    assert (fields[ALLOW], fields["vary"]) == (OURS, "origin")
    assert "inference-header-content-length" in fields["access-control-expose-headers"]
    assert ALLOW not in asked(server.url(port), raw, f"Origin: {OTHER}")[1]


@pytest.mark.parametrize("way", WAYS)
def test_browsers_may_ask_beforehand(server: Server, way: str) -> None:
    port, raw = WAYS[way]
    path = raw.split(b" ", 2)[1].decode()
    ask = request(path, b"", "Access-Control-Request-Method: POST", method="OPTIONS")
    wanted = "Access-Control-Request-Headers: content-type,inference-header-content-length"
    status, fields, body = asked(server.url(port), ask, f"Origin: {OURS}", wanted)
    assert (status, body, fields[ALLOW]) == (204, b"", OURS)
    assert "POST" in fields["access-control-allow-methods"]
    assert fields["access-control-allow-headers"] == "content-type,inference-header-content-length"
    status, fields, _ = asked(server.url(port), ask, f"Origin: {OTHER}", wanted)
    assert ALLOW not in fields
    assert "access-control-allow-methods" not in fields


def test_the_same_asked_again_on_one_connection(server: Server) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
    text = json.dumps({"inputs": [tensor]}).encode()
    raw = infer("linear", text + bytes(16), header=len(text))
    with RawClient(server.url()) as client:
        for _ in range(4):
            client.send(raw.replace(b"\r\n", f"\r\nOrigin: {OURS}\r\n".encode(), 1))
            status, fields, _ = client.answer()
            assert (status, fields[ALLOW]) == (200, OURS)


def test_nothing_is_said_of_origins_by_default_and_a_page_may_not_change_anything(model: Path) -> None:
    load = request("/v2/repository/models/linear/load", b"")
    with serving(model) as server:
        assert ALLOW not in asked(server.url(), inference(), f"Origin: {OURS}")[1]
        for port in ("http", "management"):
            status, _, body = asked(server.url(port), load, f"Origin: {OTHER}")
            assert (status, b"cors_origins" in body) == (403, True)


def test_every_origin(model: Path) -> None:
    with serving(model, cors_origins=("*",)) as server:
        assert asked(server.url(), inference(), f"Origin: {OTHER}")[1][ALLOW] == OTHER


@pytest.mark.parametrize("origin", [OTHER, "http://203.0.113.5"])
def test_a_page_hears_why_it_may_not_register_a_model(model: Path, origin: str) -> None:
    with serving(model, enable_model_api=True) as server:
        register = request("/models?url=linear.onnx", b"")
        status, _, body = asked(server.url("management"), register, f"Origin: {origin}")
        said = json.loads(body)
        assert (status, said["type"]) == (403, "ForbiddenException")
        assert "cors_origins" in said["message"]
        status, _, body = asked(server.url("management"), register)
        assert b"cors_origins" not in body


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("https://app.example:8443", "https://app.example:8443"),
        ("https://App.Example", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("HTTP://app.example:080", "http://app.example"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://[0:0:0:0:0:0:0:1]:80", "http://[::1]"),
        ("moz-extension://0af7", "moz-extension://0af7"),
        ("*", "*"),
    ],
)
def test_origins_are_read_as_browsers_write_them(given: str, read: str) -> None:
    assert ServerSettings(cors_origins=(given,)).cors_origins == (read,)


@pytest.mark.parametrize(
    "origin",
    [
        "app.example",
        "https://app.example/",
        "https://",
        "http://a:b",
        "http://a:65536",
        "http://[::1",
        "http://[:1]",
        "http://me@a",
        "https://*.example",
        "https://a\n",
        "",
    ],
)
def test_what_is_no_origin(origin: str) -> None:
    given: dict[str, Any] = {"cors_origins": (origin,)}
    with pytest.raises(ValueError, match="cors_origins"):
        ServerSettings(**given)
