"""The real `tritonclient.http` against an embedded server, unmodified."""

import gzip
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest

from partita.embedded import Server
from partita.settings import Settings
from partita.system.addresses import Address
from tests import models
from tests.raw_client import RawClient, infer

triton = pytest.importorskip("tritonclient.http")

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    models.linear(folder / "linear.onnx")
    models.two_inputs(folder / "two.onnx")
    local = Address("127.0.0.1", 0)
    base = Settings()
    settings = msgspec.structs.replace(
        base, server=msgspec.structs.replace(base.server, http=local, metrics=local, grpc=local, tune="never")
    )
    paths = [folder / "linear.onnx", folder / "two.onnx"]
    with Server(paths, settings=settings, ports=True) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    made = triton.InferenceServerClient(str(server.head.ports["http"]))
    yield made
    made.close()


def linear_input(rows: int = 3, *, binary: bool = True) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    tensor = triton.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x, binary_data=binary)
    return x, tensor


def test_health_metadata_and_configuration(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("linear")
    assert "statistics" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata("linear")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert client.get_model_config("linear")["max_batch_size"] > 0
    assert {entry["name"] for entry in client.get_model_repository_index()} == {"linear", "two"}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer_gives_what_the_engine_gives(
    server: Server, client: Any, binary_in: bool, binary_out: bool
) -> None:
    x, tensor = linear_input(binary=binary_in)
    wanted = [triton.InferRequestedOutput("y", binary_data=binary_out)]
    answer = client.infer("linear", [tensor], outputs=wanted, request_id="seven")
    np.testing.assert_allclose(answer.as_numpy("y"), server.predict("linear", x)["y"], rtol=1e-6)
    assert answer.get_response()["id"] == "seven"


def test_infer_without_listed_outputs_and_with_a_version(server: Server, client: Any) -> None:
    x, tensor = linear_input()
    answer = client.infer("linear", [tensor], model_version="1")
    np.testing.assert_allclose(answer.as_numpy("y"), server.predict("linear", x)["y"], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression_both_ways(server: Server, client: Any, algorithm: str) -> None:
    x, tensor = linear_input(500)
    answer = client.infer(
        "linear",
        [tensor],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    np.testing.assert_allclose(answer.as_numpy("y"), server.predict("linear", x)["y"], rtol=1e-6)


def test_classification(server: Server, client: Any) -> None:
    x, tensor = linear_input(2)
    answer = client.infer("linear", [tensor], outputs=[triton.InferRequestedOutput("y", class_count=2)])
    best = [int(text.split(b":")[1]) for text in answer.as_numpy("y")[:, 0]]
    assert best == server.predict("linear", x)["y"].argmax(axis=1).tolist()


def test_async_infer_keeps_answers_apart(server: Server) -> None:
    client = triton.InferenceServerClient(str(server.head.ports["http"]), concurrency=4)
    x = np.eye(4, dtype=np.float32)
    pending = []
    for row in x:
        tensor = triton.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(row[None])
        pending.append(client.async_infer("linear", [tensor]))
    expected = server.predict("linear", x)["y"]
    for row, one in zip(expected, pending, strict=True):
        np.testing.assert_allclose(one.get_result().as_numpy("y")[0], row, rtol=1e-6)
    client.close()


def test_statistics_have_every_key_and_count(client: Any) -> None:
    before = client.get_inference_statistics("linear")["model_stats"][0]
    client.infer("linear", [linear_input(3)[1]])
    after = client.get_inference_statistics("linear", "1")["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 3
    assert set(after["inference_stats"]) == {
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
        "cache_hit", "cache_miss",
    }  # fmt: skip
    assert {entry["name"] for entry in client.get_inference_statistics()["model_stats"]} == {"linear", "two"}


WRONG = {
    "name": ({"name": "z", "shape": [1, 4], "datatype": "FP32", "data": [0] * 4}, "unexpected input 'z'"),
    "datatype": ({"name": "x", "shape": [1, 4], "datatype": "FP64", "data": [0] * 4}, "wants FP32"),
    "shape": ({"name": "x", "shape": [1, 5], "datatype": "FP32", "data": [0] * 5}, "wants [-1, 4]"),
    "rank": ({"name": "x", "shape": [4], "datatype": "FP32", "data": [0] * 4}, "wants [-1, 4]"),
    "no items": ({"name": "x", "shape": [0, 4], "datatype": "FP32", "data": []}, "no items"),
    "too few values": ({"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0]}, "1 values"),
    "kind of value": (
        {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": ["a"] * 4},
        "type int or float",
    ),
    "no data": ({"name": "x", "shape": [1, 4], "datatype": "FP32"}, "needs either data or"),
}


def post(server: Server, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(server.url() + path, body, headers or {}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_says_what_is_wrong(server: Server, case: str) -> None:
    tensor, text = WRONG[case]
    status, answer = post(server, "/v2/models/linear/infer", json.dumps({"inputs": [tensor]}).encode())
    assert status == 400
    assert text in answer["error"]


def truncated(row: list[float]) -> bytes:
    document = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    text = json.dumps({"inputs": [document]}).encode()
    return infer("linear", text + np.array(row, np.float32).tobytes()[:12], header=len(text))


def wrong_rows(row: list[float]) -> bytes:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": row[:3]}
    return infer("linear", json.dumps({"inputs": [tensor]}).encode())


def no_json(row: list[float]) -> bytes:
    return infer("linear", json.dumps({"inputs": row}).encode()[:-1])


@pytest.mark.parametrize("malformed", [truncated, wrong_rows, no_json])
def test_of_eight_at_once_the_malformed_one_alone_fails(
    server: Server, malformed: Callable[[list[float]], bytes]
) -> None:
    x = np.random.default_rng(2).normal(size=(8, 4)).astype(np.float32)
    start = threading.Barrier(8)

    def one(k: int) -> Any:
        if k == 3:
            with RawClient(server.url()) as raw:
                start.wait(20)
                return raw.ask(malformed(x[k].tolist()))
        client = triton.InferenceServerClient(str(server.head.ports["http"]))
        tensor = triton.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(x[k : k + 1])
        start.wait(20)
        answer = client.infer("linear", [tensor]).as_numpy("y")
        client.close()
        return answer

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(8)))
    status, document = found.pop(3)
    assert (status, list(document)) == (400, ["error"])
    expected = np.delete(server.predict("linear", x)["y"], 3, axis=0)
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-5)


def test_a_truncated_body_an_unknown_model_and_an_unknown_path(server: Server) -> None:
    document = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    text = json.dumps({"inputs": [document]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    status, answer = post(server, "/v2/models/linear/infer", text + bytes(12), headers)
    assert (status, "12 bytes" in answer["error"]) == (400, True)
    assert post(server, "/v2/models/none/infer", b"{}")[0] == 404
    assert post(server, "/v2/models/linear/versions/9/infer", b"{}")[0] == 404
    assert post(server, "/v2/nowhere", b"") == (404, {"error": "Not Found"})
    status, answer = post(server, "/nowhere", b"")  # may be TorchServe's client, which reads other keys
    assert (status, answer["error"], answer["type"]) == (404, "Not Found", "ResourceNotFoundException")
    assert post(server, "/v2/models/linear/infer", b"{not json")[0] == 400
    assert post(server, "/v2/models/linear", b"")[0] == 405


def test_a_compressed_bomb_is_refused(server: Server) -> None:
    limit = server.settings.server.max_body_bytes
    bomb = gzip.compress(bytes(limit + 1), compresslevel=9)
    status, answer = post(server, "/v2/models/linear/infer", bomb, {"Content-Encoding": "gzip"})
    assert status == 413
    assert "max_body_bytes" in answer["error"]


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_trace_and_log_settings_are_read_and_not_changed(server: Server, door: str) -> None:
    kind = triton if door == "http" else pytest.importorskip("tritonclient.grpc")
    errors = pytest.importorskip("tritonclient.utils")
    client = kind.InferenceServerClient(str(server.head.ports[door]))
    more = {} if door == "http" else {"as_json": True}

    def said(document: Any) -> dict[str, Any]:
        if door == "http":
            return dict(document)
        return {k: next(iter(v.values()), None) for k, v in document["settings"].items()}

    trace = said(client.get_trace_settings(**more))
    assert (trace["trace_level"], trace["trace_mode"]) == (
        ["OFF"],
        "opentelemetry" if door == "http" else ["opentelemetry"],
    )
    assert said(client.get_trace_settings("linear", **more)) == trace
    same = client.update_trace_settings(settings={"trace_level": ["OFF"], "trace_rate": None}, **more)
    assert said(same) == trace
    log = said(client.get_log_settings(**more))
    assert (log["log_info"], log["log_verbose_level"]) == (True, 0)
    assert said(client.update_log_settings({"log_info": True}, **more)) == log
    changes: list[Callable[[], Any]] = [
        lambda: client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]}),
        lambda: client.update_log_settings({"log_info": False}),
        lambda: client.update_log_settings({"nothing": 1}),
        lambda: client.get_trace_settings("none"),
    ]
    for change in changes:
        with pytest.raises(errors.InferenceServerException) as caught:
            change()
        assert caught.value.status() in ("400", "404", "StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND")
    client.close()


def test_several_inputs_in_any_order(server: Server, client: Any) -> None:
    inputs = server.signature("two").inputs
    arrays = {s.name: np.ones((2, *s.shape), s.datatype.numpy) for s in inputs}
    tensors = []
    for spec in reversed(inputs):
        tensor = triton.InferInput(spec.name, list(arrays[spec.name].shape), spec.datatype.value)
        tensor.set_data_from_numpy(arrays[spec.name])
        tensors.append(tensor)
    answer = client.infer("two", tensors)
    for name, expected in server.predict("two", arrays).items():
        np.testing.assert_allclose(answer.as_numpy(name), expected, rtol=1e-6)


def test_metrics_reconcile_with_what_was_asked(server: Server, client: Any) -> None:
    def answered() -> float:
        with urllib.request.urlopen(server.url("metrics") + "/metrics", timeout=20) as page:
            lines = page.read().decode().splitlines()
        found = [one for one in lines if one.startswith('partita_requests_total{model="linear",outcome="ok"')]
        return float(found[0].rsplit(" ", 1)[1])

    before = answered()
    for _ in range(5):
        client.infer("linear", [linear_input(1)[1]])
    assert answered() - before == 5
