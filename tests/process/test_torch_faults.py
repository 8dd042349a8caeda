"""What is wrong with a model of torch or OpenVINO is said by the worker, which then ends, or goes on."""

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from partita.core.errors import PartitaError
from partita.core.process_settings import ProcessSettings
from partita.core.tensors import DataType, TensorSpec
from partita.worker.runtimes.interface import LoadRequest, Option
from partita.worker.runtimes.registry import runtime_loader
from tests import models
from tests.worker_driver import worker

torch_models = pytest.importorskip("tests.torch_models", reason="torch is not installed")
pytestmark = pytest.mark.process

X = (TensorSpec("x", DataType.FP32, (4,)),)
FORBIDDEN = "forbidden"


class Forbidden:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (Path.touch, (self.path,))


def refusal(
    path: Path,
    *,
    runtime: str,
    inputs: tuple[TensorSpec, ...] | None = None,
    options: Mapping[str, Option] | None = None,
) -> PartitaError:
    """Return what a worker would say of a model; asked here, since torch takes seconds to import."""
    request = LoadRequest(path=str(path), model="test", inputs=inputs, options=options or {})
    with pytest.raises(PartitaError) as caught:
        runtime_loader(runtime)(request)
    return caught.value


def unsupported(path: Path) -> Path:
    """Write a network with an operator that nobody knows."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y"))
    node = helper.make_node("Nobody", ["x"], ["y"], domain="nobody.knows")
    graph = helper.make_graph([node], "unsupported", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nobody.knows", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.mark.parametrize(
    ("runtime", "name", "reason"),
    [
        ("torch-script", "m.pt", "m.pt is no TorchScript archive"),
        ("torch-eager", "m.pt2", "m.pt2 is no exported program"),
        ("torch-compile", "m.pt2", "m.pt2 is no exported program"),
        ("openvino", "m.onnx", "OpenVINO cannot load m.onnx"),
        ("openvino", "m.xml", "OpenVINO cannot load m.xml"),
    ],
)
def test_a_corrupt_file(tmp_path: Path, runtime: str, name: str, reason: str) -> None:
    (tmp_path / name).write_bytes(b"not a model at all")
    failed = refusal(tmp_path / name, runtime=runtime)
    assert failed.code == "load_failed"
    assert reason in str(failed)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_an_operator_that_nobody_knows(tmp_path: Path, runtime: str) -> None:
    failed = refusal(unsupported(tmp_path / "m.onnx"), runtime=runtime)
    assert failed.code == "load_failed"
    assert "Nobody" in str(failed)


def test_an_archive_that_does_not_say_its_inputs(tmp_path: Path) -> None:
    path = torch_models.script(tmp_path / "m.pt", inputs={})
    failed = refusal(path, runtime="torch-script")
    assert failed.code == "invalid_input"
    assert "[model.test] inputs = { x = { shape" in str(failed)
    with worker(path, runtime="torch-script", inputs=X) as driver:
        driver.start()
        weight, bias = models.linear_weights()
        x = np.ones((2, 4), np.float32)
        np.testing.assert_allclose(driver.run([x])[0], x @ weight + bias, rtol=1e-5)


def test_inputs_of_other_names(tmp_path: Path) -> None:
    path = torch_models.script(tmp_path / "m.pt", inputs={})
    inputs = (TensorSpec("image", DataType.FP32, (4,)),)
    failed = refusal(path, runtime="torch-script", inputs=inputs)
    assert failed.code == "invalid_input"
    assert "the inputs given are image; the network takes x" in str(failed)


def test_a_branch_on_values_runs_eagerly_and_is_refused_where_one_graph_is_needed(tmp_path: Path) -> None:
    path = torch_models.weights(tmp_path / "w.pth", prefix="inner.")
    torch_models.factory(tmp_path / "net.py")
    options = {"factory": "net.py:branch"}
    with worker(path, runtime="torch-eager", options=options) as driver:
        driver.start()
        weight, bias = models.linear_weights()
        x = -np.ones((2, 4), np.float32)
        np.testing.assert_allclose(driver.run([x])[0], -(x @ weight + bias), rtol=1e-5)
    for runtime in ("torch-compile", "onnxruntime"):
        failed = refusal(path, runtime=runtime, options=options)
        assert failed.code == "load_failed"
        assert "torch.export cannot make one graph of w.pth" in str(failed)


def test_an_export_that_fails_says_why_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = torch_models.script(tmp_path / "m.pt", "bag")
    failed = refusal(path, runtime="onnxruntime")
    assert failed.code == "load_failed"
    assert "torch cannot export m.pt to ONNX" in str(failed)
    assert not any(said in str(failed) for said in ("Caused by", "site-packages"))
    assert capfd.readouterr() == ("", "")


def test_an_export_that_crashes_says_what_it_said_last(tmp_path: Path) -> None:
    path = torch_models.weights(tmp_path / "w.pth", prefix="inner.")
    steps = ("print('one line', flush=True)", "print('the last', flush=True)", "os._exit(7)")
    (tmp_path / "net.py").write_text("import os\ndef build():\n    " + "\n    ".join(steps))
    failed = refusal(path, runtime="onnxruntime", options={"factory": "net.py:build"}, inputs=X)
    assert str(failed).endswith("exited with status 7; it said last: the last")


@pytest.mark.parametrize(
    ("factory", "code", "reason"),
    [
        ("", "invalid_input", "needs the option factory"),
        ("net.py:no", "invalid_input", "has no function 'no'"),
        ("net.py:nothing", "invalid_input", "returned int, not a torch.nn.Module"),
        ("net.py:fails", "load_failed", "OSError: no such layer"),
        ("net.py:branch", "load_failed", "are not those of the network"),
    ],
)
def test_a_factory_that_does_not_do(tmp_path: Path, factory: str, code: str, reason: str) -> None:
    path = torch_models.weights(tmp_path / "w.safetensors")
    torch_models.factory(tmp_path / "net.py")
    options = {"factory": factory} if factory else {}
    failed = refusal(path, runtime="torch-eager", inputs=X, options=options)
    assert failed.code == code
    assert reason in str(failed)


def test_nothing_is_unpickled_unless_it_is_allowed(tmp_path: Path) -> None:
    import torch

    touched = tmp_path / FORBIDDEN
    torch.save({"weight": Forbidden(touched)}, tmp_path / "w.pth")
    torch_models.factory(tmp_path / "net.py")
    options: dict[str, str | bool] = {"factory": "net.py:build"}
    assert "unpickle_may_run_code" in str(
        refusal(tmp_path / "w.pth", runtime="torch-eager", inputs=X, options=options)
    )
    assert not touched.exists()

    sound = torch_models.program(tmp_path / "sound.pt2")
    for change in ("sample_inputs", "expression", "pickled tensor"):
        path = tampered(sound, tmp_path / "bad.pt2", change, touched)
        assert refusal(path, runtime="torch-eager").code == "load_failed", change
        assert not touched.exists(), change


def tampered(sound: Path, path: Path, change: str, touched: Path) -> Path:
    """Write a program with a part that would run code if torch read it as it does by itself."""
    with zipfile.ZipFile(sound) as archive, zipfile.ZipFile(path, "w") as bad:
        for name in archive.namelist():
            content = archive.read(name)
            if change == "sample_inputs" and name.endswith("sample_inputs/model.pt"):
                content = pickled(Forbidden(touched))
            elif change == "expression" and name.endswith("models/model.json"):
                content = content.replace(b"Symbol('", f"open('{touched}', 'w') or Symbol('".encode())
            elif change == "pickled tensor" and name.endswith("model_weights_config.json"):
                document = json.loads(content)
                next(iter(document["config"].values()))["use_pickle"] = True
                content = json.dumps(document).encode()
            bad.writestr(name, content)
    return path


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    pickle.dump(value, buffer)
    return buffer.getvalue()


def test_numbers_that_are_none_are_answered_as_they_are(tmp_path: Path) -> None:
    x = np.array([[np.nan, 1, 2, 3], [np.inf, 1, 2, 3], [0, 1, 2, 3]], np.float32)
    for runtime in ("torch-script", "openvino"):
        with worker(torch_models.script(tmp_path / "m.pt"), runtime=runtime) as driver:
            driver.start()
            (y,) = driver.run([x])
            assert np.isnan(y[0]).all()
            assert not np.isfinite(y[1]).any()
            assert np.isfinite(y[2]).all(), "the other items are as right as ever"


def test_a_program_that_writes_to_its_inputs_leaves_them_alone(tmp_path: Path) -> None:
    x = np.ones((2, 4), np.float32)
    for name, runtime, make in (
        ("m.pt", "torch-script", torch_models.script),
        ("m.pt2", "torch-eager", torch_models.program),
    ):
        with worker(make(tmp_path / name, "in_place"), runtime=runtime, threads=2) as driver:
            assert driver.start().threads_seen == 2
            for _ in range(2):
                np.testing.assert_array_equal(driver.run([x])[0], x * 4)


def test_a_worker_is_set_up_as_its_process_settings_say(tmp_path: Path) -> None:
    (tmp_path / "say.py").write_text(
        "import os\nimport numpy as np\n"
        "class Model:\n"
        '    inputs = {"x": {"shape": [-1, 1], "datatype": "FP32"}}\n'
        "    def infer(self, batch):\n"
        '        said = os.environ["SAID"] + os.environ.get("MALLOC_MMAP_MAX_", "-")\n'
        '        return {"y": np.full((len(batch["x"]), 1), said.encode(), object)}\n'
    )
    settings = ProcessSettings(allocator="plain", environment={"SAID": "hello"})
    with worker(f"{tmp_path}/say.py:Model", runtime="python", process_settings=settings) as driver:
        driver.start()
        assert b"hello-" in driver.run([np.ones((1, 1), np.float32)])[0]
