"""GPU drivers and runtimes on them: the real one where there is a GPU, and the fake that stands in for it."""

from collections.abc import Callable
from ctypes import CDLL
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from partita.core.errors import InvalidInput, LoadFailed
from partita.testing.fake_gpu import DRIVER, FakeGpu
from partita.testing.gpu_conformance import GpuConformance
from partita.testing.runtime_conformance import RuntimeConformance
from partita.wire.messages import Gpu
from partita.worker.gpus.cuda import LIBRARY, CudaDevice
from partita.worker.gpus.interface import GpuDevice
from partita.worker.gpus.opening import open_gpu
from partita.worker.gpus.staging import StagedRuntime, Staging
from partita.worker.runtimes.interface import LoadRequest, Runtime
from partita.worker.runtimes.registry import runtime_loader
from tests import models

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def has_cuda() -> bool:
    try:
        CDLL(LIBRARY)
        CudaDevice("cuda:0", 0, None)
    except (OSError, LoadFailed):
        return False
    return True


needs_cuda = pytest.mark.skipif(not has_cuda(), reason="there is no GPU here")


class TestFakeGpu(GpuConformance):
    def make(self) -> GpuDevice:
        return FakeGpu("cuda:0", 0, 64 << 20)


@needs_cuda
class TestCuda(GpuConformance):
    def make(self) -> GpuDevice:
        return CudaDevice("cuda:0", 0, None)


def gpu() -> GpuDevice:
    return CudaDevice("cuda:0", 0, None) if has_cuda() else FakeGpu("cuda:0", 0, None)


def staged(runtime: str, path: Path, on: GpuDevice) -> Runtime:
    request = LoadRequest(path=str(path), max_batch=8, gpu=on, device=on.name)
    return StagedRuntime(runtime_loader(runtime)(request), Staging(on))


@pytest.mark.parametrize("model", [models.linear, models.two_inputs, models.unbatched, models.sequence_sum])
class TestOnnxRuntimeOnAGpu(RuntimeConformance):
    @pytest.fixture(autouse=True)
    def _model(self, model: Callable[[Path], Path]) -> None:
        self.model = model

    def make(self, tmp_path: Path) -> Runtime:
        return staged("onnxruntime", self.model(tmp_path / "model.onnx"), gpu())


@needs_torch
@pytest.mark.parametrize("runtime", ["torch-eager", "torch-script"])
class TestTorchOnAGpu(RuntimeConformance):
    @pytest.fixture(autouse=True)
    def _runtime(self, runtime: str) -> None:
        self.runtime = runtime

    def make(self, tmp_path: Path) -> Runtime:
        from tests import torch_models

        made = {"torch-eager": torch_models.program, "torch-script": torch_models.script}[self.runtime]
        suffix = {"torch-eager": "pt2", "torch-script": "pt"}[self.runtime]
        return staged(self.runtime, made(tmp_path / f"linear.{suffix}"), gpu())


class Echo:
    """Answers its input itself."""

    version = "1"
    threads_seen = 1

    def __init__(self, runtime: Runtime) -> None:
        self.signature = runtime.signature

    def infer(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": batch["x"][:, :2]}


def test_an_output_that_is_an_input_outlives_the_next_batch(tmp_path: Path) -> None:
    on = gpu()
    inner = runtime_loader("onnxruntime")(LoadRequest(path=str(models.linear(tmp_path / "m.onnx")), gpu=on))
    runtime = StagedRuntime(Echo(inner), Staging(on))
    first = runtime.infer({"x": np.ones((3, 4), np.float32)})
    runtime.infer({"x": np.zeros((3, 4), np.float32)})
    np.testing.assert_array_equal(first["y"], np.ones((3, 2)))


def test_a_gpu_is_opened_once_and_a_driver_that_is_not_there_is_named() -> None:
    fake = Gpu(name="cuda:3", driver=DRIVER, memory_bytes=1 << 20)
    assert open_gpu(fake) is open_gpu(fake)
    with pytest.raises(InvalidInput, match=r"package\.module:Class is expected"):
        open_gpu(Gpu(name="cuda:3", driver="no.such:Thing"))
    if not has_cuda():
        with pytest.raises(LoadFailed, match="no CUDA driver here"):
            open_gpu(Gpu(name="cuda:0"))


@pytest.mark.skipif(has_cuda(), reason="ONNX Runtime may well have its provider here")
def test_an_onnxruntime_without_cuda_says_what_to_install() -> None:
    made = CudaDevice.__new__(CudaDevice)  # which cannot be opened here
    with pytest.raises(LoadFailed, match=r"no CUDAExecutionProvider.*partita\[cuda\]"):
        made.onnx_providers()
