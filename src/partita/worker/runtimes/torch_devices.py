"""Where torch computes: on the cores, or on a GPU with tensors on their way there and back."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from partita.core.errors import LoadFailed
from partita.worker.runtimes.interface import LoadRequest


class Place:
    """The device that a network is on."""

    def __init__(self, request: LoadRequest) -> None:
        self.device = torch.device("cpu" if request.gpu is None else request.gpu.torch_device)
        self.is_gpu = request.gpu is not None
        self._is_cuda = self.device.type == "cuda"
        if self._is_cuda and not torch.cuda.is_available():
            raise LoadFailed("the torch that is installed cannot use CUDA; install one that can")

    def take(self, module: Any) -> Any:
        """Return a module that is there. Raises `MemoryError`."""
        if not self.is_gpu:
            return module
        with out_of_memory():
            return module.to(self.device)

    def take_program(self, program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
        """Return an exported program that computes there, its constants too. Raises `MemoryError`."""
        if not self.is_gpu:
            return program
        from torch.export.passes import move_to_device_pass

        with out_of_memory():
            return move_to_device_pass(program, str(self.device))

    def there(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an input on the device; from page-locked memory the copy does not wait."""
        return tensor.to(self.device, non_blocking=True) if self.is_gpu else tensor

    def back(self, outputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return outputs in host memory: page-locked, and waited for together."""
        if not self._is_cuda:
            return outputs
        here = {name: self._back(tensor) for name, tensor in outputs.items()}
        torch.cuda.current_stream(self.device).synchronize()
        return here

    def _back(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)


@contextmanager
def out_of_memory() -> Iterator[None]:
    """Turn torch's own error for a full GPU into Python's for want of memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error).split(". ")[0]) from error
