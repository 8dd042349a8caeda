"""An ensemble through every door: Triton's clients, TorchServe's API, the repository, and perf_analyzer."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.embedded import Server
from partita.system.addresses import Address
from tests import models, perf_analyzer
from tests.e2e.test_torchserve import CONTENT, ask, manage, serving

triton = pytest.importorskip("tritonclient.grpc")

pytestmark = pytest.mark.e2e

LOCAL = Address("127.0.0.1", 0)
X = np.array([[1, 2, 3, 4]], np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("ensemble")
    for name in ("one", "two"):
        models.linear(place / f"{name}.onnx")
    file = place / "file.toml"
    file.write_text('name = "pair"\n[[member]]\npath = "one.onnx"\n[[member]]\npath = "two.onnx"\n')
    with serving(file, grpc=LOCAL) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    made = triton.InferenceServerClient(str(server.head.ports["grpc"]))
    yield made
    made.close()


def expected() -> Any:
    weight, bias = models.linear_weights()
    return X @ weight + bias


def test_over_grpc(client: Any) -> None:
    assert client.get_model_metadata("pair").platform == "ensemble"
    config = client.get_model_config("pair").config
    assert (config.platform, config.WhichOneof("scheduling_choice")) == ("ensemble", "ensemble_scheduling")
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(X)
    np.testing.assert_allclose(client.infer("pair", [tensor]).as_numpy("y"), expected(), rtol=1e-4)
    assert client.get_inference_statistics("pair").model_stats[0].inference_count > 0


def test_as_torchserve_predicts_and_describes(server: Server) -> None:
    status, _, answer = ask(server, "POST", "/predictions/pair", CONTENT)
    assert status == 200
    np.testing.assert_allclose(json.loads(answer), expected()[0], rtol=1e-4)
    status, (entry,) = manage(server, "GET", "/models/pair")
    assert (status, entry["modelName"], len(entry["workers"])) == (200, "pair", 2)


def test_it_is_loaded_again_by_its_name(server: Server, client: Any) -> None:
    before = server.head.engine.service("pair")
    client.load_model("pair")
    assert server.head.engine.service("pair") is not before
    assert [(m.name, m.state) for m in client.get_model_repository_index().models] == [("pair", "READY")]
    test_over_grpc(client)


@pytest.mark.skipif(perf_analyzer.find() is None, reason="there is no perf_analyzer; `make test` fetches it")
@pytest.mark.parametrize("kind", ["http", "grpc", "torchserve"])
def test_perf_analyzer_reports(server: Server, kind: str, tmp_path: Path) -> None:
    port = server.head.ports["grpc" if kind == "grpc" else "http"]
    binary = perf_analyzer.find()
    assert binary is not None
    command = [binary, "-m", "pair", "-u", str(port), "--measurement-interval", "500", "-s", "99"]
    if kind == "torchserve":
        (tmp_path / "item").write_bytes(CONTENT)
        document = {"data": [{"TORCHSERVE_INPUT": [str(tmp_path / "item")]}]}
        (tmp_path / "data.json").write_text(json.dumps(document))
        command += ["--service-kind", "torchserve", "--input-data", str(tmp_path / "data.json")]
    else:
        command += ["-i", kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "Concurrency: 1, throughput: " in done.stdout, done.stdout + done.stderr
