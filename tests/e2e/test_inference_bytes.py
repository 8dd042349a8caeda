"""The inference port byte by byte: raw bodies, compression, pipelining, and clients that go away."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from partita.embedded import Server
from partita.settings import ModelSettings, Settings
from partita.system.addresses import Address
from tests import models
from tests.engine_driver import LIMIT_S
from tests.raw_client import RawClient, infer, request

pytestmark = pytest.mark.e2e

ECHO = """
import numpy as np

class Echo:
    inputs = {"t": {"shape": [-1, -1], "datatype": "BYTES"}}
    outputs = {"t": {"shape": [-1, -1], "datatype": "BYTES"}}

    def infer(self, batch):
        return {"t": batch["t"]}

class One(Echo):
    inputs = {"t": {"shape": [-1, 1], "datatype": "BYTES"}}
    outputs = {"t": {"shape": [-1, 1], "datatype": "BYTES"}}
"""
LIMIT = 1 << 16
X = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
"""(3, 4) float32: what most tests ask about."""


def python_model(folder: Path, name: str, cls: str, source: str = ECHO) -> Path:
    (folder / name).mkdir()
    (folder / name / "handler.py").write_text(source, encoding="utf-8")
    (folder / name / "partita.toml").write_text(f'[model.{name}]\nhandler = "handler.py:{cls}"\n')
    return folder / name


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    paths = [
        models.linear(folder / "linear.onnx"),
        models.two_inputs(folder / "two.onnx"),
        models.sequence_sum(folder / "sum.onnx"),
        python_model(folder, "echo", "Echo"),
        python_model(folder, "one", "One"),
    ]
    local = Address("127.0.0.1", 0)
    base = Settings(model={"linear": ModelSettings(queue_size=64), "echo": ModelSettings(queue_size=64)})
    limits = msgspec.structs.replace(base.server, http=local, metrics=local, max_body_bytes=LIMIT)
    settings = msgspec.structs.replace(base, server=limits)
    with Server(paths, cores=1, tune="never", settings=settings, ports=True) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    with RawClient(server.url()) as made:
        yield made


def linear(x: np.ndarray[Any, Any] = X) -> np.ndarray[Any, Any]:
    weight, bias = models.linear_weights()
    result: np.ndarray[Any, Any] = x @ weight + bias
    return result


def text(x: np.ndarray[Any, Any] = X, **more: Any) -> bytes:
    size = {"binary_data_size": x.nbytes}
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "parameters": size}
    return json.dumps({"inputs": [tensor], **more}).encode()


def y_of(answer: tuple[int, dict[str, str], bytes]) -> np.ndarray[Any, Any]:
    status, headers, body = answer
    assert status == 200, body
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    length = int(headers.get("inference-header-content-length", len(body)))
    (output,) = json.loads(body[:length])["outputs"]
    if "data" in output:
        return np.array(output["data"], np.float32).reshape(output["shape"])
    return np.frombuffer(body[length:], np.float32).reshape(output["shape"])


# --- bodies ---------------------------------------------------------------------------------------


def test_the_same_question_in_every_form_has_the_same_answer(client: RawClient) -> None:
    asked = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 4], "data": X.tolist()}]}
    ).encode()
    binary = text() + X.tobytes()
    wants_binary = text(parameters={"binary_data_output": True})
    forms = [
        infer("linear", asked),
        infer("linear", asked, header=len(asked)),
        infer("linear", binary, header=len(text())),
        infer("linear", binary, header=len(text())),  # now remembered
        infer("linear", wants_binary + X.tobytes(), header=len(wants_binary)),
        infer("linear", wants_binary + X.tobytes(), header=len(wants_binary)),
        infer("linear", X.tobytes(), header=0),
        infer("linear", gzip.compress(asked), "Content-Encoding: gzip"),
        infer("linear", zlib.compress(asked), "Content-Encoding: deflate"),
        infer("linear", binary, "Content-Encoding: identity", header=len(text())),
        infer("linear", gzip.compress(binary), "Content-Encoding: gzip", header=len(text())),
        infer("linear", gzip.compress(X.tobytes()), "Content-Encoding: gzip", header=0),
    ]
    for form in forms:
        client.send(form)
        np.testing.assert_allclose(y_of(client.answer()), linear(), rtol=1e-4, atol=1e-5)


def test_a_large_answer_is_compressed_where_the_client_takes_it(client: RawClient) -> None:
    x = np.zeros((60, 4), np.float32)
    for more in ({}, {"parameters": {"binary_data_output": True}}):
        asked = text(x, **more)
        client.send(infer("linear", asked + x.tobytes(), "Accept-Encoding: gzip", header=len(asked)))
        answer = client.answer()
        assert (answer[1].get("content-encoding") == "gzip") == (not more)  # 720 bytes are not worth it
        np.testing.assert_allclose(y_of(answer), linear(x), rtol=1e-4, atol=1e-5)


WRONG = {
    "gzip that is none": (b"x" * 50, ["Content-Encoding: gzip"], None, 400, "is not gzip"),
    "gzip cut short": (gzip.compress(text())[:-4], ["Content-Encoding: gzip"], None, 400, "ends early"),
    "deflate that is none": (b"x" * 50, ["Content-Encoding: deflate"], None, 400, "is not deflate"),
    "a bomb": (gzip.compress(bytes(LIMIT + 1)), ["Content-Encoding: gzip"], None, 413, "max_body_bytes"),
    "a deflated bomb": (zlib.compress(bytes(LIMIT * 9)), ["Content-Encoding: deflate"], None, 413, "over"),
    "another coding": (b"", ["Content-Encoding: br"], None, 400, "use gzip or deflate"),
    "a header beyond the body": (text(), [], len(text()) + 1, 400, "but the body has"),
    "a remembered text beyond it": (text(), [], len(text()) + 99, 400, "but the body has"),
    "too little data": (text() + bytes(44), [], len(text()), 400, "has 44 bytes of tensor data"),
    "too much data": (text() + bytes(49), [], len(text()), 400, "its inputs say 48"),
    "data after JSON": (b'{"inputs":[]}x', [], 13, 400, "input 'x' is missing"),
    "a raw body of no items": (b"", [], 0, 400, "the raw body has 0 bytes"),
    "a raw body of some items": (bytes(17), [], 0, 400, "one item of the model has 16"),
    "nothing": (b"", [], None, 400, "truncated"),
    "too many items": (bytes(16 * 65), [], 0, 413, "queue_size = 64"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_body_is_told_and_the_connection_goes_on(client: RawClient, case: str) -> None:
    body, fields, header, status, said = WRONG[case]
    client.send(infer("linear", text() + X.tobytes(), header=len(text())))
    client.answer()
    got, document = client.ask(infer("linear", body, *fields, header=header))
    assert (got, list(document)) == (status, ["error"])
    assert said in document["error"]
    client.send(infer("linear", X.tobytes(), header=0))
    np.testing.assert_allclose(y_of(client.answer()), linear(), rtol=1e-4, atol=1e-5)


def test_a_body_over_the_limit_is_refused_and_the_client_hears_why(client: RawClient) -> None:
    """Even if it sends all of it first: a connection reset by unread bytes would take the answer along."""
    client.send(infer("linear", bytes(LIMIT * 40), header=0))
    status, headers, body = client.answer()
    assert (status, headers["connection"]) == (413, "close")
    assert f"max_body_bytes = {LIMIT}" in json.loads(body)["error"]
    assert client.is_at_end()


# --- BYTES ----------------------------------------------------------------------------------------


def test_strings_in_json_and_in_binary(client: RawClient) -> None:
    tensor: dict[str, Any] = {
        "name": "t",
        "datatype": "BYTES",
        "shape": [2, 2],
        "data": [["a", ""], ["é", "xyz"]],
    }
    status, document = client.ask(infer("echo", json.dumps({"inputs": [tensor]}).encode()))
    assert (status, document["outputs"][0]["data"]) == (200, ["a", "", "é", "xyz"])
    raws = [b"\xff\0", b"", b"abc"]
    data = b"".join(len(raw).to_bytes(4, "little") + raw for raw in raws)
    tensor = {
        "name": "t",
        "datatype": "BYTES",
        "shape": [3, 1],
        "parameters": {"binary_data_size": len(data)},
    }
    asked = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    for _ in range(2):
        client.send(infer("echo", asked + data, header=len(asked)))
        status, headers, body = client.answer()
        assert status == 200
        assert body[int(headers["inference-header-content-length"]) :] == data


def test_a_raw_body_is_one_string(client: RawClient) -> None:
    client.send(infer("one", b"any\0thing", header=0))
    status, headers, body = client.answer()
    assert status == 200
    assert body[int(headers["inference-header-content-length"]) :] == b"\x09\0\0\0any\0thing"
    status, document = client.ask(infer("echo", b"any", header=0))
    assert (status, "fixed item shape" in document["error"]) == (400, True)


def test_more_empty_items_than_may_wait_are_refused_before_they_are_made(client: RawClient) -> None:
    tensor = {"name": "t", "datatype": "BYTES", "shape": [1 << 40, 0], "data": []}
    status, document = client.ask(infer("echo", json.dumps({"inputs": [tensor]}).encode()))
    assert (status, "queue_size = 64" in document["error"]) == (413, True)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1 << 40, 0, 4], "data": []}
    assert client.ask(infer("sum", json.dumps({"inputs": [tensor]}).encode()))[0] == 413


# --- the connection -------------------------------------------------------------------------------


def test_pipelined_requests_of_all_kinds_are_answered_in_order(client: RawClient) -> None:
    rows = [np.full((1, 4), k, np.float32) for k in range(20)]
    stream = b"".join(
        infer("linear", x.tobytes(), header=0) + request("/v2/models/linear", method="GET") for x in rows
    )
    client.send(stream)
    for x in rows:
        np.testing.assert_allclose(y_of(client.answer()), linear(x), rtol=1e-4, atol=1e-4)
        assert json.loads(client.answer()[2])["name"] == "linear"


def test_chunks_are_a_body_like_any_other(client: RawClient) -> None:
    head = (
        b"POST /v2/models/linear/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
        b"Inference-Header-Content-Length: 0\r\n\r\n"
    )
    data = X.tobytes()
    client.send(head)
    for at in range(0, len(data), 10):
        client.send(b"%x\r\n%b\r\n" % (len(data[at : at + 10]), data[at : at + 10]))
    client.send(b"0\r\n\r\n")
    np.testing.assert_allclose(y_of(client.answer()), linear(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("line", ["GET /v2 HTTP/1.0\r\n", "GET /v2 HTTP/1.1\r\nConnection: close\r\n"])
def test_a_client_that_reads_to_the_end_gets_there(client: RawClient, line: str) -> None:
    client.send(f"{line}Host: h\r\n\r\n".encode())
    assert client.answer()[0] == 200
    assert client.is_at_end()


# --- the rest of the port -------------------------------------------------------------------------

PATHS = [
    ("GET", "/v2/nowhere", 404, "Not Found"),
    ("GET", "/v2/", 404, "Not Found"),
    ("GET", "/v2/models/none", 404, "none"),
    ("GET", "/v2/models/none/ready", 404, "none"),
    ("GET", "/v2/models/linear/versions/9", 404, "9"),
    ("POST", "/v2/models/none/infer", 404, "none"),
    ("POST", "/v2/models/linear/versions/9/infer", 404, "9"),
    ("POST", "/v2/models//infer", 404, "Not Found"),
    ("POST", "/v2/models/linear", 405, "method POST is not allowed for /v2/models/linear"),
    ("GET", "/v2/models/linear/infer", 405, "method GET is not allowed"),
    ("GET", "/v2/repository/index", 405, "method GET is not allowed"),
]


@pytest.mark.parametrize(("method", "path", "status", "said"), PATHS)
def test_paths_and_methods(client: RawClient, method: str, path: str, status: int, said: str) -> None:
    got, document = client.ask(request(path, method=method))
    assert (got, list(document)) == (status, ["error"])
    assert said in document["error"]


@pytest.mark.parametrize("path", ["/nowhere", "/v2/", "/v2/models/linear/infer", "/v2"])
def test_a_host_that_is_no_host_does_not_matter(client: RawClient, path: str) -> None:
    client.send(f"GET {path} HTTP/1.1\r\nHost: [\r\n\r\n".encode())
    assert client.answer()[0] in (200, 404, 405)


def test_a_repository_index_of_nonsense(client: RawClient) -> None:
    for body in (b"{", b"[]", b'{"ready": ' + b"[" * 50_000):
        assert client.ask(request("/v2/repository/index", body))[0] == 400


def test_the_metrics_port_speaks_no_inference(server: Server) -> None:
    with RawClient(server.url("metrics")) as client:
        client.send(infer("linear", b"", header=0))
        assert client.answer()[0] == 404


def test_a_client_that_goes_away_costs_nobody_anything(server: Server) -> None:
    service = server.head.engine.service("linear")
    for head in (infer("linear", X.tobytes(), header=0), request("/v2/models/stats", method="GET")):
        for _ in range(20):
            with RawClient(server.url(), LIMIT_S) as gone:
                gone.send(head * 3)
    with RawClient(server.url()) as client:
        client.send(infer("linear", X.tobytes(), header=0))
        np.testing.assert_allclose(y_of(client.answer()), linear(), rtol=1e-4, atol=1e-5)
    counts = service.statistics
    assert counts.accepted == counts.answered + counts.cancelled + counts.failures + counts.in_flight()


def test_requests_that_differ_in_their_data_alone_get_their_own_answers(client: RawClient) -> None:
    rng = np.random.default_rng(2)
    for rows in (3, 3, 3, 1, 3, 3, 1, 1):  # the same bytes before the data, or others of another length
        x = rng.standard_normal((rows, 4)).astype(np.float32)
        client.send(infer("linear", text(x) + x.tobytes(), header=len(text(x))))
        np.testing.assert_allclose(y_of(client.answer()), linear(x), rtol=1e-5)


def test_a_request_cut_anywhere_after_one_like_it_is_answered(client: RawClient) -> None:
    data = infer("linear", text() + X.tobytes(), header=len(text()))
    for cut in (0, 0, 1, 40, len(data) - len(X.tobytes()), len(data) - 1, 0):
        client.send(data[:cut])
        client.send(data[cut:] + data[: len(data) // 2])  # and the next one's beginning with its end
        np.testing.assert_allclose(y_of(client.answer()), linear(), rtol=1e-5)
        client.send(data[len(data) // 2 :])
        np.testing.assert_allclose(y_of(client.answer()), linear(), rtol=1e-5)
