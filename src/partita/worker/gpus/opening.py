"""The GPUs that this process has opened: one object for each, shared by the threads of all models."""

import threading
from importlib import import_module

from partita.core.errors import InvalidInput
from partita.wire.messages import Gpu
from partita.worker.gpus.cuda import CudaDevice
from partita.worker.gpus.interface import GpuDevice, OpenGpu

_lock = threading.Lock()
_open: dict[Gpu, GpuDevice] = {}


def open_gpu(gpu: Gpu) -> GpuDevice:
    """Return the device, opened at the first call. Raises `InvalidInput` or `LoadFailed`."""
    with _lock:
        if gpu not in _open:
            _open[gpu] = _driver(gpu.driver)(gpu.name, gpu.index, gpu.memory_bytes)
        return _open[gpu]


def _driver(text: str) -> OpenGpu:
    if not text:
        return CudaDevice
    module, _, name = text.partition(":")
    try:
        driver: OpenGpu = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"driver {text!r} cannot be found, package.module:Class is expected: {error}"
        ) from error
    return driver
