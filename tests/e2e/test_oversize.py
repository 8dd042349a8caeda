"""What is too large at a door: a request is told the limit, an answer fails alone and its worker goes on."""

import json
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from partita.embedded import Server
from partita.settings import ModelSettings, ServerSettings, Settings
from tests import models
from tests.e2e.test_torchserve import FORM_TYPE, JSON_TYPE, LOCAL, ask

triton_http = pytest.importorskip("tritonclient.http")
triton_grpc = pytest.importorskip("tritonclient.grpc")
utils = pytest.importorskip("tritonclient.utils")

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore::DeprecationWarning:gevent")]

LIMIT = 1 << 16
OUTPUT_LIMIT = 4000
REPEATING = """
    import numpy as np

    class Repeating:
        inputs = {"n": {"shape": [-1], "datatype": "INT32"}}
        outputs = {"y": {"shape": [-1, -1], "datatype": "FP32"}}

        def infer(self, batch):
            return {"y": np.ones((len(batch["n"]), batch["n"].max()), np.float32)}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("models")
    (place / "repeating").mkdir()
    (place / "repeating" / "handler.py").write_text(dedent(REPEATING), encoding="utf-8")
    ports = ServerSettings(
        http=LOCAL, grpc=LOCAL, management=LOCAL, metrics=None, token_auth=False, max_body_bytes=LIMIT
    )
    limited = {"repeating": ModelSettings(max_output_bytes=OUTPUT_LIMIT, max_batch=8)}
    paths = [models.linear(place / "linear.onnx"), place / "repeating"]
    settings = Settings(server=ports, model=limited)
    with Server(paths, cores=1, tune="never", settings=settings, ports=True) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    kind = triton_http if request.param == "http" else triton_grpc
    made = kind.InferenceServerClient(str(server.head.ports[request.param]))
    made.kind = kind
    yield made
    made.close()


def repeated(client: Any, *counts: int) -> Any:
    x = np.array(counts, np.int32)
    tensor = client.kind.InferInput("n", list(x.shape), "INT32")
    tensor.set_data_from_numpy(x)
    return client.infer("repeating", [tensor]).as_numpy("y")


def test_an_answer_over_the_limit_fails_and_its_worker_goes_on(server: Server, client: Any) -> None:
    (instance,) = server.head.engine.service("repeating").member.instances.values()
    pid = instance.pid
    assert repeated(client, 1000).shape == (1, 1000)
    assert repeated(client, *[1000] * 8).shape == (8, 1000)
    with pytest.raises(utils.InferenceServerException) as caught:
        repeated(client, 1001)
    assert "an item's outputs have 4004 bytes; max_output_bytes = 4000" in caught.value.message()
    assert caught.value.status() in ("500", "StatusCode.INTERNAL")
    assert repeated(client, 1000).shape == (1, 1000)
    assert (instance.pid, instance.life.restarts) == (pid, 0)


def test_torchserves_door_tells_it_too(server: Server) -> None:
    status, _, data = ask(server, "POST", "/predictions/repeating", b"[100000]", JSON_TYPE)
    told = "an item's outputs have 400000 bytes; max_output_bytes = 4000"
    said = {"code": 503, "type": "InternalServerException", "message": told}
    assert (status, json.loads(data)) == (503, said)
    assert ask(server, "POST", "/predictions/repeating", b"[2]", JSON_TYPE)[0] == 200


DOORS = {
    "the protocol's": ("http", "/v2/models/linear/infer", JSON_TYPE),
    "predictions": ("http", "/predictions/linear", FORM_TYPE),
    "a repository's": ("http", "/v2/repository/index", JSON_TYPE),
    "a registration's": ("management", "/models", JSON_TYPE),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_body_over_the_limit_names_it_and_its_setting(server: Server, door: str) -> None:
    port, path, kind = DOORS[door]
    status, headers, data = ask(server, "POST", path, bytes(LIMIT + 1), kind, port=port)
    assert (status, headers["connection"]) == (413, "close")
    told = f"the body of {LIMIT + 1} bytes is over max_body_bytes = {LIMIT}"
    theirs = {"code": 413, "type": "RequestEntityTooLargeException", "message": told}
    assert json.loads(data) == ({"error": told} if path.startswith("/v2") else theirs)


def test_a_message_over_the_limit_names_it(server: Server) -> None:
    client = triton_grpc.InferenceServerClient(str(server.head.ports["grpc"]))
    tensor = triton_grpc.InferInput("x", [LIMIT // 16 + 1, 4], "FP32")
    tensor.set_data_from_numpy(np.zeros((LIMIT // 16 + 1, 4), np.float32))
    with pytest.raises(utils.InferenceServerException) as caught:
        client.infer("linear", [tensor])
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert str(LIMIT) in caught.value.message()
    client.close()
