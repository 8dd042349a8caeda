"""Damaged requests at the other doors: TorchServe's routes, the repository, the management port, and gRPC."""

import json
import logging
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from partita.embedded import Server
from partita.system.addresses import Address
from tests import http2, models
from tests.e2e.test_fuzz import damaged, exchange
from tests.e2e.test_grpc_torchserve import INFERENCE, only_field, predictions
from tests.e2e.test_serve import until
from tests.e2e.test_torchserve import TEXT, multipart, serving
from tests.raw_client import request

pytestmark = pytest.mark.e2e

LOCAL = Address("127.0.0.1", 0)
ROUNDS = 700
LOCALHOST = (b"Host: h\r\n", b"Host: localhost\r\n")
JSON_TYPE = "Content-Type: application/json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("store")
    models.linear(place / "linear.onnx")
    (place / "upper").mkdir()
    (place / "upper" / "handler.py").write_text("\n".join(line[4:] for line in TEXT.split("\n")))
    more: dict[str, Any] = {"grpc": LOCAL, "enable_model_api": True, "max_body_bytes": 1 << 16}
    with serving(place, **more) as running:
        yield running


def inference_seeds() -> list[bytes]:
    """Requests of the inference port that are right."""
    form = multipart(data=b"[1, 2, 3, 4]")
    instances = b'{"instances": [[1, 2, 3, 4], [5, 6, 7, 8]]}'
    return [
        request("/predictions/linear", b"[1, 2, 3, 4]", JSON_TYPE),
        request("/predictions/linear/1.0/more", bytes(16)),
        request("/predictions/upper", b"some text"),
        request("/predictions/linear", *form),
        request(
            "/predictions/linear", b"data=%5B1,2,3,4%5D", "Content-Type: application/x-www-form-urlencoded"
        ),
        request("/v1/models/linear:predict", instances),
        request("/invocations?model_name=upper", b"x"),
        request("/ping", method="GET"),
    ]


def management_seeds() -> list[bytes]:
    """Requests of the management port that change nothing."""
    config = json.dumps({"max_batch_size": 8, "version_policy": {"specific": {"versions": [1]}}})
    load = json.dumps({"parameters": {"config": config, "file:1/model.onnx": "AAAA"}}).encode()
    found = [
        request("/models?limit=1&next_page_token=1", method="GET"),
        request("/models/linear/all", method="GET"),
        request("/models?url=none.onnx&initial_workers=1&batch_size=4&synchronous=true"),
        request("/models", b'{"url": "none.onnx", "initial_workers": 0, "model_name": "m"}', JSON_TYPE),
        request("/models/none/1.0?min_worker=1&max_worker=2", method="PUT"),
        request("/models/none", method="DELETE"),
        request("/v2/repository/models/none/unload", b'{"parameters": {"unload_dependents": false}}'),
        request("/v2/repository/models/none%2f..%2fnone/load", load.replace(b"file:1", b"file:one")),
        request("/v2/repository/r/index", b'{"ready": true}'),
    ]
    return [seed.replace(*LOCALHOST) for seed in found]


