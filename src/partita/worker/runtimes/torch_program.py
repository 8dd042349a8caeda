"""Exported programs (``torch.export``): what they take and give, as a signature, and how they are called."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from partita.core.errors import LoadFailed
from partita.core.tensors import DYNAMIC, Signature, TensorSpec
from partita.worker.runtimes.axes import batch_axis
from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.torch_network import output_names
from partita.worker.runtimes.torch_tensors import DATATYPES, named_outputs

Program: TypeAlias = torch.export.ExportedProgram


def signature_of(program: Program, request: LoadRequest) -> Signature:
    """Return a program's inputs and outputs by their shapes; raises `LoadFailed` for what is no tensor."""
    inputs = _inputs(program)
    outputs = dict(named_outputs(_outputs(program)))
    names = output_names(request)
    if names and len(names) == len(outputs):
        outputs = dict(zip(names, outputs.values(), strict=True))
    batched, fixed = batch_axis([_axes(t) for t in inputs.values()], [_axes(t) for t in outputs.values()])
    if "batched" in request.options:
        batched = request.option("batched", True)
        fixed = fixed if batched else None
    skip = 1 if batched else 0
    return Signature(
        inputs=tuple(_spec(name, tensor, skip) for name, tensor in inputs.items()),
        outputs=tuple(_spec(name, tensor, skip) for name, tensor in outputs.items()),
        batched=batched,
        fixed_batch=fixed,
    )


def in_program_order(
    program: Program, tensors: Sequence[torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments, positional and by name, that a program is called with for these inputs."""
    spec = program.call_spec.in_spec
    assert spec is not None
    args, kwargs = torch.utils._pytree.tree_unflatten(list(tensors), spec)
    return tuple(args), dict(kwargs)


def takes_plain_arguments(program: Program) -> bool:
    """Whether every argument is one tensor, given by its place."""
    args, kwargs = in_program_order(program, range(len(program.graph_signature.user_inputs)))
    return not kwargs and all(isinstance(argument, int) for argument in args)


def may_write_inputs(program: Program) -> bool:
    """Whether an operator of the program works in place, so that it could write to an input."""
    calls = (node.target for node in program.graph.nodes if node.op == "call_function")
    schemas = (getattr(target, "_schema", None) for target in calls)
    return any(schema is not None and schema.is_mutable for schema in schemas)


def _inputs(program: Program) -> dict[str, torch.Tensor]:
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    found = {}
    for name in program.graph_signature.user_inputs:
        value = nodes[name].meta.get("val") if isinstance(name, str) else name
        if not isinstance(value, torch.Tensor):
            raise LoadFailed(f"input {name!r} of the program is no tensor; give it a fixed value at export")
        found[str(name)] = value
    return found


def _outputs(program: Program) -> Any:
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    by_name = {a.name: a.meta["val"] for a in output.args[0] if isinstance(a, torch.fx.Node)}
    values = [
        by_name.get(name) if isinstance(name, str) else None for name in program.graph_signature.user_outputs
    ]
    spec = program.call_spec.out_spec
    assert spec is not None
    return torch.utils._pytree.tree_unflatten(values, spec)


def _axes(tensor: torch.Tensor) -> list[int | str]:
    return [size if isinstance(size, int) else str(size) for size in tensor.shape]


def _spec(name: str, tensor: torch.Tensor, skip: int) -> TensorSpec:
    if tensor.dtype not in DATATYPES:
        raise LoadFailed(f"tensor {name!r} is {tensor.dtype}, which requests cannot carry")
    axes = _axes(tensor)[skip:]
    shape = tuple(axis if isinstance(axis, int) else DYNAMIC for axis in axes)
    symbols = tuple("" if isinstance(axis, int) else axis for axis in axes)
    return TensorSpec(name, DATATYPES[tensor.dtype], shape, symbols if any(symbols) else ())
