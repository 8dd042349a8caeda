"""What a GPU is to the rest of the worker, and to whoever writes a driver for another kind."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class Memory(NamedTuple):
    """A GPU's memory, bytes."""

    free: int
    total: int


class PageLocked(Protocol):
    """Host memory that stays where it is, so that a GPU copies from and to it by itself."""

    @property
    def view(self) -> memoryview:
        """All of it, writable."""
        ...

    def release(self) -> None:
        """Give it back; nobody may use the view afterwards. A second time does nothing."""
        ...


class Stored(Protocol):
    """Bytes in a GPU's memory."""

    def fetch(self, into: memoryview) -> None:
        """Copy them into host memory of the same size."""
        ...

    def release(self) -> None:
        """Give the memory back; a second time does nothing."""
        ...


class GpuDevice(Protocol):
    """One GPU. Made once in a process, used by the threads of all models there."""

    @property
    def name(self) -> str:
        """What the head calls it, ``cuda:0``."""
        ...

    @property
    def torch_device(self) -> str:
        """Its name for torch."""
        ...

    def memory(self) -> Memory:
        """Return its memory now, everybody's on it counted."""
        ...

    def page_locked(self, nbytes: int) -> PageLocked:
        """Return page-locked host memory; raises `MemoryError`."""
        ...

    def is_page_locked(self, view: memoryview) -> bool:
        """Whether this host memory is page-locked for it."""
        ...

    def store(self, data: memoryview) -> Stored:
        """Copy bytes to it; raises `MemoryError`, and then holds no more than before."""
        ...

    def onnx_providers(self) -> list[Any]:
        """Return the execution providers for ONNX Runtime, as ``InferenceSession`` takes them.

        Raises `LoadFailed` if the installed build has none for it.
        """
        ...

    def charge(self, nbytes: int) -> Callable[[], None]:
        """Note that a model of this size is about to be loaded; what is returned is called when it is gone.

        For GPUs that cannot see what libraries take of them. Raises `MemoryError` if it cannot fit.
        """
        ...


OpenGpu = Callable[[str, int, int | None], GpuDevice]
"""A driver: from name, number and how much may be used, bytes, to the device. Raises `LoadFailed`."""
