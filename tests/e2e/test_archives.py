"""Archives made by the real archiver, served unmodified and asked as TorchServe's documentation asks."""

import gzip
import io
import json
import logging
import shutil
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from partita.embedded import Server
from partita.settings import ModelSettings, ServerSettings, Settings
from tests import archives
from tests.e2e.test_serve import until
from tests.e2e.test_torchserve import FORM_TYPE, JSON_TYPE, LOCAL, ask, multipart, serving
from tests.raw_client import RawClient, request

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

ANSWER = {"scores": [40.5, 120.5, 200.5], "who": None}
"""Weights 0…11 on 1 2 3 4 are 20, 60, 100; times 2, and a half more."""
ODD = """
    import json
    import torch

    calls = []

    def handle(data, context):
        if data is None:
            return
        bodies = [row.get("body") or row.get("data") for row in data]
        calls.append(len(bodies))
        text = bodies[0] if isinstance(bodies[0], str) else bytes(bodies[0]).decode()
        if text == "sizes":
            return [json.dumps(calls)] * len(data)
        if text == "short":
            return []
        if text == "text":
            return "no list"
        if text == "object":
            return [object()]
        if text == "tensor":
            return [torch.ones(2)]
        if text == "raises":
            raise ValueError("a secret: /etc/passwd")
        if text == "memory":
            raise MemoryError
        if text == "headers":
            return [json.dumps({k: v for k, v in context.get_all_request_header(0).items() if k != "body"})]
        if text == "parts":
            from ts.protocol.otf_message_handler import send_intermediate_predict_response
            send_intermediate_predict_response(["one "], context.request_ids, "more", 200, context)
            return ["two"]
        if text == "measures":
            from ts.metrics.dimension import Dimension
            context.metrics.add_counter("Odd-Things", 2, None, [Dimension("Kind", "odd")])
            context.metrics.add_percent("Share", 12.5)
            context.metrics.add_counter("Requests2XX", 1000)
            cached = context.metrics.add_metric_to_cache("Seen", "count", ["Who"])
            cached.add_or_update(3, ["me"])
        if text == "split":
            context.set_response_header(0, "X-Bad", "a\\r\\nX-Other: b")
            return ["split"]
        return [bodies[0]]
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("archives")
    archives.eager_archive(made)
    archives.function_archive(made, "shout", "--archive-format", "tgz")
    archives.picture_archive(made)
    archives.function_archive(made, "later")
    archives.archive(made, "odd", "--handler", "odd.py", odd__py=ODD)
    return made


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Server]:
    paths = [store / name for name in ("numbers.mar", "shout.tar.gz", "pictures.mar", "odd.mar")]
    server = {"enable_model_api": True, "model_store": str(store), "grpc": LOCAL}
    with serving(*paths, **server) as running:
        yield running


def answer(server: Server, model: str, body: bytes, *fields: str, path: str = "predictions") -> Any:
    status, _, data = ask(server, "POST", f"/{path}/{model}", body, *fields)
    assert status == 200, data
    return json.loads(data)


# --- what handlers get and answer -----------------------------------------------------------------


def test_an_eager_network_below_base_handler(server: Server) -> None:
    assert answer(server, "numbers", b"[1, 2, 3, 4]") == ANSWER
    assert answer(server, "numbers", b"[1, 2, 3, 4]", JSON_TYPE, "X-Who: me") == {**ANSWER, "who": "me"}
    assert answer(server, "numbers", *multipart(data=b"[1, 2, 3, 4]")) == ANSWER
    assert answer(server, "numbers", b"data=%5B1%2C2%2C3%2C4%5D", FORM_TYPE) == ANSWER
    assert answer(server, "numbers/1.0", b"[1, 2, 3, 4]") == ANSWER
    status, headers, _ = ask(server, "POST", "/predictions/numbers", b"[1, 2, 3, 4]")
    assert (status, headers["content-type"], headers["x-items"]) == (200, "application/json", "3")


def test_a_module_level_handle_in_a_tar_with_a_module_of_its_own(server: Server) -> None:
    status, headers, data = ask(server, "POST", "/predictions/shout", b"aloud")
    assert (status, headers["content-type"], data) == (200, "text/plain", b"ALOUD")


def test_a_torchscript_network_with_the_default_handler(server: Server) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = io.BytesIO()
    image.new("RGB", (300, 260), (255, 10, 0)).save(picture, "PNG")
    found = answer(server, "pictures", picture.getvalue())
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    colour = (np.array([1.0, 10 / 255, 0.0]) - mean) / deviation
    scores = np.concatenate([colour, colour * 0, -colour])
    expected = np.exp(scores) / np.exp(scores).sum()
    assert len(found) == 5
    assert found["label0"] == pytest.approx(expected[0], rel=1e-5)
    assert found["label7"] == pytest.approx(expected[7], rel=1e-5)


def test_the_status_that_a_handler_wants_is_the_one_that_is_answered(server: Server) -> None:
    status, _, data = ask(server, "POST", "/predictions/numbers", b"[1, 1e9, 1, 1]")
    assert status == 418
    assert "scores" in json.loads(data)
    status, _, data = ask(server, "POST", "/predictions/numbers", b'"refuse"')
    assert status == 422
    said = {"code": 422, "type": "InternalServerException", "message": "such a value is not served"}
    assert json.loads(data) == said


FAILURES = {
    b"short": (503, "number of batch response mismatched"),
    b"text": (503, "Invalid model predict output"),
    b"object": (503, "Unsupported model output data type."),
    b"raises": (503, "Prediction failed"),
    b"memory": (507, "Out of resources"),
}


@pytest.mark.parametrize("body", FAILURES)
def test_failures_are_told_as_torchserve_tells_them(body: bytes, server: Server) -> None:
    status, message = FAILURES[body]
    got, _, data = ask(server, "POST", "/predictions/odd", body)
    document = json.loads(data)
    assert (got, document["code"], document["message"]) == (status, status, message)
    assert b"secret" not in data


def test_what_else_a_handler_may_answer(server: Server) -> None:
    torch = pytest.importorskip("torch")
    tensor = ask(server, "POST", "/predictions/odd", b"tensor")[2]
    assert torch.load(io.BytesIO(tensor), weights_only=True).tolist() == [1, 1]
    assert ask(server, "POST", "/predictions/odd", b"parts")[2] == b"one two"
    _, headers, data = ask(server, "POST", "/predictions/odd", b"split")
    assert data == b"split"
    assert "x-other" not in headers
    headers = answer(server, "odd/1.0/some/where", b"headers", "X-Mine: 1", "Authorization: Bearer secret")
    assert headers["url_path"] == "some/where"
    assert headers["x-mine"] == "1"
    assert "secret" not in json.dumps(headers)


def test_explanations_and_descriptions_come_from_the_handler(server: Server) -> None:
    assert answer(server, "numbers", b"[1, 2, 3, 4]", path="explanations") == [1, 1, 1, 1]
    described = json.loads(ask(server, "GET", "/models/numbers?customized=true", port="management")[2])[0]
    assert described["customizedMetadata"] == {"knows": "numbers"}
    assert described["modelUrl"] == "numbers.mar"
    assert (described["batchSize"], described["modelVersion"]) == (8, "1.0")


MALFORMED: dict[str, tuple[bytes, str, int]] = {
    "a form that does not end": (multipart(data=b"[1, 2, 3, 4]")[0][:-4], multipart(data=b"")[1], 400),
    "what its handler refuses": (b'"refuse"', JSON_TYPE, 422),
    "what its handler cannot read": (b"nonsense", "X-Any: thing", 503),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_of_eight_requests_at_once_the_malformed_one_alone_fails(server: Server, case: str) -> None:
    *malformed, wanted = MALFORMED[case]
    asking = [malformed if k == 3 else [f"[{k}, 2, 3, 4]".encode()] for k in range(8)]
    start = threading.Barrier(8)

    def one(given: list[Any]) -> tuple[int, dict[str, str], bytes]:
        start.wait(20)
        return ask(server, "POST", "/predictions/numbers", *given)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, asking))
    assert [status for status, _, _ in found] == [wanted if k == 3 else 200 for k in range(8)]
    for k, (_, _, data) in enumerate(found):
        if k != 3:
            rows = np.arange(12).reshape(3, 4) @ [k, 2, 3, 4]
            assert json.loads(data)["scores"] == pytest.approx(2 * rows + 0.5)


def test_a_handler_that_takes_one_at_a_time_is_given_one_at_a_time(server: Server) -> None:
    found: list[bytes] = []

    def one(k: int) -> None:
        found.append(ask(server, "POST", "/predictions/odd", b"text %d" % k)[2])

    for _ in range(3):
        clients = [threading.Thread(target=one, args=(k,)) for k in range(12)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    assert sorted(set(found)) == sorted(b"text %d" % k for k in range(12))
    assert len(found) == 36
    sizes = answer(server, "odd", b"sizes")
    assert len([size for size in sizes if size > 1]) <= 2


def test_an_archive_over_the_open_inference_protocol(server: Server) -> None:
    tensor = {"name": "data", "shape": [2], "datatype": "BYTES", "data": ["[1, 2, 3, 4]", "[0, 0, 0, 0]"]}
    status, _, data = ask(
        server, "POST", "/v2/models/numbers/infer", json.dumps({"inputs": [tensor]}).encode()
    )
    assert status == 200
    first, second = json.loads(data)["outputs"][0]["data"]
    assert json.loads(first) == ANSWER
    assert json.loads(second)["scores"] == [0.5, 0.5, 0.5]


def test_an_archive_over_grpc(server: Server) -> None:
    grpc = pytest.importorskip("grpc")
    from partita.protocols.grpc.torchserve import INFERENCE, INFERENCE_CLASSES

    with grpc.insecure_channel(str(server.head.ports["grpc"])) as channel:
        call = channel.unary_unary(
            f"/{INFERENCE}.InferenceAPIsService/Predictions",
            request_serializer=INFERENCE_CLASSES["PredictionsRequest"].SerializeToString,
            response_deserializer=INFERENCE_CLASSES["PredictionResponse"].FromString,
        )
        request = INFERENCE_CLASSES["PredictionsRequest"]
        done = call(request(model_name="numbers", input={"data": b"[1, 2, 3, 4]"}), timeout=20)
        assert json.loads(done.prediction) == ANSWER
        with pytest.raises(grpc.RpcError) as failed:
            call(request(model_name="numbers", input={"data": b'"refuse"'}), timeout=20)
        assert "such a value is not served" in failed.value.details()


DOUBLES = """
    def handle(data, context):
        if data is None:
            return
        return [[2 * value for value in row["data"]] for row in data]
