"""TorchServe's inference and management API, asked as its documentation does."""

import gzip
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from partita.embedded import Server
from partita.settings import ServerSettings, Settings
from partita.system.addresses import Address
from tests import models
from tests.e2e.test_serve import Serve, open_gate, until
from tests.engine_driver import HOLD, RAISE, executed, make_gate, tricky
from tests.raw_client import RawClient, request

pytestmark = pytest.mark.e2e

LOCAL = Address("127.0.0.1", 0)
TEXT = """
    class Upper:
        inputs = {"request": {"shape": [-1], "datatype": "BYTES"}}
        outputs = {"answer": {"shape": [-1], "datatype": "BYTES"}}

        def infer(self, batch):
            return {"answer": [text.upper() for text in batch["request"]]}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("store")
    models.linear(made / "linear.onnx")
    models.two_inputs(made / "two.onnx")
    (made / "upper").mkdir()
    (made / "upper" / "handler.py").write_text(dedent(TEXT), encoding="utf-8")
    return made


def serving(*paths: Path, **more: Any) -> Server:
    given = {"http": LOCAL, "metrics": None, "management": LOCAL, "token_auth": False, **more}
    return Server(paths, cores=1, tune="never", settings=Settings(server=ServerSettings(**given)), ports=True)


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Server]:
    with serving(store) as running:
        yield running


def ask(
    server: Server, method: str, path: str, body: bytes = b"", *fields: str, port: str = "http"
) -> tuple[int, dict[str, str], bytes]:
    with RawClient(server.url(port)) as client:
        client.send(request(path, body, *fields, method=method).replace(b"Host: h", b"Host: localhost"))
        return client.answer()


def linear(x: Any) -> Any:
    weight, bias = models.linear_weights()
    return np.asarray(x, np.float32) @ weight + bias


ITEM = [0.5, -1.0, 2.0, 3.0]
JSON_TYPE = "Content-Type: application/json"
FORM_TYPE = "Content-Type: application/x-www-form-urlencoded"
CONTENT = b"[1, 2, 3, 4]"


# --- predictions ----------------------------------------------------------------------------------


def multipart(**parts: bytes) -> tuple[bytes, str]:
    lines = [
        b'--XX\r\nContent-Disposition: form-data; name="%s"; filename="f"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n%s\r\n" % (name.encode(), content)
        for name, content in parts.items()
    ]
    return b"".join(lines) + b"--XX--\r\n", 'Content-Type: multipart/form-data; boundary="XX"'


FORMS = {
    "JSON": (json.dumps(ITEM).encode(), JSON_TYPE),
    "JSON that nobody calls so": (json.dumps(ITEM).encode(), "X: y"),
    "JSON by curl -d": (json.dumps(ITEM).encode(), FORM_TYPE),
    "an object": (json.dumps({"x": ITEM}).encode(), JSON_TYPE),
    "raw": (np.array(ITEM, np.float32).tobytes(), "Content-Type: application/octet-stream"),
    "a part": multipart(data=np.array(ITEM, np.float32).tobytes()),
    "a part of JSON": multipart(data=json.dumps(ITEM).encode()),
    "a field": (
        urlencode({"data": json.dumps(ITEM)}).encode(),
        "Content-Type: application/x-www-form-urlencoded",
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_one_item_in_every_form(server: Server, form: str, method: str) -> None:
    body, field = FORMS[form]
    status, headers, answer = ask(server, method, "/predictions/linear", body, field)
    assert (status, headers["content-type"]) == (200, "application/json"), answer
    np.testing.assert_allclose(json.loads(answer), linear(ITEM), rtol=1e-4, atol=1e-5)
    assert answer.endswith(b"\n")
    assert headers["pragma"] == "no-cache"
    assert headers["expires"] == "Thu, 01 Jan 1970 00:00:00 UTC"
    assert headers["x-request-id"]


def test_several_items_a_version_and_further_path(server: Server) -> None:
    body = json.dumps([ITEM, ITEM, [0.0] * 4]).encode()
    for path in ("/predictions/linear/1", "/predictions/linear/1.0/anything/else", "/models/linear/invoke"):
        status, _, answer = ask(server, "POST", path, body, "X-Request-Id: mine")
        assert status == 200
        np.testing.assert_allclose(json.loads(answer), linear([ITEM, ITEM, [0.0] * 4]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("content", [b"some text", "é".encode(), b"[1, 2]", b"\xff\x00\r\n--", b""])
def test_bytes_reach_the_model_and_come_back_as_they_are(server: Server, content: bytes) -> None:
    for body, field in ((content, "X: y"), multipart(data=content)):
        status, headers, answer = ask(server, "POST", "/predictions/upper", body, field)
        assert (status, answer) == (200, content.upper())
        assert headers["content-type"].startswith(
            "application/octet-stream" if b"\xff" in content else "text/plain"
        )


def test_several_inputs_and_outputs(server: Server) -> None:
    document = {"x": [1.0] * 4, "index": 2}
    wanted = {"y": (1.0 + models.two_inputs_table()[2]).tolist(), "twice": 4}
    parts = {name: json.dumps(value).encode() for name, value in document.items()}
    for body, field in ((json.dumps(document).encode(), JSON_TYPE), multipart(**parts)):
        status, _, answer = ask(server, "POST", "/predictions/two", body, field)
        assert (status, json.loads(answer)) == (200, wanted)
    instances = {"instances": [document, {**document, "index": 3}]}
    status, _, answer = ask(server, "POST", "/v1/models/two:predict", json.dumps(instances).encode())
    assert [row["twice"] for row in json.loads(answer)["predictions"]] == [4, 6]


def test_kserve_v1_and_sagemaker(server: Server) -> None:
    body = json.dumps({"instances": [ITEM]}).encode()
    status, _, answer = ask(server, "POST", "/v1/models/linear:predict", body, JSON_TYPE)
    assert status == 200
    np.testing.assert_allclose(json.loads(answer)["predictions"], linear([ITEM]), rtol=1e-4, atol=1e-5)
    status, _, answer = ask(server, "POST", "/invocations?model_name=upper", b"abc")
    assert (status, answer) == (200, b"ABC")
    for method in ("GET", "POST"):
        status, _, answer = ask(server, method, "/invocations?model_name=upper&request=abc")
        assert (status, answer) == (200, b"ABC"), "what the query says is a field"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_the_elder_path_of_predictions_takes_fields_of_the_query_too(server: Server, method: str) -> None:
    assert ask(server, method, "/upper/predict", b"abc")[::2] == (200, b"ABC")
    assert ask(server, method, "/upper/predict?request=a%20b")[::2] == (200, b"A B")
    item = json.dumps([1.0] * 4)
    status, _, answer = ask(server, method, f"/two/predict?x={item.replace(' ', '')}&index=2")
    assert (status, json.loads(answer)["twice"]) == (200, 4)
    assert ask(server, method, f"/two/predict?index=3&x={item.replace(' ', '')}", b"")[0] == 200
    status, _, answer = ask(server, method, "/none/predict", b"abc")
    assert (status, json.loads(answer)["type"]) == (404, "ModelNotFoundException")


def test_the_short_way_and_the_long_way_answer_alike(server: Server) -> None:
    items = json.dumps([ITEM] * 100).encode()
    for path, body in (
        ("linear", items),
        ("linear/1", CONTENT),
        ("upper", b"text"),
        ("linear/9", b""),
        ("none", b""),
    ):
        for coding in ("identity", "gzip"):
            fields = (f"Accept-Encoding: {coding}", "X-Request-Id: mine")
            short = ask(server, "POST", f"/predictions/{path}", body, *fields)
            long = ask(server, "DELETE", f"/predictions/{path}", body, *fields)
            is_packed = short[1].get("content-encoding") == "gzip"
            assert is_packed == (coding == "gzip" and body == items)
            pairs = [(s, gzip.decompress(b) if is_packed else b) for s, _, b in (short, long)]
            assert pairs[0] == pairs[1]
            names = [
                {k: v for k, v in headers.items() if k != "content-length"} for _, headers, _ in (short, long)
            ]
            assert names[0] == {**names[1], "content-type": names[1]["content-type"].split(";")[0]}


def test_predictions_one_after_another_and_the_end_after_an_error(server: Server) -> None:
    with RawClient(server.url()) as client:
        client.send(request("/predictions/upper", b"one") + request("/predictions/upper", b"two"))
        assert [client.answer()[2] for _ in range(2)] == [b"ONE", b"TWO"]
        client.send(request("/predictions/none", b"three"))
        status, headers, _ = client.answer()
        assert (status, headers["connection"]) == (404, "close")
        assert client.is_at_end()
    with RawClient(server.url()) as client:
        client.send(request("/predictions/none", b"three", method="DELETE"))
        status, headers, _ = client.answer()
        assert (status, headers["connection"]) == (404, "close")
        assert client.is_at_end()


def test_ping_and_what_can_be_asked(server: Server) -> None:
    status, _, answer = ask(server, "GET", "/ping")
    assert (status, answer) == (200, b'{\n  "status": "Healthy"\n}\n')
    status, _, answer = ask(server, "OPTIONS", "/")
    assert json.loads(answer)["openapi"] == "3.0.1"
    assert ask(server, "GET", "/")[0] == 200  # ours
    status, _, answer = ask(server, "OPTIONS", "/", port="management")
    assert {"/models", "/models/{model}"} <= json.loads(answer)["paths"].keys()


WAITING = """
    import time
    from pathlib import Path

    class Upper:
        inputs = {"request": {"shape": [-1], "datatype": "BYTES"}}
        outputs = {"answer": {"shape": [-1], "datatype": "BYTES"}}

        def load(self, context):
            while Path(__file__).with_name("hold").exists():
                time.sleep(0.01)

        def infer(self, batch):
            return {"answer": [text.upper() for text in batch["request"]]}
