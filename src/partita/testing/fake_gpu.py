"""A GPU that is none: it computes on the cores, and keeps account of memory as a GPU would.

Named as a driver (``driver = "partita.testing.fake_gpu:FakeGpu"`` of a described device) it takes the same
path as CUDA through head and worker, so that it can be run and tested anywhere. It says nothing about speed.
"""

import mmap
import threading
from collections.abc import Callable
from typing import Any

from partita.worker.gpus.cuda import address_of
from partita.worker.gpus.interface import Memory

DRIVER = "partita.testing.fake_gpu:FakeGpu"
MEMORY_BYTES = 1 << 30
"""What it has unless told."""
WEIGHTS = 2
"""A model holds this many times its file's size there."""


class FakeGpu:
    """Memory is what was stored and what models are charged for; page-locked memory is mapped."""

    torch_device = "cpu"

    def __init__(self, name: str, index: int, memory_bytes: int | None) -> None:  # noqa: ARG002
        self.name = name
        self._total = memory_bytes or MEMORY_BYTES
        self._taken = 0
        self._lock = threading.Lock()
        self._locked: dict[int, int] = {}
        """Page-locked memory: where it begins, and its bytes."""

    def memory(self) -> Memory:
        """Return what is left."""
        with self._lock:
            return Memory(self._total - self._taken, self._total)

    def take(self, nbytes: int) -> Callable[[], None]:
        """Take memory; returns what gives it back. Raises `MemoryError`."""
        with self._lock:
            free = self._total - self._taken
            if nbytes > free:
                raise MemoryError(f"{self.name} cannot allocate {nbytes} bytes: {free} are free")
            self._taken += nbytes
        is_held = [True]

        def give_back() -> None:
            with self._lock:
                if is_held.pop() if is_held else False:
                    self._taken -= nbytes

        return give_back

    def charge(self, nbytes: int) -> Callable[[], None]:
        """Take what a model of this size would."""
        return self.take(WEIGHTS * nbytes)

    def page_locked(self, nbytes: int) -> "_Locked":
        """Map memory and note that it is page-locked."""
        locked = _Locked(self, nbytes)
        with self._lock:
            self._locked[locked.start] = nbytes
        return locked

    def unlocked(self, start: int) -> None:
        """It is page-locked no longer."""
        with self._lock:
            self._locked.pop(start, None)

    def is_page_locked(self, view: memoryview) -> bool:
        """Whether it lies in what was handed out."""
        start = address_of(view)
        with self._lock:
            return any(at <= start < at + size for at, size in self._locked.items())

    def store(self, data: memoryview) -> "_Stored":
        """Keep a copy, which counts."""
        return _Stored(data, self.take(data.nbytes))

    def onnx_providers(self) -> list[Any]:
        """The cores compute."""
        return ["CPUExecutionProvider"]


class _Locked:
    def __init__(self, gpu: FakeGpu, nbytes: int) -> None:
        self._gpu = gpu
        self._mapping = mmap.mmap(-1, nbytes)
        self.view = memoryview(self._mapping)
        self.start = address_of(self.view)

    def release(self) -> None:
        self._gpu.unlocked(self.start)


class _Stored:
    def __init__(self, data: memoryview, give_back: Callable[[], None]) -> None:
        self._data = bytes(data)
        self._give_back = give_back

    def fetch(self, into: memoryview) -> None:
        into.cast("B")[:] = self._data

    def release(self) -> None:
        self._give_back()