"""
V2 = {"name": "x", "shape": [3], "datatype": "FP32", "data": [1.5, 2.0, -3.0]}


def test_a_handler_that_speaks_the_open_inference_protocol(tmp_path: Path) -> None:
    archives.archive(tmp_path, "doubles", "--handler", "doubles.py", doubles__py=DOUBLES)
    model = {"doubles": ModelSettings(options={"envelope": "kservev2"})}
    settings = Settings(server=ServerSettings(http=LOCAL, metrics=None, management=None), model=model)
    with Server([tmp_path / "doubles.mar"], cores=1, tune="never", settings=settings, ports=True) as server:
        for path, name in (("infer", "predict"), ("explain", "explain")):
            body = json.dumps({"id": "mine", "inputs": [V2]}).encode()
            status, _, data = ask(server, "POST", f"/v2/models/doubles/{path}", body, JSON_TYPE)
            assert status == 200, data
            outputs = [{"name": name, "shape": [3], "datatype": "FP64", "data": [3.0, 4.0, -6.0]}]
            told = {"id": "mine", "model_name": "doubles", "model_version": "1.0", "outputs": outputs}
            assert json.loads(data) == told
        infer = "/v2/models/doubles/infer"
        packed = (("identity", body), ("gzip", gzip.compress(body)), ("deflate", zlib.compress(body)))
        with RawClient(server.url()) as client:  # one connection: an error does not close it
            for wrong, fields in ((b'{"inputs": []}', []), (body, ["Content-Encoding: gzip"])):
                client.send(request(infer, wrong, JSON_TYPE, *fields))
                status, headers, data = client.answer()
                assert (status, list(json.loads(data))) == (400 if fields else 500, ["error"])
                assert "connection" not in headers
            split = f"Inference-Header-Content-Length: {len(body)}"
            for content, status in ((body + bytes(12), 400), (body, 200)):
                client.send(request(infer, content, JSON_TYPE, split))
                answered, _, data = client.answer()
                assert answered == status, data
                assert status == 200 or "takes the protocol's JSON alone" in json.loads(data)["error"]
            for coding, content in packed:
                client.send(request(infer, content, JSON_TYPE, f"Content-Encoding: {coding}"))
                assert json.loads(client.answer()[2])["outputs"][0]["data"] == [3.0, 4.0, -6.0], coding
        with ThreadPoolExecutor(4) as pool:
            inputs = [[{**V2, "data": [float(k)] * 3}] for k in range(16)]
            asking = [json.dumps({"id": str(k), "inputs": one}).encode() for k, one in enumerate(inputs)]
            path = "/v2/models/doubles/infer"
            answers = list(pool.map(lambda body: ask(server, "POST", path, body, JSON_TYPE)[2], asking))
        for k, answer_to in enumerate(map(json.loads, answers)):
            assert (answer_to["id"], answer_to["outputs"][0]["data"]) == (str(k), [2.0 * k] * 3)


def test_such_a_handler_is_asked_with_the_inference_token_and_by_the_requests_own_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archives.archive(tmp_path, "doubles", "--handler", "doubles.py", doubles__py=DOUBLES)
    model = {"doubles": ModelSettings(options={"envelope": "kservev2"})}
    ports = ServerSettings(
        http=LOCAL, management=LOCAL, metrics=None, inference_token=True, log_requests=True
    )
    settings = Settings(server=ports, model=model)
    infer, body = "/v2/models/doubles/infer", json.dumps({"id": "mine", "inputs": [V2]}).encode()
    caplog.set_level(logging.INFO, "partita.requests")
    with Server([tmp_path / "doubles.mar"], cores=1, tune="never", settings=settings, ports=True) as server:
        keys = server.head.access.keys
        assert keys is not None
        status, _, data = ask(server, "POST", infer, body, JSON_TYPE)
        assert (status, list(json.loads(data))) == (403, ["error"])
        right = f"Authorization: Bearer {keys.current['inference'].value}"
        assert ask(server, "POST", infer, body, JSON_TYPE, right)[0] == 200
    (record,) = [one for one in caplog.records if one.name == "partita.requests"]
    assert record.fields["request_id"] == "mine"  # type: ignore[attr-defined]


def test_what_handlers_measure_is_among_the_metrics(store: Path) -> None:
    with serving(store / "odd.mar", metrics=LOCAL) as server:
        for _ in range(3):
            assert ask(server, "POST", "/predictions/odd", b"measures")[0] == 200
        assert ask(server, "POST", "/predictions/none", b"")[0] == 404
        assert ask(server, "POST", "/predictions/odd", b"raises")[0] == 503
        _, _, text = ask(server, "GET", "/metrics", port="metrics")
        wanted = ("Odd_Things", "PredictionTime")
        query = "&".join(f"name[]={name}" for name in wanted)
        _, _, chosen = ask(server, "GET", f"/metrics?{query}", port="metrics")
    samples = {
        sample.name: sample
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    hostname = samples["CPUUtilization"].labels["Hostname"]
    own = {"ModelName": "odd", "ModelVersion": "1.0", "Level": "Model", "Hostname": hostname}
    assert samples["Odd_Things"].labels == {"Kind": "odd", **own}
    assert samples["Odd_Things"].value == 6
    assert (samples["Seen"].value, samples["Seen"].labels["Who"]) == (9, "me")
    assert (samples["Share"].value, samples["Share"].labels) == (12.5, own)
    assert samples["PredictionTime"].value > 0
    assert samples["Requests2XX"].value == 3, "and not what a handler says under that name"
    assert samples["Requests5XX"].value == 1
    assert {"QueueTime", "WorkerThreadTime", "MemoryUtilization", "DiskUsage"} < samples.keys()
    assert samples["WorkerLoadTime"].labels["WorkerName"].endswith("-odd_1.0")
    assert b"partita_requests" not in chosen
    assert all(name.encode() in chosen for name in wanted)


# --- management -----------------------------------------------------------------------------------


def manage(server: Server, method: str, path: str, *, status: int = 200) -> Any:
    got, _, data = ask(server, method, path, port="management")
    assert got == status, data
    return json.loads(data)


def test_an_archive_is_registered_scaled_and_unregistered(server: Server) -> None:
    said = manage(server, "POST", "/models?url=later.mar")["status"]
    assert said.endswith(
        "registered with 0 initial workers. Use scale workers API to add workers for the model."
    )
    assert "later.mar" not in json.dumps(manage(server, "GET", "/models/later")[0]["workers"])
    assert ask(server, "POST", "/predictions/later", b"x")[0] == 503
    said = manage(server, "PUT", "/models/later?min_worker=1&synchronous=true")["status"]
    assert said == "Workers scaled to 1 for model: later"
    assert ask(server, "POST", "/predictions/later", b"x")[2] == b"X"
    folder = Path(server.head.engine.services["later"].member.launch.path)
    assert (folder / "MAR-INF").is_dir()
    assert manage(server, "DELETE", "/models/later")["status"] == 'Model "later" unregistered'
    deadline_s = time.monotonic() + 10
    while folder.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert ask(server, "POST", "/predictions/later", b"x")[0] == 404


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_lines_of_the_documentation_from_registering_to_unregistering(
    server: Server, store: Path, tmp_path: Path
) -> None:
    here, there = server.url(), server.url("management")
    archives.eager_archive(store, "second")
    archives.function_archive(tmp_path, "shout", "--force").replace(store / "newer.mar")
    (tmp_path / "item.json").write_text("[1, 2, 3, 4]")
    item = str(tmp_path / "item.json")

    def curl(*arguments: str, status: int = 200) -> Any:
        script = ["curl", "-sS", "--max-time", "60", "-w", "\n%{http_code}", *arguments]
        done = subprocess.run(script, capture_output=True, text=True, timeout=90, check=True)
        text, _, code = done.stdout.rpartition("\n")
        assert int(code) == status, text
        return json.loads(text) if text.startswith(("{", "[")) else text

    def said(*arguments: str, status: int = 200) -> str:
        return str(curl(*arguments, status=status)["status"])

    second, models = f"{there}/models/second", f"{there}/models"
    assert "registered with 0 initial workers. Use scale" in said("-X", "POST", f"{models}?url=second.mar")
    curl(f"{here}/predictions/second", "-T", item, status=503)
    (waiting,) = curl(second)
    assert (waiting["modelUrl"], waiting["minWorkers"], waiting["workers"]) == ("second.mar", 0, [])
    assert said("-v", "-X", "PUT", f"{second}?min_worker=1", status=202) == "Processing worker updates..."
    until(lambda: curl(second)[0]["workers"])
    synchronous = f"{second}?min_worker=1&max_worker=1&synchronous=true"
    assert said("-v", "-X", "PUT", synchronous) == "Workers scaled to 1 for model: second"
    version = f"{second}/1.0?min_worker=1&synchronous=true"
    assert said("-v", "-X", "PUT", version) == "Workers scaled to 1 for model: second, version: 1.0"
    for asked in (
        ["-T", item],
        ["-F", f"data=@{item}"],
        ["-d", "[1, 2, 3, 4]"],
        ["--data-binary", f"@{item}"],
    ):
        assert curl(f"{here}/predictions/second", *asked) == ANSWER
    assert curl(f"{here}/predictions/second/1.0", "-T", item) == ANSWER
    assert curl("-X", "POST", f"{here}/explanations/second", "-T", item) == [1, 1, 1, 1]
    curl("-X", "POST", f"{here}/v1/models/second:predict", "-d", "[1, 2, 3, 4]")
    assert curl(f"{here}/v1/models/second") == {"name": "second", "ready": True}
    for path in ("second", "second/1.0", "second/all"):
        (described,) = curl(f"{models}/{path}")
        assert described.keys() >= waiting.keys() | DESCRIBED
        assert described["workers"][0].keys() >= WORKER
        assert described["jobQueueStatus"].keys() == {"remainingCapacity", "pendingRequests"}
    assert curl(f"{second}?customized=true")[0]["customizedMetadata"] == {"knows": "numbers"}
    page = curl(f"{models}?limit=2")
    pages = page["models"] + curl(f"{models}?limit=100&next_page_token={page['nextPageToken']}")["models"]
    assert {"modelName": "second", "modelUrl": "second.mar"} in pages
    query = (
        "url=newer.mar&model_name=newer&initial_workers=1&synchronous=false&batch_size=2&max_batch_delay=5"
    )
    assert said("-X", "POST", f"{models}?{query}", status=202) == "Processing worker updates..."
    until(lambda: len(curl(f"{models}/newer")[0]["workers"]) == 1)
    described = curl(f"{models}/newer")[0]
    assert (described["batchSize"], described["maxBatchDelay"]) == (2, 5)
    assert curl(f"{here}/predictions/newer", "-d", "aloud") == "ALOUD"
    said_default = said("-v", "-X", "PUT", f"{models}/newer/1.0/set-default")
    assert said_default == 'Default version successfully updated for model "newer" to "1.0"'
    assert said("-X", "DELETE", f"{models}/newer") == 'Model "newer" unregistered'
    assert said("-X", "DELETE", f"{models}/second/1.0") == 'Model "second" unregistered'
    assert curl(second, status=404)["type"] == "ModelNotFoundException"
    assert curl("-X", "OPTIONS", here)["openapi"] == "3.0.1"


DESCRIBED = {
    *("modelName", "modelVersion", "modelUrl", "engine", "runtime", "minWorkers", "maxWorkers", "batchSize"),
    *("maxBatchDelay", "responseTimeout", "startupTimeout", "maxRetryTimeoutInSec", "clientTimeoutInMills"),
    *("parallelType", "parallelLevel", "deviceType", "continuousBatching", "useJobTicket", "useVenv"),
    *("stateful", "sequenceMaxIdleMSec", "sequenceTimeoutMSec", "maxNumSequence", "maxSequenceJobQueueSize"),
    *("loadedAtStartup", "workers", "jobQueueStatus"),
}
WORKER = {"id", "startTime", "status", "memoryUsage", "pid", "gpu", "gpuUsage"}


def test_one_archive_is_registered_under_another_name(server: Server) -> None:
    path = "/models?url=later.mar&model_name=other&initial_workers=1&batch_size=2&handler=service.py:handle"
    assert "registered with 1 initial workers" in manage(server, "POST", path)["status"]
    assert ask(server, "POST", "/predictions/other", b"x")[2] == b"X"
    assert manage(server, "GET", "/models/other")[0]["batchSize"] == 2
    assert manage(server, "POST", path, status=409)["type"] == "ConflictStatusException"
    manage(server, "DELETE", "/models/other")


REFUSED = {
    "another place": "http://127.0.0.1/later.mar",
    "a file": "file:///etc/later.mar",
    "a folder above": "../later.mar",
    "a folder": "a/later.mar",
    "nothing": "",
}


@pytest.mark.parametrize("url", REFUSED.values(), ids=REFUSED)
def test_archives_come_from_the_store_alone(url: str, server: Server) -> None:
    manage(server, "POST", f"/models?url={url}", status=400)


def test_an_archive_that_is_not_there(server: Server) -> None:
    assert manage(server, "POST", "/models?url=never.mar", status=404)["type"] == "ModelNotFoundException"


def test_a_handler_that_does_not_load_changes_nothing(server: Server, store: Path) -> None:
    archives.archive(store, "broken", "--handler", "broken.py", broken__py="    import nowhere\n")
    said = manage(server, "POST", "/models?url=broken.mar&initial_workers=1", status=400)
    assert "nowhere" in said["message"]
    assert "broken" not in json.dumps(manage(server, "GET", "/models"))