"""


def test_a_model_with_fewer_workers_than_it_is_to_have_is_unhealthy(tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "handler.py").write_text(dedent(WAITING), encoding="utf-8")
    hold = tmp_path / "upper" / "hold"
    given = Settings(server=ServerSettings(http=LOCAL, metrics=None, management=LOCAL, token_auth=False))
    with Server([tmp_path / "upper"], cores=2, tune="never", settings=given, ports=True) as server:
        scaled = manage(server, "PUT", "/models/upper?min_worker=2&max_worker=2&synchronous=true")
        assert scaled == (200, {"status": "Workers scaled to 2 for model: upper"})
        assert ask(server, "GET", "/ping")[0] == 200
        hold.touch()
        (worker, _) = manage(server, "GET", "/models/upper")[1][0]["workers"]
        os.kill(worker["pid"], signal.SIGKILL)
        until(lambda: ask(server, "GET", "/ping")[0] == 500)
        assert ask(server, "POST", "/predictions/upper", b"abc")[::2] == (200, b"ABC")  # by the other one
        hold.unlink()
        until(lambda: ask(server, "GET", "/ping")[0] == 200)


LEAVING = """
    import time
    from pathlib import Path

    class Upper:
        inputs = {"request": {"shape": [-1], "datatype": "BYTES"}}
        outputs = {"answer": {"shape": [-1], "datatype": "BYTES"}}

        def load(self, context):
            place = Path(__file__).parent
            try:
                (place / "one").touch(exist_ok=not (place / "only_one").exists())
            except FileExistsError:
                while not (place / "fail").exists():
                    time.sleep(0.01)
                raise

        def infer(self, batch):
            return {"answer": [text.upper() for text in batch["request"]]}
