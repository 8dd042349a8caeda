"""TorchScript: a ``.pt`` archive, executed by torch's own interpreter.

An archive does not say the shapes of its inputs. They come from the model's settings, or from a document
``partita.json`` in the archive, as ``torch.jit.save(…, _extra_files={"partita.json": …})`` puts it there.
"""

import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from partita.core.errors import InvalidInput, LoadFailed
from partita.core.tensors import Signature, TensorSpec
from partita.worker.declared import read_specs
from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.torch_devices import Place
from partita.worker.runtimes.torch_files import check_file, is_script, short
from partita.worker.runtimes.torch_network import COMMON_OPTIONS, TorchNetwork, set_up_threads

DOCUMENT = "partita.json"
"""Name of the document within an archive that describes the inputs."""


def load(request: LoadRequest) -> TorchNetwork:
    """Load an archive; raises `InvalidInput` for an option or the inputs, `LoadFailed` for the file."""
    request.check_options(*COMMON_OPTIONS, "freeze", "optimize_for_inference")
    set_up_threads(request)
    module, inputs = read_script(request)
    writes = writes_inputs(module)
    signature = Signature(inputs=inputs, outputs=(), batched=request.option("batched", True))
    module = _optimized(Place(request).take(module), request)
    return TorchNetwork(_caller(module), signature, request, writes_inputs=writes)


def read_script(request: LoadRequest) -> tuple[torch.jit.ScriptModule, tuple[TensorSpec, ...]]:
    """Return the archive's module, in evaluation mode, and its inputs in the order of its arguments."""
    path = request.file
    check_file(path)
    if not is_script(path):
        raise LoadFailed(f"{path.name} is no TorchScript archive; for weights, set the option factory")
    extra: dict[str, Any] = {DOCUMENT: ""}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module = torch.jit.load(path, map_location="cpu", _extra_files=extra)
    except MemoryError:
        raise
    except Exception as error:
        raise LoadFailed(f"torch cannot load {path.name}: {short(error)}") from error
    module.eval()
    return module, _inputs(module, request, extra[DOCUMENT])


def writes_inputs(module: torch.jit.ScriptModule) -> bool:
    """Whether the program may write to its inputs, which lie in memory that a worker cannot write to."""
    try:
        graph = module.inlined_graph
        aliases = graph.alias_db()
        return any(aliases.has_writers(value) for value in list(graph.inputs())[1:])
    except Exception:  # another version of torch: then they are copied, which is always right
        return True


def _caller(module: torch.jit.ScriptModule) -> Any:
    def call(tensors: Sequence[torch.Tensor]) -> Any:
        return module(*tensors)

    return call


def _optimized(module: torch.jit.ScriptModule, request: LoadRequest) -> torch.jit.ScriptModule:
    if request.option("channels_last", False):
        module = module.to(memory_format=torch.channels_last)
    more = request.option("optimize_for_inference", False)
    if not (request.option("freeze", True) or more):
        return module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.optimize_for_inference(module) if more else torch.jit.freeze(module)
    except RuntimeError:  # as for a module whose methods change it: it runs as it is
        return module


def _inputs(
    module: torch.jit.ScriptModule, request: LoadRequest, document: bytes | str
) -> tuple[TensorSpec, ...]:
    arguments = [a.name for a in module.forward.schema.arguments[1:]]
    given = request.inputs or _documented(document, request)
    if given is None:
        shapes = ", ".join(f'{name} = {{ shape = [-1, …], datatype = "FP32" }}' for name in arguments)
        raise InvalidInput(
            f"{request.file.name} does not say the shapes of its inputs; "
            f"set [model.{request.model}] inputs = {{ {shapes} }}"
        )
    return in_order(given, arguments, required=_required(module), named=request.file.name)


def _required(module: torch.jit.ScriptModule) -> int:
    return sum(not a.has_default_value() for a in module.forward.schema.arguments[1:])


def in_order(
    given: Sequence[TensorSpec], arguments: Sequence[str], *, required: int, named: str
) -> tuple[TensorSpec, ...]:
    """Return the inputs in the order of a function's arguments; raises `InvalidInput` for other names.

    A program that was traced with a tuple, or whose names were lost, has arguments such as ``x.1``; those,
    and one input of one argument, are taken as they are given.
    """
    known = {re.sub(r"\.\d+$", "", name): name for name in arguments}
    if all(spec.name in known for spec in given):
        order = list(known)
        given = sorted(given, key=lambda spec: order.index(spec.name))
        if [spec.name for spec in given] == order[: len(given)] and len(given) >= required:
            return tuple(given)
    raise InvalidInput(
        f"{named}: the inputs given are {', '.join(spec.name for spec in given)}; "
        f"the network takes {', '.join(known)}"
    )


def _documented(document: bytes | str, request: LoadRequest) -> tuple[TensorSpec, ...] | None:
    if not document:
        return None
    where = f"{request.file.name}, {DOCUMENT}"
    try:
        read = json.loads(document)
    except ValueError as error:
        raise InvalidInput(f"{where}: not JSON: {error}") from error
    inputs = read.get("inputs") if isinstance(read, dict) else None
    return read_specs(inputs, where=f"{where}: inputs", batched=request.option("batched", True))


__all__ = ["DOCUMENT", "in_order", "load", "read_script", "writes_inputs"]
