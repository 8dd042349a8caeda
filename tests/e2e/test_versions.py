"""Several versions of one model at once, through the real clients and TorchServe's management."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from partita.embedded import Server
from tests import archives
from tests.e2e.test_repository import connected, in_thread, load, open_load_gate, token, write_version
from tests.e2e.test_torchserve import LOCAL, ask, manage, serving
from tests.raw_client import RawClient, infer

triton = pytest.importorskip("tritonclient.http")
triton_grpc = pytest.importorskip("tritonclient.grpc")
utils = pytest.importorskip("tritonclient.utils")

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore::DeprecationWarning:gevent")]

ALL = "version_policy: { all { } }"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    for version in (1, 2):
        write_version(made, version)
    (made / "m" / "config.pbtxt").write_text(ALL)
    return made


@pytest.fixture
def server(store: Path) -> Iterator[Server]:
    with serving(store, token_auth=True, grpc=LOCAL, metrics=LOCAL) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    with connected(server, request.param) as made:
        yield made


def asked(client: Any, version: str = "") -> int:
    """What one version answers, over whichever protocol, by a client of Triton."""
    kind = triton_grpc if "grpc" in type(client).__module__ else triton
    x = kind.InferInput("x", [1, 2], "FP32")
    x.set_data_from_numpy(np.zeros((1, 2), np.float32))
    result = client.infer("m", [x], model_version=version)
    said = result.get_response()
    assert version in ("", said["model_version"] if isinstance(said, dict) else said.model_version)
    return int(result.as_numpy("y")[0, 0])


def index(client: Any) -> set[tuple[str, str, str]]:
    entries = client.get_model_repository_index()
    if isinstance(entries, list):
        return {(e["name"], e["version"], e["state"]) for e in entries}
    return {(e.name, e.version, e.state) for e in entries.models}


def test_each_version_answers_under_its_number_the_highest_without_one(server: Server, client: Any) -> None:
    assert [asked(client), asked(client, "1"), asked(client, "2")] == [2, 1, 2]
    assert index(client) == {("m", "1", "READY"), ("m", "2", "READY")}
    assert client.is_model_ready("m", "1")
    for version, y in (("", 2.0), ("1", 1.0)):
        assert server.predict("m", np.zeros((1, 2), np.float32), version=version)["y"].tolist() == [[y, y]]
    with pytest.raises(utils.InferenceServerException, match="version '3' of model 'm' is not served"):
        asked(client, "3")


def test_metadata_configuration_and_statistics_tell_of_all(server: Server) -> None:
    with connected(server, "http") as client:
        asked(client, "1")
        asked(client, "1")
        asked(client)
        assert client.get_model_metadata("m")["versions"] == ["1", "2"]
        policy = client.get_model_config("m")["version_policy"]
        assert policy == {"specific": {"versions": [1, 2]}}
        stats = client.get_inference_statistics("m")["model_stats"]
        assert {s["version"]: s["inference_count"] for s in stats} == {"1": 2, "2": 1}
        assert len(client.get_inference_statistics("m", "1")["model_stats"]) == 1
    with connected(server, "grpc") as client:
        assert list(client.get_model_metadata("m", "1").versions) == ["1", "2"]
        assert [s.version for s in client.get_inference_statistics("m").model_stats] == ["1", "2"]
    _, _, text = ask(server, "GET", "/metrics", port="metrics")
    ready = [
        sample.labels["version"]
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == "partita_ready"
    ]
    assert sorted(ready) == ["1", "2"]


def test_a_plan_is_shown_for_each_version(server: Server) -> None:
    for version in ("1", "2"):
        status, _, body = ask(server, "GET", f"/v2/models/m/versions/{version}/plan", port="management")
        assert (status, json.loads(body)["model"]) == (200, "m")
    assert ask(server, "GET", "/v2/models/m/versions/3/plan", port="management")[0] == 404


def test_the_new_versions_serve_once_all_are_ready_and_the_old_ones_until_then(
    server: Server, store: Path, client: Any
) -> None:
    folder = write_version(store, 3, gate=True)
    (store / "m" / "config.pbtxt").write_text("version_policy { latest { num_versions: 2 } }")
    loading = in_thread(lambda: load(server, "http"))
    let_go = open_load_gate(folder)
    assert [asked(client, version) for version in ("", "1", "2")] == [2, 1, 2]
    let_go()
    loading.result(60)
    assert [asked(client, version) for version in ("", "2", "3")] == [3, 2, 3]
    assert index(client) == {("m", "2", "READY"), ("m", "3", "READY")}
    with pytest.raises(utils.InferenceServerException):
        asked(client, "1")


def test_a_version_that_does_not_load_changes_none(server: Server, store: Path, client: Any) -> None:
    before = dict(server.head.engine.versions)
    write_version(store, 3, at_load="raise ValueError('no such weights')")
    with pytest.raises(utils.InferenceServerException, match="no such weights"):
        client.load_model("m", headers=token(server))
    assert server.head.engine.versions == before
    assert set(server.head.engine.everything) == set(before.values())
    assert [asked(client), asked(client, "1")] == [2, 1]


def test_a_load_may_name_the_versions(server: Server, client: Any) -> None:
    for policy, left in (
        ({"specific": {"versions": [1]}}, {"1"}),
        ({"all": {}}, {"1", "2"}),
        ({"latest": {"num_versions": 1}}, {"2"}),
    ):
        client.load_model("m", headers=token(server), config=json.dumps({"version_policy": policy}))
        assert {version for _, version, state in index(client) if state == "READY"} == left
    client.unload_model("m", headers=token(server))
    assert not client.is_model_ready("m")
    assert {state for _, _, state in index(client)} == {"UNAVAILABLE"}


def test_a_client_that_keeps_asking_for_one_version_gets_that_one(server: Server) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    text = json.dumps({"inputs": [tensor]}).encode()
    old, new = (
        infer("m/versions/1", text + bytes(8), header=len(text)),
        infer("m", text + bytes(8), header=len(text)),
    )

    def answers(raw: RawClient, asking: bytes) -> list[float]:
        return [raw.ask(asking)[1]["outputs"][0]["data"][0] for _ in range(3)]

    with RawClient(server.url()) as raw, RawClient(server.url()) as other:
        assert (answers(raw, old), answers(other, new)) == ([1.0] * 3, [2.0] * 3)
        server.head.engine.set_default("m", "1")
        assert (answers(raw, old), answers(other, new)) == ([1.0] * 3, [1.0] * 3)


# --- over TorchServe's management -----------------------------------------------------------------


def test_torchserve_describes_sets_the_default_and_unregisters_by_version(store: Path) -> None:
    with serving(store, enable_model_api=True) as server:
        described = manage(server, "GET", "/models/m/all")[1]
        assert [entry["modelVersion"] for entry in described] == ["1", "2"]
        assert manage(server, "GET", "/models/m")[1][0]["modelVersion"] == "2"
        body = b"[0, 0]"
        assert json.loads(ask(server, "POST", "/predictions/m", body)[2]) == [2.0, 2.0]
        assert json.loads(ask(server, "POST", "/predictions/m/1", body)[2]) == [1.0, 1.0]
        status, said = manage(server, "DELETE", "/models/m/2")
        assert (status, said["type"]) == (403, "InvalidModelVersionException")
        assert said["message"] == "Cannot remove default version for model m"
        text = 'Default version successfully updated for model "m" to "1"'
        assert manage(server, "PUT", "/models/m/1/set-default") == (200, {"status": text})
        assert json.loads(ask(server, "POST", "/predictions/m", body)[2]) == [1.0, 1.0]
        scaled = manage(server, "PUT", "/models/m/2?min_worker=1&max_worker=1&synchronous=true")[1]
        assert scaled["status"] == "Workers scaled to 1 for model: m, version: 2"
        assert manage(server, "DELETE", "/models/m/2")[0] == 200
        status, said = manage(server, "GET", "/models/m/2")
        assert (status, said["type"]) == (404, "ModelVersionNotFoundException")
        assert json.loads(ask(server, "POST", "/predictions/m", body)[2]) == [1.0, 1.0]


def test_another_version_of_an_archive_is_registered_beside_the_first(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    archives.function_archive(tmp_path, "shout")
    newer = archives.function_archive(tmp_path / "newer", "shout", "--version", "2.0")
    newer.rename(tmp_path / "shout2.mar")
    with serving(tmp_path / "shout.mar", enable_model_api=True, model_store=str(tmp_path)) as server:
        status, said = manage(server, "POST", "/models?url=shout.mar")
        assert (status, said["type"]) == (409, "ConflictStatusException")
        assert said["message"] == "Model version 1.0 is already registered for model shout"
        status, said = manage(server, "POST", "/models?url=shout2.mar&initial_workers=1")
        assert said["status"] == 'Model "shout" Version: 2.0 registered with 1 initial workers'
        assert [e["modelVersion"] for e in manage(server, "GET", "/models/shout/all")[1]] == ["1.0", "2.0"]
        assert manage(server, "GET", "/models/shout")[1][0]["modelVersion"] == "1.0"
        assert ask(server, "POST", "/predictions/shout/2.0", b"x")[2] == b"X"
        manage(server, "PUT", "/models/shout/2.0/set-default")
        assert manage(server, "DELETE", "/models/shout/1.0")[0] == 200
        assert ask(server, "POST", "/predictions/shout", b"x")[2] == b"X"
        assert manage(server, "PUT", "/models/shout/2.0?min_worker=0&max_worker=0&synchronous=true")[0] == 200
        assert ask(server, "POST", "/predictions/shout/2.0", b"x")[0] == 503
