"""An ensemble is served like a model: over HTTP, embedded, and offline over a file."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita import offline_runs
from partita.cli.app import run as cli
from partita.core.errors import InferenceFailed, InvalidInput, ModelUnavailable
from partita.embedded import Server
from partita.offline import predict, predict_with
from partita.settings import ServerSettings, Settings
from partita.system.addresses import Address
from tests import models
from tests.ensembles import EXIT, RAISE, items, scaled

pytestmark = pytest.mark.e2e

COUNTING = """
import numpy as np


class Counting:
    def start(self, n_items, members):
        self.n_items = n_items

    def update(self, rows, member, predictions):
        pass

    def finish(self):
        return {"n": np.full((self.n_items, 1), self.n_items)}
"""

PORTS = Settings(
    server=ServerSettings(
        http=Address("127.0.0.1", 0), metrics=Address("127.0.0.1", 0), management=None, cores=2
    )
)


def ensemble(folder: Path, *head: str, members: tuple[str, ...] = ("a", "b")) -> Path:
    """Members multiply by 1, 10, 100, …; all but the first mind what an item's last number says."""
    text = "\n".join(head) + "\n"
    for place, name in enumerate(members):
        scaled(folder, name, 10.0**place, trouble=place > 0)
        text += f'[[member]]\npath = "{name}/model.py"\nname = "{name}"\n'
    file = folder / "both.toml"
    file.write_text(text)
    return file


@pytest.fixture
def degraded(tmp_path: Path) -> Iterator[Server]:
    file = ensemble(tmp_path, 'on_member_failure = "degrade"', "segment = 8")
    with Server([file], settings=PORTS, tune="never", ports=True) as server:
        yield server


def post(server: Server, path: str, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    address = server.head.ports["http"]
    connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
    connection.request("POST", path, json.dumps(document))
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def get(server: Server, path: str, port: str = "http") -> bytes:
    address = server.head.ports[port]
    connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body


def request(x: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]}


def test_over_http_a_degraded_answer_says_so(degraded: Server) -> None:
    x = items(1, 2)
    status, answer = post(degraded, "/v2/models/both/infer", request(x))
    assert status == 200
    assert answer["outputs"][0]["data"] == pytest.approx((x[:, :3] * 5.5).ravel().tolist())
    assert "parameters" not in answer
    for what in (RAISE, EXIT):
        status, answer = post(degraded, "/v2/models/both/infer", request(items(1, what=what)))
        assert status == 200
        assert answer["parameters"] == {"missing_members": "b"}
        assert answer["outputs"][0]["data"] == pytest.approx([1, 2, 3])
    assert "parameters" not in post(degraded, "/v2/models/both/infer", request(x))[1]


def test_it_is_described_like_a_model(degraded: Server) -> None:
    metadata = json.loads(get(degraded, "/v2/models/both"))
    assert metadata["platform"] == "ensemble"
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert [output["name"] for output in metadata["outputs"]] == ["y"]
    config = json.loads(get(degraded, "/v2/models/both/config"))
    assert sum(group["count"] for group in config["instance_group"]) == 4, "both members on both cores"
    post(degraded, "/v2/models/both/infer", request(items(1)))
    (stats,) = json.loads(get(degraded, "/v2/models/both/stats"))["model_stats"]
    assert stats["inference_count"] == 1
    assert 'partita_ready{model="both",version="1"} 1.0' in get(degraded, "/metrics", "metrics").decode()


def test_offline_in_segments_with_who_was_missing(degraded: Server) -> None:
    x = np.concatenate([items(*range(20)), items(5, what=RAISE), items(*range(9))])
    answer = predict_with(degraded, "both", x)
    wanted = x[:, :3] * 5.5
    wanted[16:24] = x[16:24, :3]  # the segment of 8 with the bad item is answered by the first member alone
    np.testing.assert_allclose(answer["y"], wanted, rtol=1e-6)
    assert answer.missing == ("b",)


def test_a_failing_segment_is_named_with_its_member(tmp_path: Path) -> None:
    file = ensemble(tmp_path)
    x = np.concatenate([items(*range(150)), items(5, what=RAISE)])
    with pytest.raises(InferenceFailed, match=r"^segment 1: member b: .*bad item"):
        predict(file, x, cores=2, tune="never")


@pytest.fixture
def in_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Hand segments in several at a time, however fast they are; returns the sizes of all requests."""
    sizes: list[int] = []
    submit = Server.submit

    def counted(server: Server, model: str, inputs: Any, **more: Any) -> Any:
        sizes.append(len(inputs["x"]))
        return submit(server, model, inputs, **more)

    monkeypatch.setattr(Server, "submit", counted)
    monkeypatch.setattr(offline_runs, "RUN_S", 1e9)
    return sizes


def test_in_a_run_of_segments_the_failing_one_is_named(tmp_path: Path, in_runs: list[int]) -> None:
    file = ensemble(tmp_path, "segment = 8")
    x = np.concatenate([items(*range(700)), items(5, what=RAISE), items(*range(300))])
    with pytest.raises(InferenceFailed, match=r"^segment 87: member b: .*bad item"):
        predict(file, x, cores=2, tune="never")
    assert max(in_runs) > 8


def test_in_a_run_of_segments_only_those_that_need_it_are_answered_without_a_member(
    tmp_path: Path, in_runs: list[int]
) -> None:
    file = ensemble(tmp_path, 'on_member_failure = "degrade"', "segment = 8")
    x = np.concatenate([items(*range(701)), items(5, what=RAISE), items(*range(1300))])
    answer = predict(file, x, cores=2, tune="never")
    wanted = x[:, :3] * 5.5
    wanted[696:704] = x[696:704, :3]
    np.testing.assert_allclose(answer["y"], wanted, rtol=1e-6)
    assert answer.missing == ("b",)
    assert max(in_runs) > 8
    assert set(in_runs[-30:]) <= {8, len(x) % 8}, "from then on every segment is a request of its own"


def test_a_rule_of_the_users_gets_every_segment_by_itself(tmp_path: Path, in_runs: list[int]) -> None:
    (tmp_path / "rule.py").write_text(COUNTING)
    file = ensemble(tmp_path, 'rule = "rule.py:Counting"', "segment = 8")
    answer = predict(file, items(*range(205)), cores=2, tune="never")
    assert answer["n"].ravel().tolist() == [8] * 200 + [5] * 5
    assert set(in_runs) == {8, 5}


def test_the_command_line_predicts_with_networks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    models.linear(tmp_path / "one.onnx")
    models.linear(tmp_path / "two.onnx")
    file = tmp_path / "pair.toml"
    file.write_text(
        'rule = "weighted"\n[[member]]\npath = "one.onnx"\nweight = 3\n[[member]]\npath = "two.onnx"\n'
    )
    x = np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    assert cli(["predict", str(file), str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npy"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["items"], document["missing_members"]) == (300, [])
    weight, bias = models.linear_weights()
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), x @ weight + bias, rtol=1e-4, atol=1e-4)


def test_mistakes_end_the_start_with_a_reason(tmp_path: Path) -> None:
    file = ensemble(tmp_path)
    file.write_text(file.read_text() + 'output = "z"\n')
    with pytest.raises(ModelUnavailable, match="member b has no output 'z'; it has y"):
        Server([file], cores=2, tune="never").start()
    file.write_text('rule = "maen"\n' + file.read_text())
    with pytest.raises(InvalidInput, match="did you mean 'mean'"):
        Server([file], cores=2)


def test_an_ensemble_has_no_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["profile", str(ensemble(tmp_path))]) == 2
    assert "partita allocate both.toml" in capsys.readouterr().err
