"""Our own runtimes pass the suite that others' must."""

from collections.abc import Callable
from importlib import metadata
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest

from partita.core.errors import InvalidInput, MissingExtra
from partita.core.formats import ENTRY_POINT_GROUP
from partita.testing.runtime_conformance import RuntimeConformance
from partita.worker.runtimes import registry
from partita.worker.runtimes.axes import batch_axis
from partita.worker.runtimes.interface import LoadRequest, Runtime
from partita.worker.runtimes.registry import runtime_loader
from tests import models

needs_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
"""Looked for and not imported: the runtime keeps it from sending its makers a message as it is imported."""


def external(path: Path) -> Path:
    """Write the perceptron with its weights in a file beside it."""
    onnx.save_model(
        onnx.load(models.mlp(path)),
        path,
        save_as_external_data=True,
        location=f"{path.stem}.data",
        size_threshold=0,
    )
    return path


NETWORKS: list[Callable[[Path], Path]] = [
    models.linear,
    models.mlp,
    external,
    models.two_inputs,
    models.sequence_sum,
    models.unbatched,
    lambda path: models.fixed_linear(path, 4),
]

CLASS = """
class Model:
    inputs = {"x": {"shape": [-1, 4], "datatype": "FP32"}}
    def load(self, context):
        self.threads = context.threads
    def infer(self, batch):
        return {"double": batch["x"] * 2, "sign": batch["x"][:, 0] > 0.5}
"""


@pytest.mark.parametrize("model", NETWORKS)
class TestOnnxRuntime(RuntimeConformance):
    @pytest.fixture(autouse=True)
    def _model(self, model: Callable[[Path], Path]) -> None:
        self.model = model

    def make(self, tmp_path: Path) -> Runtime:
        path = self.model(tmp_path / "model.onnx")
        return runtime_loader("onnxruntime")(LoadRequest(path=str(path), threads=1, max_batch=8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("model", [external, models.two_inputs])
class TestOnnxRuntimeMapped(RuntimeConformance):
    """The optimized model, its weights mapped from the cache folder."""

    @pytest.fixture(autouse=True)
    def _model(self, model: Callable[[Path], Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PARTITA_CACHE_DIR", str(folder))
        self.model = model

    def make(self, tmp_path: Path) -> Runtime:
        path = self.model(tmp_path / "model.onnx")
        options = {"share_weights": True}
        return runtime_loader("onnxruntime")(LoadRequest(path=str(path), max_batch=8, options=options))


@needs_openvino
class TestOpenVino(TestOnnxRuntime):
    def make(self, tmp_path: Path) -> Runtime:
        path = self.model(tmp_path / "model.onnx")
        return runtime_loader("openvino")(LoadRequest(path=str(path), threads=1, max_batch=8))


@needs_openvino
class TestOpenVinoStreams(RuntimeConformance):
    def make(self, tmp_path: Path) -> Runtime:
        path = models.two_inputs(tmp_path / "model.onnx")
        return runtime_loader("openvino")(LoadRequest(path=str(path), threads=2, options={"streams": 2}))

    def test_the_thread_count_is_the_one_asked_for(self, tmp_path: Path) -> None:
        assert self.make(tmp_path).threads_seen == 2


@needs_openvino
def test_an_output_that_is_a_copy_has_its_own_name(tmp_path: Path) -> None:
    model = onnx.load(models.linear(tmp_path / "model.onnx"))
    model.graph.node[0].output[0] = "a"
    model.graph.node.append(onnx.helper.make_node("Identity", ["a"], ["y"]))
    onnx.save(model, tmp_path / "copy.onnx")
    runtime = runtime_loader("openvino")(LoadRequest(path=str(tmp_path / "copy.onnx")))
    assert [spec.name for spec in runtime.signature.outputs] == ["y"]


class TestPythonRuntime(RuntimeConformance):
    def make(self, tmp_path: Path) -> Runtime:
        (tmp_path / "model.py").write_text(CLASS)
        return runtime_loader("python")(LoadRequest(path=f"{tmp_path}/model.py:Model", max_batch=8))

    def test_the_thread_count_is_the_one_asked_for(self, tmp_path: Path) -> None:
        pytest.skip("the libraries' variables are set before a worker imports them; tests/process checks it")


def test_an_installed_package_may_offer_a_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "partita.worker.runtimes.python:load", ENTRY_POINT_GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    assert runtime_loader("mine").__module__ == "partita.worker.runtimes.python"
    with pytest.raises(InvalidInput, match="there are mine, onnxruntime, openvino, python"):
        runtime_loader("yours")


def test_a_package_that_is_missing_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._OWN, "onnxruntime", "no_such_package")
    with pytest.raises(MissingExtra, match=r"partita\[onnxruntime\]"):
        runtime_loader("onnxruntime")


@pytest.mark.parametrize(
    ("inputs", "outputs", "batched", "fixed"),
    [
        ([["batch", 4]], [["batch", 3]], True, None),
        ([["N", 4]], [["unk__7", 3]], True, None),
        ([[None, 4], ["N"]], [[None]], True, None),
        ([[-1, 4]], [[-1, 3]], True, None),
        ([["a", 4], ["b", 4]], [["a", 4]], False, None),
        ([["sequence", 4]], [["sequence", 4]], False, None),
        ([["N", 4]], [[1, 3]], False, None),
        ([["N", 4]], [[]], False, None),
        ([["N", 4], []], [["N"]], False, None),
        ([[8, 4]], [[8, 3]], True, 8),
        ([[1, 3, 8, 8]], [[1, 10]], True, 1),
        ([[8, 4], [8]], [[8]], True, 8),
        ([[8]], [[8]], False, None),
        ([[8, 4]], [[3]], False, None),
        ([[8, 4], [4, 4]], [[8, 4]], False, None),
        ([], [["N"]], False, None),
    ],
)
def test_the_batch_axis_is_read_from_the_shapes(
    inputs: list[list[int | str | None]],
    outputs: list[list[int | str | None]],
    batched: bool,
    fixed: int | None,
) -> None:
    assert batch_axis(inputs, outputs) == (batched, fixed)