@pytest.mark.parametrize(
    ("port", "seeds", "allowed"),
    [
        ("http", inference_seeds(), {100, 200, 400, 404, 405, 413, 431}),
        ("management", management_seeds(), {100, 200, 202, 400, 403, 404, 405, 409, 413, 431}),
    ],
    ids=["inference", "management"],
)
def test_nothing_at_these_doors_is_too_much(
    server: Server,
    port: str,
    seeds: list[bytes],
    allowed: set[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    rng = random.Random(11)
    seen: Counter[int] = Counter()
    for _ in range(ROUNDS):
        data = damaged(rng, seeds)
        statuses = exchange(server.url(port), data, rng.randint(0, len(data)))
        assert set(statuses) <= allowed, (statuses, data)
        seen.update(statuses)
    assert seen[200] > ROUNDS / 50
    assert seen[400] > ROUNDS / 10
    check(server, caplog)


def check(server: Server, caplog: pytest.LogCaptureFixture, logger: str = "") -> None:
    for service in server.head.engine.services.values():
        assert service.statistics.worker_deaths == 0
        service.check()
    assert {"linear", "upper"} <= server.head.engine.services.keys()
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR and r.name.startswith(logger)]
    assert [r.getMessage() for r in errors] == []


def grpc_seeds() -> dict[str, list[bytes]]:
    """Messages that are right, by method."""
    pb = pytest.importorskip("tritonclient.grpc.service_pb2")
    raw = pb.ModelInferRequest(model_name="linear", raw_input_contents=[bytes(16)])
    raw.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    raw.parameters["timeout"].int64_param = 5_000_000
    raw.outputs.add(name="y").parameters["classification"].int64_param = 2
    typed = pb.ModelInferRequest(model_name="linear", id="seven")
    typed.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend([1, 2, 3, 4])
    load = pb.RepositoryModelLoadRequest(model_name="none")
    load.parameters["config"].string_param = "{}"
    name = pb.ModelMetadataRequest(name="linear", version="1").SerializeToString()
    infer = [message.SerializeToString() for message in (raw, typed)]
    oip = "inference.GRPCInferenceService/"
    return {
        oip + "ModelInfer": infer,
        oip + "ModelMetadata": [name],
        oip + "ModelStatistics": [name],
        oip + "RepositoryModelLoad": [load.SerializeToString()],
        "org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions": [
            b"\n\6linear\x1a\x14\n\4data\x12\x0c[1, 2, 3, 4]"
        ],
        "grpc.health.v1.Health/Check": [b"\n\6linear"],
    }


def damaged_message(rng: random.Random, seeds: list[bytes]) -> bytes:
    """Return a message with one to four changes in it."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        if rng.random() < 0.5:
            data[at : at + rng.choice([0, 1, 1, 4])] = rng.randbytes(rng.choice([0, 1, 1, 3]))
        else:
            data[at : at + 1] = bytes([rng.choice([0, 1, 2, 127, 128, 255])])
    return bytes(data)


def test_nothing_over_grpc_is_too_much(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    grpc = pytest.importorskip("grpc")
    rng = random.Random(12)
    seen: Counter[str] = Counter()
    with grpc.insecure_channel(str(server.head.ports["grpc"])) as channel:
        for method, seeds in grpc_seeds().items():
            call = channel.unary_unary("/" + method)
            for _ in range(ROUNDS // 3):
                try:
                    call(damaged_message(rng, seeds), timeout=20)
                    seen["OK"] += 1
                except grpc.RpcError as error:
                    seen[error.code().name] += 1
    assert set(seen) <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED"}, seen
    assert seen["OK"] > ROUNDS / 20
    assert seen["INVALID_ARGUMENT"] > ROUNDS / 4
    check(server, caplog)


def test_nothing_below_grpc_is_too_much(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    grpc = pytest.importorskip("grpc")
    rng, address = random.Random(13), str(server.head.ports["grpc"])
    seeds = [http2.call(method, messages[0]) for method, messages in grpc_seeds().items()]
    assert all(b"grpc-status" in http2.exchange(address, seed) for seed in seeds), "they are right"
    answered = 0
    for _ in range(ROUNDS // 4):
        until(lambda: is_open(address))
        answered += bool(http2.exchange(address, damaged(rng, seeds)))
    assert answered > ROUNDS / 40
    with grpc.insecure_channel(address) as channel:
        check_health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check_health(b"", timeout=20, wait_for_ready=True) == b"\x08\x01"
    check(server, caplog, "partita")  # the library tells of what it cannot read itself


def is_open(address: str) -> bool:
    try:
        return bool(http2.exchange(address, b""))
    except ConnectionRefusedError:
        return False


WAITING = """
    import time
    from pathlib import Path

    class Waits:
        inputs = {"x": {"shape": [-1], "datatype": "BYTES"}}
        outputs = {"y": {"shape": [-1], "datatype": "BYTES"}}

        def infer(self, batch):
            place = Path(__file__).parent
            if (place / "hold").exists():
                (place / "came").touch()
            while (place / "hold").exists():
                time.sleep(0.01)
            return {"y": batch["x"]}
"""


def test_a_path_that_is_no_text_ends_nobodys_call(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc")
    folder = tmp_path / "waits"
    folder.mkdir()
    (folder / "handler.py").write_text(dedent(WAITING))
    health, predict = "grpc.health.v1.Health/Check", f"{INFERENCE}Predictions"
    with serving(folder, grpc=LOCAL) as server:
        address = str(server.head.ports["grpc"])
        (folder / "hold").touch()
        with grpc.insecure_channel(address) as channel:
            waiting = channel.unary_unary(predict).future(predictions("waits", data=b"text"), timeout=60)
            until((folder / "came").exists)
            for bad in (b"\xaa", b"\xff\xfe"):
                path = health.encode()
                call = http2.call(health, b"").replace(path, path[: -len(bad)] + bad)
                http2.exchange(address, call)
                check_health = channel.unary_unary(f"/{health}")
                assert check_health(b"", timeout=20, wait_for_ready=True) == b"\x08\x01"
            (folder / "hold").unlink()
            assert only_field(waiting.result()) == b"text"
