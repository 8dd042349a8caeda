"""Inputs on their way to a GPU: copied once into page-locked memory, which the GPU then reads by itself.

X itself is shared by all workers and mostly empty; page-locking it would take all of it at once. The staging
memory of a model is as large as the largest batch that it has seen.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.tensors import Signature
from partita.worker.gpus.interface import GpuDevice, PageLocked
from partita.worker.runtimes.interface import Batch, Runtime

_ROUNDED = 1 << 16


class Staging:
    """Page-locked memory for the inputs of one model."""

    def __init__(self, gpu: GpuDevice) -> None:
        self._gpu = gpu
        self._memory: dict[str, PageLocked] = {}

    def place(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of an input in its page-locked memory; texts as they are. Raises `MemoryError`.

        It is overwritten by the next call for the same input.
        """
        if array.dtype.hasobject or not array.nbytes:
            return array
        memory = self._memory.get(name)
        if memory is None or memory.view.nbytes < array.nbytes:
            if memory is not None:
                del self._memory[name]
                memory.release()
            memory = self._memory[name] = self._gpu.page_locked(-(-array.nbytes // _ROUNDED) * _ROUNDED)
        staged = np.ndarray(array.shape, array.dtype, memory.view)
        staged[...] = array
        return staged

    def close(self) -> None:
        """Give all of it back."""
        for memory in self._memory.values():
            memory.release()
        self._memory.clear()


class StagedRuntime:
    """A runtime on a GPU, which gets its inputs in page-locked memory."""

    def __init__(self, runtime: Runtime, staging: Staging) -> None:
        self._runtime = runtime
        self._staging = staging
        self.signature: Signature = runtime.signature
        self.version = runtime.version
        self.stages = getattr(runtime, "stages", None)

    @property
    def threads_seen(self) -> int | None:
        """None: the threads of the process are those of all its models."""
        return None

    def infer(self, batch: Batch) -> Batch:
        """Stage the inputs and execute. Outputs that are inputs are copied: those are overwritten next."""
        place = self._staging.place
        staged = {name: place(name, array) for name, array in batch.items()}
        outputs = self._runtime.infer(staged)
        return {name: _apart(array, staged) for name, array in outputs.items()}


def _apart(array: NDArray[Any], staged: Batch) -> NDArray[Any]:
    values = np.asarray(array)
    return values.copy() if any(np.may_share_memory(values, one) for one in staged.values()) else array
