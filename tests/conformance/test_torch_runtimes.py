"""The runtimes of torch, and those that torch's models reach by export, pass the suite that others' must."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from partita.testing.runtime_conformance import RuntimeConformance
from partita.worker import preparing
from partita.worker.runtimes.interface import LoadRequest, Runtime
from partita.worker.runtimes.registry import runtime_loader
from tests import models

torch_models = pytest.importorskip("tests.torch_models", reason="torch is not installed")

NAMES = list(torch_models.CASES)


def loaded(runtime: str, path: Path, **options: str | int | float | bool) -> Runtime:
    return runtime_loader(runtime)(LoadRequest(path=str(path), threads=1, max_batch=8, options=options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torch")


@pytest.mark.parametrize("name", NAMES)
class TestTorchScript(RuntimeConformance):
    @pytest.fixture(autouse=True)
    def _model(self, name: str, folder: Path) -> None:
        self.path = folder / f"{name}.pt"
        if not self.path.exists():
            torch_models.script(self.path, name)

    def make(self, tmp_path: Path) -> Runtime:
        return loaded("torch-script", self.path)


@pytest.mark.parametrize("options", [{"optimize_for_inference": True}, {"channels_last": True}], ids=str)
class TestTorchScriptOptions(RuntimeConformance):
    @pytest.fixture(autouse=True)
    def _model(self, options: dict[str, bool], folder: Path) -> None:
        self.options = options
        self.path = folder / "images.pt"
        if not self.path.exists():
            torch_models.script(self.path, "images")

    def make(self, tmp_path: Path) -> Runtime:
        return loaded("torch-script", self.path, **self.options)


@pytest.mark.parametrize("name", NAMES)
class TestTorchProgram(RuntimeConformance):
    @pytest.fixture(autouse=True)
    def _model(self, name: str, folder: Path) -> None:
        self.path = folder / f"{name}.pt2"
        if not self.path.exists():
            torch_models.program(self.path, name)

    def make(self, tmp_path: Path) -> Runtime:
        return loaded("torch-eager", self.path)


class TestTorchWeights(RuntimeConformance):
    def make(self, tmp_path: Path) -> Runtime:
        torch_models.factory(tmp_path / "net.py")
        path = torch_models.weights(tmp_path / "w.safetensors", prefix="inner.")
        return loaded("torch-eager", path, factory="net.py:branch")


class TestTorchCompile(RuntimeConformance):
    """Compiling takes long, so the library is kept for the next run of the tests while nothing changes."""

    @pytest.fixture(autouse=True)
    def _model(self, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = pytestconfig.cache.mkdir("partita-compiled") if pytestconfig.cache else None
        assert kept is not None
        folder = kept / _state_of_the_code()
        for other in kept.iterdir():
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        # What only costs time here: trying the C++ compiler out, and optimizing the code around kernels.
        monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
        monkeypatch.setenv("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
        monkeypatch.setenv("PARTITA_CACHE_DIR", str(folder / "cache"))
        self.path = folder / "two_inputs.pt2"
        if not self.path.exists():
            torch_models.program(folder / "new.pt2", "two_inputs").rename(self.path)

    def make(self, tmp_path: Path) -> Runtime:
        return loaded("torch-compile", self.path)


def _state_of_the_code() -> str:
    """Return a hash of everything of ours that makes the library."""
    digest = hashlib.sha256(Path(torch_models.__file__).read_bytes())
    worker = Path(preparing.__file__).parent
    for file in [Path(preparing.__file__), *sorted((worker / "runtimes").glob("*.py"))]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
class TestExportedScript(RuntimeConformance):
    @pytest.fixture(autouse=True)
    def _model(self, runtime: str, folder: Path) -> None:
        self.runtime = runtime
        self.path = folder / "sequences.pt"
        if not self.path.exists():
            torch_models.script(self.path, "sequences")

    def make(self, tmp_path: Path) -> Runtime:
        return loaded(self.runtime, self.path)


def test_a_program_reaches_both_by_one_export(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    path = torch_models.program(folder / "exported.pt2", "sequences")
    reference = loaded("torch-eager", path)
    x = np.random.default_rng(1).standard_normal((3, 7, 4)).astype(np.float32)
    for runtime in ("onnxruntime", "openvino"):
        exported = loaded(runtime, path)
        assert [(i.name, len(i.shape)) for i in exported.signature.inputs] == [("x", 2)]
        for name, array in reference.infer({"x": x}).items():
            np.testing.assert_allclose(exported.infer({"x": x})[name], array, rtol=1e-5, atol=1e-5)
    assert len(list((tmp_path / "prepared").glob("*/model.onnx"))) == 1


@pytest.mark.parametrize(
    ("runtime", "suffix"), [("torch-script", "pt"), ("torch-eager", "pt2"), ("onnxruntime", "pt")]
)
def test_torch_computes_what_numpy_does(runtime: str, suffix: str, folder: Path) -> None:
    path = folder / f"right.{suffix}"
    (torch_models.script if suffix == "pt" else torch_models.program)(path)
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    weight, bias = models.linear_weights()
    got = loaded(runtime, path).infer({"x": x})
    np.testing.assert_allclose(got["output"], x @ weight + bias, rtol=1e-5, atol=1e-6)
