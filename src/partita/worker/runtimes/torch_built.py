"""A network that a user's function builds, ``factory = "FILE.py:function"``, with the weights of a file.

``torch-eager`` runs it as it is; ``torch-compile`` and the export to ONNX make an exported program of it
first.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from partita.core.errors import InvalidInput, LoadFailed
from partita.core.formats import FACTORY
from partita.core.tensors import DYNAMIC, Signature, TensorSpec
from partita.worker.declared import declared_specs
from partita.worker.runtimes import hugging_face
from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.torch_files import UNPICKLE, load_program, load_weights, short
from partita.worker.runtimes.torch_tensors import DATATYPES, check_datatypes
from partita.worker.user_code import call_function
from partita.worker.warmup import DEFAULT_AXIS

OPTIONS = (FACTORY, UNPICKLE)
_NESTED = ("state_dict", "model_state_dict")
_EXAMPLE_ROWS = 2


def factory_of(request: LoadRequest) -> str | None:
    """Return the absolute ``FILE.py:function``, a relative one from the weights' folder; None without."""
    given = str(request.option(FACTORY, ""))
    return str(request.file.parent / given) if given else None


def build(request: LoadRequest) -> tuple[torch.nn.Module, Signature]:
    """Return the network with its weights, in evaluation mode, and its inputs.

    Raises `InvalidInput` for the options, `LoadFailed` for the file or the function, `MissingExtra` where a
    Hugging Face folder needs one.
    """
    may_unpickle = request.option(UNPICKLE, False)
    factory = factory_of(request)
    if factory is None and hugging_face.is_hugging_face(request.file):
        module = hugging_face.build(request.file, may_unpickle=may_unpickle)
        known = request.inputs or hugging_face.inputs_of(module)
        return module, _signature(module, replace(request, inputs=known))
    if factory is None:
        module = _unpickled(request, may_unpickle)
    else:
        module = call_function(factory)
        if not isinstance(module, torch.nn.Module):
            raise InvalidInput(f"{factory} returned {type(module).__name__}, not a torch.nn.Module")
        _fill(module, load_weights(request.file, may_unpickle=False), request.file)
    module.eval()
    return module, _signature(module, request)


def program_of(request: LoadRequest) -> torch.export.ExportedProgram:
    """Return the exported program of a file, or of the network built for it, with a batch of any size.

    Raises as `build` does, and `LoadFailed` for a network that cannot be exported, such as one whose
    branches depend on its input's values.
    """
    if request.file.suffix == ".pt2":
        return load_program(request.file, may_unpickle=request.option(UNPICKLE, False))
    module, signature = build(request)
    examples = dict(zip((spec.name for spec in signature.inputs), example_inputs(signature), strict=True))
    try:
        return torch.export.export(module, (), examples, dynamic_shapes=_free_axes(signature))
    except MemoryError:
        raise
    except Exception as error:
        raise LoadFailed(
            f"torch.export cannot make one graph of {request.file.name}: {short(error)}"
        ) from error


def _free_axes(signature: Signature) -> dict[str, dict[int, Any]]:
    """Return the axes of any size, by input. Which of them are equal, as two inputs' tokens, torch finds."""
    batch = {0: torch.export.Dim("batch")} if signature.batched else {}
    skip = len(batch)
    return {
        spec.name: {
            **batch,
            **{k + skip: torch.export.Dim.AUTO for k, size in enumerate(spec.shape) if size == DYNAMIC},
        }
        for spec in signature.inputs
    }


def example_inputs(
    signature: Signature, *, rows: int = _EXAMPLE_ROWS, free: int = DEFAULT_AXIS
) -> tuple[torch.Tensor, ...]:
    """Return tensors of zeros, one for each input, with free axes of this size."""
    check_datatypes(signature.inputs)
    dtypes = {datatype: dtype for dtype, datatype in DATATYPES.items()}
    leading = (rows,) if signature.batched else ()
    return tuple(
        torch.zeros(
            (*leading, *(free if size == DYNAMIC else size for size in spec.shape)),
            dtype=dtypes[spec.datatype],
        )
        for spec in signature.inputs
    )


def _unpickled(request: LoadRequest, may_unpickle: bool) -> torch.nn.Module:
    name = request.file.name
    if not may_unpickle:
        raise InvalidInput(
            f'{name} needs the option {FACTORY} = "FILE.py:function", whose function returns the network of '
            f"the weights; a whole pickled network is loaded only with {UNPICKLE} = true"
        )
    module = load_weights(request.file, may_unpickle=True)
    if not isinstance(module, torch.nn.Module):
        raise LoadFailed(f"{name} holds {type(module).__name__}, no network; set the option {FACTORY}")
    return module


def _fill(module: torch.nn.Module, weights: Any, path: Path) -> None:
    """Give the module its weights: the very tensors of the file, which stay mapped from it."""
    if isinstance(weights, dict):
        weights = next((weights[key] for key in _NESTED if isinstance(weights.get(key), dict)), weights)
    if not isinstance(weights, dict):
        raise LoadFailed(f"{path.name} holds {type(weights).__name__}, no dict of weights")
    try:
        module.load_state_dict(weights, assign=True)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise LoadFailed(
            f"the weights of {path.name} are not those of the network: {short(error)}"
        ) from error


def _signature(module: torch.nn.Module, request: LoadRequest) -> Signature:
    batched = request.option("batched", True)
    inputs: tuple[TensorSpec, ...] | None = request.inputs or declared_specs(
        module, "inputs", batched=batched
    )
    if inputs is None:
        raise InvalidInput(
            f"{request.file.name}: nothing says the network's inputs; set [model.{request.model}] inputs, or "
            'give it an attribute inputs = {"x": {"shape": [-1, 64], "datatype": "FP32"}}'
        )
    return Signature(inputs=inputs, outputs=(), batched=batched)
