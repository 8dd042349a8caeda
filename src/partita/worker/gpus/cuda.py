"""NVIDIA GPUs through the CUDA driver's own library, which every runtime shares its context with.

Nothing is linked or installed for it: ``libcuda.so.1`` comes with the driver. Page-locked memory made here is
known to ONNX Runtime and torch alike, since all of them use the GPU's primary context.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from partita.core.errors import LoadFailed
from partita.worker.gpus.interface import Memory

LIBRARY = "libcuda.so.1"
PROVIDER = "CUDAExecutionProvider"
_OUT_OF_MEMORY = 2
_PORTABLE = 1
"""CU_MEMHOSTALLOC_PORTABLE: page-locked for every context."""


class _Driver:
    """The functions that are used, with every failure an exception."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise LoadFailed(f"there is no CUDA driver here: {error}") from error

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function; raises `MemoryError` where memory is short, `LoadFailed` for anything else."""
        code = getattr(self._library, name)(*arguments)
        if code == _OUT_OF_MEMORY:
            raise MemoryError(f"{name}: out of memory")
        if code:
            said = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(said))
            raise LoadFailed(f"CUDA: {name} failed: {(said.value or b'?').decode()} ({code})")

    def succeeds(self, name: str, *arguments: Any) -> bool:
        """Call a function that may say no."""
        return not getattr(self._library, name)(*arguments)


class CudaDevice:
    """One GPU, by its number among those that the process may see."""

    def __init__(self, name: str, index: int, memory_bytes: int | None) -> None:
        self.name = name
        self.torch_device = f"cuda:{index}"
        self._index = index
        self._limit = memory_bytes
        self._call = _Driver()
        self._context = ctypes.c_void_p()
        device = ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), index)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)

    def _enter(self) -> None:
        """Make its context the calling thread's, as the runtimes do too."""
        self._call("cuCtxSetCurrent", self._context)

    def memory(self) -> Memory:
        """Ask the driver; `free` within what may be used."""
        self._enter()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        if self._limit is None or self._limit >= total.value:
            return Memory(free.value, total.value)
        return Memory(max(0, self._limit - (total.value - free.value)), self._limit)

    def page_locked(self, nbytes: int) -> "_HostMemory":
        """Allocate page-locked memory."""
        self._enter()
        pointer = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(nbytes), ctypes.c_uint(_PORTABLE))
        assert pointer.value is not None
        return _HostMemory(self, pointer.value, nbytes)

    def free_host(self, pointer: int) -> None:
        """Give page-locked memory back."""
        self._enter()
        self._call("cuMemFreeHost", ctypes.c_void_p(pointer))

    def is_page_locked(self, view: memoryview) -> bool:
        """Ask the driver, which knows the flags of page-locked memory only."""
        self._enter()
        flags = ctypes.c_uint()
        return self._call.succeeds(
            "cuMemHostGetFlags", ctypes.byref(flags), ctypes.c_void_p(address_of(view))
        )

    def store(self, data: memoryview) -> "_DeviceMemory":
        """Allocate memory of the GPU and copy into it."""
        self._enter()
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(data.nbytes))
        self._call(
            "cuMemcpyHtoD_v2", pointer, ctypes.c_void_p(address_of(data)), ctypes.c_size_t(data.nbytes)
        )
        return _DeviceMemory(self, pointer.value, data.nbytes)

    def fetch(self, pointer: int, into: memoryview) -> None:
        """Copy from memory of the GPU."""
        self._enter()
        self._call(
            "cuMemcpyDtoH_v2",
            ctypes.c_void_p(address_of(into)),
            ctypes.c_uint64(pointer),
            ctypes.c_size_t(into.nbytes),
        )

    def free(self, pointer: int) -> None:
        """Give memory of the GPU back."""
        self._enter()
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def onnx_providers(self) -> list[Any]:
        """Return CUDA's provider, and the CPU's for what that cannot do.

        Memory is taken as it is needed and not doubled, so that what a model holds can be told. Convolutions
        are chosen by rule: searching them for every batch size takes seconds each time.
        """
        import onnxruntime as ort

        if PROVIDER not in ort.get_available_providers():
            raise LoadFailed(
                f"the onnxruntime that is installed has no {PROVIDER}: "
                "pip uninstall onnxruntime, then pip install 'partita[cuda]'"
            )
        options = {
            "device_id": str(self._index),
            "arena_extend_strategy": "kSameAsRequested",
            "cudnn_conv_algo_search": "HEURISTIC",
        }
        return [(PROVIDER, options), "CPUExecutionProvider"]

    def charge(self, nbytes: int) -> Callable[[], None]:
        """Refuse what is known not to fit; the driver sees what is really taken."""
        free = self.memory().free
        if nbytes > free:
            raise MemoryError(
                f"{self.name} has {free >> 20} MiB left, and the model's file alone {nbytes >> 20}"
            )
        return lambda: None


class _HostMemory:
    def __init__(self, device: CudaDevice, pointer: int, nbytes: int) -> None:
        self._device = device
        self._pointer: int | None = pointer
        self.view = memoryview((ctypes.c_char * nbytes).from_address(pointer)).cast("B")

    def release(self) -> None:
        if self._pointer is not None:
            self._device.free_host(self._pointer)
            self._pointer = None


class _DeviceMemory:
    def __init__(self, device: CudaDevice, pointer: int, nbytes: int) -> None:
        self._device = device
        self._pointer: int | None = pointer
        self._nbytes = nbytes

    def fetch(self, into: memoryview) -> None:
        assert self._pointer is not None
        assert into.nbytes == self._nbytes, (into.nbytes, self._nbytes)
        self._device.fetch(self._pointer, into)

    def release(self) -> None:
        if self._pointer is not None:
            self._device.free(self._pointer)
            self._pointer = None


def address_of(view: memoryview) -> int:
    """Return where host memory begins; read-only memory too."""
    import numpy as np

    return int(np.frombuffer(view, np.uint8).ctypes.data)
