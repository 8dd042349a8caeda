"""What the ports have in common: refusals that are counted, content codings, how many may be connected."""

import gzip
import logging
import resource
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from partita.embedded import Server
from partita.settings import ServerSettings, Settings
from partita.system.addresses import Address
from tests import models
from tests.raw_client import RawClient, request

pytestmark = pytest.mark.e2e

LOCAL = Address("127.0.0.1", 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    settings = ServerSettings(
        http=LOCAL,
        metrics=LOCAL,
        management=LOCAL,
        token_auth=False,
        max_connections=3,
        max_body_bytes=20_000,
    )
    model = models.linear(tmp_path / "linear.onnx")
    with Server([model], cores=1, tune="never", settings=Settings(server=settings), ports=True) as running:
        yield running


def metric(server: Server, name: str) -> dict[tuple[str, ...], float]:
    with RawClient(server.url("metrics")) as client:
        client.send(request("/metrics", method="GET"))
        status, _, body = client.answer()
    assert status == 200
    return {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name == name
    }


REFUSED = {
    400: b"nonsense\r\n\r\n",
    413: b"POST /v2 HTTP/1.1\r\nHost: h\r\nContent-Length: 20001\r\n\r\n",
    431: b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000,
}


def test_refusals_are_counted_by_port_and_status(server: Server) -> None:
    for status, data in REFUSED.items():
        for _ in range(2):
            with RawClient(server.url()) as client:
                client.send(data)
                assert client.answer()[0] == status
    assert metric(server, "partita_http_refusals_total") == {
        ("http", "400"): 2.0,
        ("http", "413"): 2.0,
        ("http", "431"): 2.0,
    }


def test_connections_are_counted_and_those_over_the_limit_refused(server: Server) -> None:
    ready = request("/v2/health/ready", method="GET")
    clients = [RawClient(server.url()) for _ in range(3)]
    assert [client.ask(ready)[0] for client in clients] == [200] * 3
    with RawClient(server.url()) as one_more:
        status, _, body = one_more.answer()
        assert (status, b"max_connections = 3" in body) == (503, True)
        assert (
            metric(server, "partita_http_connections")[("http",)] == 4
        )  # it has not read that it is refused
    for client in clients:
        client.__exit__()
    assert metric(server, "partita_http_refusals_total") == {("http", "503"): 1.0}


@pytest.mark.parametrize(
    ("coding", "pack", "unpack"),
    [("gzip", gzip.compress, gzip.decompress), ("deflate", zlib.compress, zlib.decompress)],
)
def test_codings_on_every_route(server: Server, coding: str, pack: object, unpack: object) -> None:
    assert callable(pack)
    assert callable(unpack)
    with RawClient(server.url("metrics")) as client:
        client.send(request("/metrics", b"", f"Accept-Encoding: {coding}", method="GET"))
        _, headers, body = client.answer()
        assert headers["content-encoding"] == coding
        assert b"partita_ready" in unpack(body)
    with RawClient(server.url()) as client:
        asked = [b'{"ready": true}', b'{"ready": ' + b" " * 30_000 + b"true}"]
        answers = [
            client.ask(request("/v2/repository/index", pack(a), f"Content-Encoding: {coding}")) for a in asked
        ]
    assert answers[0] == (200, [{"name": "linear", "version": "1", "state": "READY", "reason": ""}])
    assert answers[1][0] == 413
    assert "max_body_bytes = 20000" in answers[1][1]["error"]


def test_a_limit_that_the_system_does_not_allow_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this system has no hard limit")
    settings = ServerSettings(http=LOCAL, metrics=None, management=None, max_connections=hard + 1)
    model = models.linear(tmp_path / "linear.onnx")
    with (
        caplog.at_level(logging.WARNING, "partita"),
        Server([model], cores=1, tune="never", settings=Settings(server=settings), ports=True),
    ):
        assert f"the system allows {hard}" in caplog.text
