"""What the three runtimes of torch share: thread counts, options, and one execution."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import metadata
from typing import Any

import torch

from partita.core.errors import InferenceFailed, InvalidInput
from partita.core.tensors import Signature, TensorSpec
from partita.worker.runtimes.interface import Batch, LoadRequest
from partita.worker.runtimes.torch_devices import Place, out_of_memory
from partita.worker.runtimes.torch_tensors import check_datatypes, named_outputs, to_array, to_tensor

COMMON_OPTIONS = ("batched", "channels_last", "copy_inputs", "denormals_as_zero", "output_names", "precision")
PRECISIONS = ("f32", "bf16")

Call = Callable[[Sequence[torch.Tensor]], Any]
"""From the inputs, in the signature's order, to whatever the network returns."""


def set_up_threads(request: LoadRequest) -> None:
    """Have torch compute with the threads asked for, operators one after another.

    Rounding denormal numbers to zero is a property of a thread, which those started later inherit.
    """
    torch.set_flush_denormal(request.option("denormals_as_zero", False))
    torch.set_num_threads(request.threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)


def precision_of(request: LoadRequest) -> str:
    """Return what the options say to compute in; raises `InvalidInput`."""
    precision = request.option("precision", "f32")
    if precision not in PRECISIONS:
        raise InvalidInput(f"option precision = {precision!r} must be one of {', '.join(PRECISIONS)}")
    return str(precision)


class TorchNetwork:
    """A loaded network as the worker sees it, whichever way torch executes it."""

    def __init__(
        self, call: Call, signature: Signature, request: LoadRequest, *, writes_inputs: bool
    ) -> None:
        check_datatypes(signature.inputs)
        self.signature = signature
        self.version = metadata.version("torch")
        self._call = call
        self._inputs = signature.inputs
        self._names = output_names(request)
        self._copies = request.option("copy_inputs", writes_inputs)
        self._channels_last = request.option("channels_last", False)
        self._precision = precision_of(request)
        self._place = Place(request)

    @property
    def threads_seen(self) -> int | None:
        """The threads of one operator, as torch says."""
        return int(torch.get_num_threads())

    def infer(self, batch: Batch) -> Batch:
        """Execute once. Raises `InferenceFailed` for inputs or outputs of other names, else as torch does."""
        if len(batch) != len(self._inputs):
            raise InferenceFailed(f"inputs {list(batch)}; there are {[spec.name for spec in self._inputs]}")
        with out_of_memory(), torch.inference_mode(), self._autocast():
            tensors = [self._tensor(batch, spec) for spec in self._inputs]
            outputs = dict(named_outputs(self._call(tensors)))
            if self._names:
                outputs = _renamed(outputs, self._names)
            widened = {name: self._widened(tensor) for name, tensor in outputs.items()}
            return {name: to_array(tensor) for name, tensor in self._place.back(widened).items()}

    def _tensor(self, batch: Batch, spec: TensorSpec) -> torch.Tensor:
        try:
            tensor = to_tensor(batch[spec.name], spec.datatype)
        except KeyError:
            raise InferenceFailed(f"input {spec.name!r} is missing; there are {list(batch)}") from None
        if self._place.is_gpu:
            tensor = self._place.there(tensor)
        if self._channels_last and tensor.ndim == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor.clone() if self._copies else tensor

    def _widened(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return float32 for what was only computed in less: answers keep their datatype."""
        return tensor.float() if self._precision != "f32" and tensor.dtype is torch.bfloat16 else tensor

    def _autocast(self) -> Any:
        if self._precision == "f32":
            return nullcontext()
        return torch.autocast(self._place.device.type, torch.bfloat16)


def output_names(request: LoadRequest) -> tuple[str, ...]:
    """Return the names that the option ``output_names``, a list with commas, gives the outputs."""
    listed = str(request.option("output_names", ""))
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def _renamed(outputs: dict[str, torch.Tensor], names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    if len(outputs) != len(names):
        raise InferenceFailed(f"the network returned {list(outputs)}; output_names has {len(names)} names")
    return dict(zip(names, outputs.values(), strict=True))
