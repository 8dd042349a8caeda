"""PyTorch as it is: an exported program (``.pt2``), or weights with a function that builds their network."""

from collections.abc import Sequence
from typing import Any

import torch

from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.torch_built import OPTIONS, build
from partita.worker.runtimes.torch_devices import Place
from partita.worker.runtimes.torch_files import UNPICKLE, load_program
from partita.worker.runtimes.torch_network import COMMON_OPTIONS, TorchNetwork, set_up_threads
from partita.worker.runtimes.torch_program import (
    in_program_order,
    may_write_inputs,
    signature_of,
    takes_plain_arguments,
)


def load(request: LoadRequest) -> TorchNetwork:
    """Load a program or a network; raises `InvalidInput` for an option, `LoadFailed` for the files."""
    request.check_options(*COMMON_OPTIONS, *OPTIONS)
    set_up_threads(request)
    return _program(request) if request.file.suffix == ".pt2" else _built(request)


def _program(request: LoadRequest) -> TorchNetwork:
    program = load_program(request.file, may_unpickle=request.option(UNPICKLE, False))
    module = _as_asked(Place(request).take_program(program).module(), request)
    plain = takes_plain_arguments(program)

    def call(tensors: Sequence[torch.Tensor]) -> Any:
        if plain:
            return module(*tensors)
        args, kwargs = in_program_order(program, tensors)
        return module(*args, **kwargs)

    return TorchNetwork(
        call, signature_of(program, request), request, writes_inputs=may_write_inputs(program)
    )


def _built(request: LoadRequest) -> TorchNetwork:
    module, signature = build(request)
    module = _as_asked(Place(request).take(module), request)
    names = [spec.name for spec in signature.inputs]

    def call(tensors: Sequence[torch.Tensor]) -> Any:
        return module(**dict(zip(names, tensors, strict=True)))

    return TorchNetwork(call, signature, request, writes_inputs=True)


def _as_asked(module: torch.nn.Module, request: LoadRequest) -> torch.nn.Module:
    return module.to(memory_format=torch.channels_last) if request.option("channels_last", False) else module