"""


def test_a_change_that_was_waited_for_says_that_a_worker_is_missing(tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "handler.py").write_text(dedent(LEAVING), encoding="utf-8")
    given = Settings(server=ServerSettings(http=LOCAL, metrics=None, management=LOCAL, token_auth=False))
    with Server([tmp_path / "upper"], cores=2, tune="never", settings=given, ports=True) as server:
        (tmp_path / "upper" / "one").unlink()
        (tmp_path / "upper" / "only_one").touch()
        path = "/models/upper?min_worker=2&max_worker=2&synchronous=true"
        served = server.head.engine.services["upper"]
        with ThreadPoolExecutor(1) as pool:
            scaling = pool.submit(manage, server, "PUT", path)
            until(lambda: any(one.is_ready for one in server.head.engine.everything if one is not served))
            (tmp_path / "upper" / "fail").touch()
            assert scaling.result() == (206, {"status": "Workers scaling in progress..."})
        assert ask(server, "POST", "/predictions/upper", b"abc")[::2] == (200, b"ABC")
        assert ask(server, "GET", "/ping")[0] == 500
        (described,) = manage(server, "GET", "/models/upper")[1]
        assert (described["minWorkers"], described["maxWorkers"]) == (2, 2)


THEIRS = {"code", "type", "message"}
LONG = b"Content-Length: 999999999\r\n\r\n"
BROKEN = {
    "no request": ("http", b"nonsense\r\n\r\n", 400, {*THEIRS, "error"}),
    "a head of TorchServe's": ("http", b"POST /predictions/m HTTP/9\r\n\r\n", 400, THEIRS),
    "a head of the protocol's": ("http", b"POST /v2/models/m/infer HTTP/9\r\n\r\n", 400, {"error"}),
    "too much for theirs": ("http", b"PUT /predictions/m HTTP/1.1\r\n" + LONG, 413, THEIRS),
    "no chunk": (
        *("http", b"PUT /m/predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400, THEIRS),
    ),
    "no gzip": (
        *("http", b"PUT /ping HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 400, THEIRS),
    ),
    "a long head": ("management", b"GET /models HTTP/1.1\r\nX: " + b"x" * 20_000, 431, THEIRS),
    "too much for ours": ("management", b"PUT /v2/models/m/plan HTTP/1.1\r\n" + LONG, 413, {"error"}),
    "nobody's path": ("management", b"GET /x HTTP/1.1\r\n\r\n", 404, {*THEIRS, "error"}),
    "nobody's path of the metrics": ("metrics", b"GET /x HTTP/1.1\r\n\r\n", 404, THEIRS),
    "no method of the metrics": ("metrics", b"PUT /metrics HTTP/1.1\r\n\r\n", 405, THEIRS),
    "no request for metrics": ("metrics", b"nonsense\r\n\r\n", 400, THEIRS),
}


@pytest.fixture(scope="module")
def whole(store: Path) -> Iterator[Server]:
    with serving(store / "linear.onnx", metrics=LOCAL) as running:
        yield running


@pytest.mark.parametrize("case", BROKEN)
def test_what_no_route_answers_has_the_body_of_the_api_that_was_asked(whole: Server, case: str) -> None:
    port, data, wanted, keys = BROKEN[case]
    with RawClient(whole.url(port)) as client:
        client.send(data)
        status, headers, answer = client.answer()
        document = json.loads(answer)
        assert (status, document.keys()) == (wanted, keys), document
        if "code" in keys:
            assert document["code"] == status
            assert headers["connection"] == "close"
            assert headers["pragma"] == "no-cache"
            assert headers["x-request-id"]
            assert answer.startswith(b'{\n  "code"')
            assert client.is_at_end()


WRONG = {
    "an unknown model": (
        "POST",
        "/predictions/none",
        b"",
        404,
        "ModelNotFoundException",
        "Model not found: none",
    ),
    "an unknown version": (
        *("POST", "/predictions/linear/9", b"", 404, "ModelVersionNotFoundException"),
        "Model version: 9 does not exist for model: linear",
    ),
    "an unknown path": (
        *("POST", "/predictions", b"", 404, "ResourceNotFoundException"),
        "Requested resource is not found, please refer to API document.",
    ),
    "another method": (
        *("POST", "/ping", b"", 405, "MethodNotAllowedException"),
        "Requested method is not allowed, please refer to API document.",
    ),
    "no JSON": ("POST", "/predictions/linear", b"[1, 2", 400, "BadRequestException", "not JSON"),
    "too few values": ("POST", "/predictions/linear", b"[1, 2]", 400, "BadRequestException", "wants [-1, 4]"),
    "uneven rows": (
        "POST",
        "/predictions/linear",
        b"[[1,2,3,4],[1]]",
        400,
        "BadRequestException",
        "5 values",
    ),
    "a value of another kind": (
        *("POST", "/predictions/linear", b'["a","b","c","d"]', 400, "BadRequestException", "int or float"),
    ),
    "no instances": ("POST", "/v1/models/linear:predict", b"{}", 400, "BadRequestException", "instances"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_have_torchserves_bodies(server: Server, case: str) -> None:
    method, path, body, wanted, kind, text = WRONG[case]
    status, _, answer = ask(server, method, path, body)
    document = json.loads(answer)
    assert (status, document["code"], document["type"]) == (wanted, wanted, kind)
    assert text in document["message"]


def test_a_malformed_part_is_refused(server: Server) -> None:
    body, field = multipart(data=b"x")
    for wrong in (body[:-4], b"", body.replace(b"name=", b"nome="), body.replace(b"XX", b"YY")):
        assert ask(server, "POST", "/predictions/linear", wrong, field)[0] == 400


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    made = tmp_path / "tricky"
    tricky(made)
    (made / "model.py").rename(made / "handler.py")
    (made / "partita.toml").write_text("[model.tricky]\nmax_batch = 1\nqueue_size = 8\n")
    make_gate(made)
    return made


def test_one_that_raises_and_one_whose_client_leaves(slow: Path) -> None:
    with serving(slow) as server:
        counts = server.head.engine.service("tricky").statistics
        status, _, answer = ask(server, "POST", "/predictions/tricky", f"[1, {RAISE}]".encode())
        assert (status, json.loads(answer)["message"]) == (503, "Prediction failed")
        with RawClient(server.url()) as held:
            held.send(request("/predictions/tricky", f"[2, {HOLD}]".encode()))
            let_go = open_gate(slow)
            with RawClient(server.url()) as ahead, RawClient(server.url()) as leaving:
                ahead.send(request("/predictions/tricky", b"[3, 0]"))
                until(lambda: counts.accepted == 3)
                leaving.send(request("/predictions/tricky", b"[4, 0]"))
                until(lambda: counts.accepted == 4)
                leaving.__exit__()
                until(lambda: counts.cancelled == 1)
                let_go()
                assert ahead.answer()[0] == held.answer()[0] == 200
    assert [4] not in executed(slow)


def test_metrics_have_torchserves_names(store: Path) -> None:
    with serving(store / "linear.onnx", metrics=LOCAL) as server:
        for _ in range(2):
            ask(server, "POST", "/predictions/linear", CONTENT)

        def samples(path: str) -> dict[str, float]:
            _, _, body = ask(server, "GET", path, port="metrics")
            families = text_string_to_metric_families(body.decode())
            return {s.name: s.value for family in families for s in family.samples}

        found = samples("/metrics")
        assert found["ts_inference_requests_total"] == 2
        assert found["ts_inference_latency_microseconds"] > found["ts_queue_latency_microseconds"] > 0
        assert 0 < found["MemoryUtilization"] < 100
        assert 0 < found["DiskUtilization"] <= 100
        wanted = "/metrics?name[]=MemoryUsed&name[]=ts_inference_requests_total"
        assert samples(wanted).keys() == {"MemoryUsed", "ts_inference_requests_total"}


# --- management -----------------------------------------------------------------------------------


def manage(server: Server, method: str, path: str, *fields: str, body: bytes = b"") -> tuple[int, Any]:
    status, _, answer = ask(server, method, path, body, *fields, port="management")
    return status, json.loads(answer)


def test_list_and_describe(server: Server) -> None:
    assert manage(server, "GET", "/models?limit=2") == (
        200,
        {
            "nextPageToken": "2",
            "models": [{"modelName": n, "modelUrl": n} for n in ("linear", "two")],
        },
    )
    assert manage(server, "GET", "/models?limit=2&next_page_token=2")[1] == {
        "models": [{"modelName": "upper", "modelUrl": "upper"}]
    }
    for path in ("/models/linear", "/models/linear/1", "/models/linear/1.0", "/models/linear/all"):
        status, (entry,) = manage(server, "GET", path)
        assert (status, entry["modelName"], entry["modelVersion"]) == (200, "linear", "1")
    (worker,) = entry["workers"]
    assert worker["status"] == "READY"
    assert worker["startTime"].endswith("Z")
    os.kill(worker["pid"], 0)
    assert entry["jobQueueStatus"] == {"remainingCapacity": 1024, "pendingRequests": 0}
    assert manage(server, "GET", "/models/none")[0] == 404
    assert manage(server, "GET", "/v1/models/linear") == (200, {"name": "linear", "ready": True})


def test_register_scale_and_unregister(store: Path) -> None:
    with serving(store / "linear.onnx", enable_model_api=True, model_store=str(store)) as server:
        assert manage(server, "POST", "/models?url=linear.onnx")[1]["type"] == "ConflictStatusException"
        assert manage(server, "DELETE", "/models/linear") == (200, {"status": 'Model "linear" unregistered'})
        assert ask(server, "POST", "/predictions/linear", b"[1,2,3,4]")[0] == 404
        status, document = manage(server, "POST", "/models?url=linear.onnx&runtime=python3&batch_size=4")
        assert (status, document["status"]) == (
            200,
            'Model "linear" Version: 1 registered with 0 initial workers. '
            "Use scale workers API to add workers for the model.",
        )
        (waiting,) = manage(server, "GET", "/models/linear")[1]
        assert (waiting["workers"], waiting["batchSize"]) == ([], 4)
        assert manage(server, "GET", "/v1/models/linear") == (200, {"name": "linear", "ready": False})
        assert ask(server, "POST", "/predictions/linear", b"[1,2,3,4]")[0] == 503
        assert manage(server, "PUT", "/models/linear?min_worker=1&synchronous=true") == (
            200,
            {"status": "Workers scaled to 1 for model: linear"},
        )
        assert ask(server, "POST", "/predictions/linear", b"[1,2,3,4]")[0] == 200
        status, document = manage(
            server,
            "POST",
            "/models",
            JSON_TYPE,
            body=b'{"url": "linear", "model_name": "again", "initial_workers": 1}',
        )
        assert (status, document["status"]) == (
            200,
            'Model "again" Version: 1 registered with 1 initial workers',
        )
        assert ask(server, "POST", "/predictions/again", b"[1,2,3,4]")[0] == 200
        assert manage(server, "PUT", "/models/again?min_worker=0") == (
            202,
            {"status": "Processing worker updates..."},
        )
        until(lambda: manage(server, "GET", "/models/again")[1][0]["workers"] == [])
        assert manage(server, "DELETE", "/models/again")[0] == 200
        assert manage(server, "DELETE", "/models/again")[0] == 404


def test_limits_hold_for_a_plan_that_has_as_many_workers_already(store: Path) -> None:
    with serving(store / "linear.onnx") as server:
        service, before = server.head.engine.services["linear"], manage(server, "GET", "/models/linear")[1][0]
        assert (before["minWorkers"], before["maxWorkers"]) == (1, 1)
        status, said = manage(server, "PUT", "/models/linear?min_worker=1&max_worker=2&synchronous=true")
        assert (status, said["status"]) == (200, "Workers scaled to 1 for model: linear")
        assert server.head.engine.services["linear"] is service, "nothing had to be started"
        assert server.head.engine.deployment(service).is_limited, "no plan leaves the limits from now on"
        after = manage(server, "GET", "/models/linear")[1][0]
        assert (after["minWorkers"], after["maxWorkers"]) == (1, 2)


REFUSED = {
    "no url": ("POST", "/models", 400, "BadRequestException", "Parameter url is required."),
    "a far url": ("POST", "/models?url=http://h/m.mar", 400, "BadRequestException", "any allowed URL"),
    "a near url": ("POST", "/models?url=file:///etc/passwd", 400, "BadRequestException", "any allowed URL"),
    "a way out": ("POST", "/models?url=../m.mar", 400, "BadRequestException", "Relative path is not allowed"),
    "not there": ("POST", "/models?url=nowhere.mar", 404, "ModelNotFoundException", "nowhere"),
    "limits crossed": (
        *("PUT", "/models/linear?min_worker=2&max_worker=1", 400, "BadRequestException"),
        "max_worker cannot be less than min_worker.",
    ),
    "a runtime": ("POST", "/models?url=linear&runtime=L", 400, "BadRequestException", "RuntimeType value: L"),
    "unready": ("GET", "/v1/models/none", 404, "ModelNotFoundException", "not found: none"),
    "no number": ("PUT", "/models/linear?min_worker=x", 400, "BadRequestException", "is not a number"),
    "unknown": ("PUT", "/models/none?min_worker=1", 404, "ModelNotFoundException", "not found: none"),
    "version": (
        "PUT",
        "/models/linear/7/set-default",
        404,
        "ModelVersionNotFoundException",
        "does not exist",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_management_refuses(store: Path, case: str, changing: Server) -> None:
    method, path, wanted, kind, text = REFUSED[case]
    before = sorted(store.rglob("*"))
    status, document = manage(changing, method, path)
    assert (status, document["code"], document["type"]) == (wanted, wanted, kind)
    assert text in document["message"]
    assert sorted(store.rglob("*")) == before


@pytest.fixture(scope="module")
def changing(store: Path) -> Iterator[Server]:
    with serving(store / "linear.onnx", enable_model_api=True) as running:
        yield running


def test_registering_is_off_unless_asked_for(server: Server) -> None:
    for method, path in (("POST", "/models?url=linear.onnx"), ("DELETE", "/models/linear")):
        status, document = manage(server, method, path)
        assert (status, document["type"]) == (405, "MethodNotAllowedException")


def test_management_needs_the_token_and_a_failure_is_400(store: Path) -> None:
    with serving(store / "linear.onnx", token_auth=True, inference_token=True) as server:
        keys = server.head.access.keys
        assert keys is not None
        status, document = manage(server, "GET", "/models")
        assert (status, document["type"]) == (400, "InvalidKeyException")
        assert document["message"].startswith("Token Authorization failed.")
        good = f"Authorization: Bearer {keys.current['management'].value}"
        assert manage(server, "GET", "/models", good)[0] == 200
        assert ask(server, "POST", "/predictions/linear", b"[1,2,3,4]", good)[0] == 400
        inference = f"Authorization: Bearer {keys.current['inference'].value}"
        assert ask(server, "POST", "/predictions/linear", b"[1,2,3,4]", inference)[0] == 200
        api = f"Authorization: Bearer {keys.api.value}"
        status, document = manage(server, "GET", "/token?type=management", api)
        assert status == 200
        assert manage(server, "GET", "/models", good)[0] == 400
        assert (
            manage(server, "GET", "/models", f"Authorization: Bearer {document['management']['key']}")[0]
            == 200
        )


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_lines_of_the_documentation(store: Path, tmp_path: Path) -> None:
    ports = ["--http", "127.0.0.1:0", "--metrics", "off", "--management", "127.0.0.1:0"]
    with Serve(str(store), "--disable-token-auth", "--enable-model-api", ports=ports) as server:
        found = server.ready()["ports"]
        (tmp_path / "text").write_text("the quick brown fox")

        def curl(*arguments: str) -> str:
            done = subprocess.run(
                ["curl", "-sS", "--max-time", "20", *arguments], capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        here, there = f"http://{found['http']}", f"http://{found['management']}"
        assert json.loads(curl(f"{here}/ping")) == {"status": "Healthy"}
        text = str(tmp_path / "text")
        assert curl(f"{here}/predictions/upper", "-T", text) == "THE QUICK BROWN FOX"
        assert curl("-X", "POST", f"{here}/predictions/upper", "-F", f"data=@{text}") == "THE QUICK BROWN FOX"
        assert "unregistered" in curl("-X", "DELETE", f"{there}/models/upper")
        assert "registered with 1" in curl("-X", "POST", f"{there}/models?url=upper&initial_workers=1")
        assert "scaled to 1" in curl("-v", "-X", "PUT", f"{there}/models/upper?min_worker=1&synchronous=true")
        assert json.loads(curl(f"{there}/models/upper"))[0]["minWorkers"] == 1
