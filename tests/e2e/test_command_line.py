"""Whole commands as a user runs them, over real workers."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.cli.app import run
from partita.core.errors import InvalidInput, InvalidRequest
from partita.embedded import Answer, Server
from partita.loadgen import Target
from partita.offline import predict, predict_with
from partita.offline_output import Mapped
from partita.settings import ModelSettings, Settings
from tests import models

pytestmark = pytest.mark.e2e
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.linear(tmp_path_factory.mktemp("models") / "linear.onnx")


@pytest.fixture(scope="module")
def server(linear: Path) -> Iterator[Server]:
    settings = Settings(model={"linear": ModelSettings(queue_size=64)})
    with Server([linear], cores=1, tune="never", settings=settings) as running:
        yield running


def _expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    weight, bias = models.linear_weights()
    result: np.ndarray[Any, Any] = x @ weight + bias
    return result


# --- predict --------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [1, 16, 17, 1000])
def test_segments_are_joined_in_order(server: Server, items: int) -> None:
    x = np.random.default_rng(items).standard_normal((items, 4)).astype(np.float32)
    seen: list[tuple[int, int]] = []
    outputs = predict_with(server, "linear", x, segment=16, progress=lambda *args: seen.append(args))
    np.testing.assert_allclose(outputs["y"], _expected(x), rtol=1e-4, atol=1e-5)
    assert seen[-1] == (items, items)
    assert len(seen) == -(-items // 16)


def test_a_segment_is_never_larger_than_the_queue(server: Server) -> None:
    x = np.ones((1000, 4), np.float32)
    assert len(predict_with(server, "linear", x, segment=10_000)["y"]) == 1000


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        (np.ones((0, 4), np.float32), InvalidInput),
        ({"x": np.ones((2, 4), np.float32), "z": np.ones((3, 4), np.float32)}, InvalidInput),
        (np.ones((3, 5), np.float32), InvalidRequest),
        ({"z": np.ones((3, 4), np.float32)}, InvalidRequest),
    ],
)
def test_inputs_that_do_not_fit(server: Server, inputs: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        predict_with(server, "linear", inputs)


def test_an_output_file_is_written_in_place_and_mapped(server: Server, tmp_path: Path) -> None:
    x = np.random.default_rng(5).standard_normal((301, 4)).astype(np.float32)
    file = tmp_path / "y.npy"
    file.write_text("of an earlier run")
    there: list[list[str]] = []

    def look(done: int, total: int) -> None:
        there.append([path.name for path in tmp_path.iterdir()])

    answer = predict_with(server, "linear", x, segment=16, output=file, progress=look)
    assert isinstance(answer["y"], np.memmap)
    np.testing.assert_array_equal(answer["y"], predict_with(server, "linear", x, segment=16)["y"])
    np.testing.assert_array_equal(np.load(file), answer["y"])
    assert all(len(names) == 2 for names in there), "it has no name of its own before it is whole"
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]


def test_a_run_that_fails_leaves_the_old_output_and_no_half_of_a_file(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "y.npy"
    file.write_text("of an earlier run")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_with(server, "linear", np.ones((64, 4), np.float32), segment=16, output=file, progress=stop)
    assert file.read_text() == "of an earlier run"
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]


def test_an_npy_holds_one_shape(tmp_path: Path) -> None:
    file = Mapped(tmp_path / "y.npy", 3, batched=True)
    file.add(Answer({"y": np.ones((2, 3), np.float32)}))
    with pytest.raises(InvalidInput, match=r"item 2 has an output of float32 \[4\], .* float32 \[3\]"):
        file.add(Answer({"y": np.ones((1, 4), np.float32)}))
    file.discard()
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidInput, match=r"outputs a, b; write to an \.npz"):
        file.add(Answer({"a": np.ones(1), "b": np.ones(1)}))


def test_progress_is_shown_on_standard_error(
    linear: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.cli.console._PLAIN_EVERY_S", 0.0)
    predict(linear, np.ones((3, 4), np.float32), cores=1, tune="never", progress=True)
    told = capsys.readouterr()
    assert "predicting" in told.err
    assert told.out == ""


def test_predict_starts_its_own_server(linear: Path) -> None:
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(predict(linear, x, cores=1, tune="never")["y"], _expected(x), rtol=1e-4)


def test_predict_of_a_folder_that_holds_several_says_so(tmp_path: Path) -> None:
    models.linear(tmp_path / "one.onnx")
    models.linear(tmp_path / "two.onnx")
    with pytest.raises(InvalidInput, match="holds 2 models; name one of them: one, two"):
        predict(tmp_path, np.ones((3, 4), np.float32), cores=1, tune="never")


def test_predict_from_file_to_file(linear: Path, tmp_path: Path, capsys: Capture) -> None:
    x = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    common = ["--cores", "1", "--tune", "never"]
    argv = ["predict", str(linear), str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npy"), "--json", *common]
    assert run(argv) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["items"] == 40
    assert document["outputs"] == {"y": [40, 3]}
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), _expected(x), rtol=1e-4, atol=1e-5)
    assert run(["predict", str(linear), str(tmp_path / "x.npz"), "-o", str(tmp_path / "y.npz"), *common]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], _expected(x), rtol=1e-4, atol=1e-5)
    assert "40 items in" in capsys.readouterr().err


def test_predict_says_what_cannot_be_read_or_written(linear: Path, tmp_path: Path, capsys: Capture) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 4), np.float32))
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    for inputs, output, message in (
        ("nowhere.npy", "y.npy", "cannot read"),
        ("text.npy", "y.npy", "no .npy or .npz of plain arrays, or empty\n"),
        ("objects.npy", "y.npy", "Python objects in dtype"),
        ("x.npy", "y.txt", "write to an .npy"),
        ("x.npy", "nowhere/y.npy", "there is no folder"),
    ):
        argv = ["predict", str(linear), str(tmp_path / inputs), "-o", str(tmp_path / output)]
        assert run([*argv, "--cores", "1", "--tune", "never"]) == 2, message
        assert message in capsys.readouterr().err


# --- serve and bench ------------------------------------------------------------------------------


def _serve(*argv: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "partita.cli", "serve", *argv, "--tune", "never", "--json"]
    command += ["--http", "127.0.0.1:0", "--management", "off", "--metrics", "off", "--cores", "1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_announces_itself_and_ends_on_a_signal(linear: Path, number: signal.Signals) -> None:
    with _serve(str(linear)) as process:
        assert process.stdout
        document = json.loads(process.stdout.readline())
        assert [model["name"] for model in document["models"]] == ["linear"]
        target = Target.parse(document["ports"]["http"])
        assert target.get_json("v2/models/linear")["inputs"][0]["shape"] == [-1, 4]
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err


def test_serve_of_a_broken_model_is_one_line_and_1(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with _serve(str(broken)) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert err.splitlines()[-1].startswith("partita: error: ")
    assert "partita/cli" not in err  # no traceback of ours; the worker shows where its runtime failed


def test_bench_of_a_path_starts_and_ends_a_server(
    linear: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTITA_TUNE_BUDGET_S", "1")
    argv = [
        "bench",
        str(linear),
        "--concurrency",
        "2",
        "--duration",
        "0.3",
        "--warmup",
        "0.1",
        "--cores",
        "1",
    ]
    assert run([*argv, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["model"] == "linear"
    assert document["requests"] > 0
    assert document["errors"] == {}


def test_bench_of_a_broken_model_is_1(tmp_path: Path, capfd: Capture) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    assert run(["bench", str(broken), "--duration", "0.1", "--cores", "1"]) == 1
    assert "ended with code" in capfd.readouterr().err
