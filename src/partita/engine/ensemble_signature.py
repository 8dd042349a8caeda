"""What an ensemble takes and gives, from what its members take and give: checked once all are loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.core.errors import InvalidInput
from partita.core.tensors import DYNAMIC, DataType, Signature, TensorSpec
from partita.machines.accumulator import MemberOutput, class_order
from partita.machines.rules import FLOATING_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRole:
    """What a member is to its ensemble, as its file says."""

    name: str
    weight: float = 1.0
    output: str | None = None
    """Which output is combined; None = its only one."""
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Combined:
    """How the members fit together."""

    signature: Signature
    """Inputs of the ensemble, and its output by a rule of the head: both are the first member's."""
    outputs: tuple[int, ...]
    """Of each member, which of its outputs is combined."""
    members: tuple[MemberOutput, ...]
    specs: tuple[TensorSpec, ...]
    """Of each member, that output."""


def combine_signatures(roles: Sequence[MemberRole], signatures: Sequence[Signature], rule: str) -> Combined:
    """Return how loaded members are combined by a rule of the head, or ``gathered`` for one in a worker.

    Raises `InvalidInput` naming the member that does not fit, and why.
    """
    first = signatures[0]
    for role, signature in zip(roles, signatures, strict=True):
        _check_inputs(role.name, signature, roles[0].name, first)
    chosen = tuple(_output(role, signature) for role, signature in zip(roles, signatures, strict=True))
    specs = tuple(signature.outputs[index] for signature, index in zip(signatures, chosen, strict=True))
    for role, spec in zip(roles, specs, strict=True):
        _check_output(role, spec, rule)
        if rule != "gathered":
            _check_equal(role.name, spec, roles[0].name, specs[0])
    members = tuple(
        MemberOutput(name=role.name, order=class_order(roles[0].classes, role.classes)) for role in roles
    )
    signature = Signature(inputs=first.inputs, outputs=(specs[0],))
    return Combined(signature, chosen, members, specs)


def _check_inputs(name: str, signature: Signature, other: str, first: Signature) -> None:
    if not signature.batched:
        raise InvalidInput(f"member {name} has no batch axis; an ensemble's members need one")
    ours = [(spec.datatype, spec.shape) for spec in signature.inputs]
    theirs = [(spec.datatype, spec.shape) for spec in first.inputs]
    if ours != theirs:
        raise InvalidInput(
            f"member {name} takes {_told(signature.inputs)} and member {other} takes {_told(first.inputs)}; "
            "members read the same items, so that datatypes, shapes and their order must be the same"
        )


def _told(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.datatype} {[DYNAMIC, *spec.shape]}" for spec in specs)


def _output(role: MemberRole, signature: Signature) -> int:
    names = [spec.name for spec in signature.outputs]
    if role.output is None:
        if len(names) != 1:
            raise InvalidInput(
                f"member {role.name} has the outputs {', '.join(names)}; name the one to combine: output = "
                f'"{names[0]}"'
            )
        return 0
    if role.output not in names:
        raise InvalidInput(f"member {role.name} has no output {role.output!r}; it has {', '.join(names)}")
    return names.index(role.output)


def _check_output(role: MemberRole, spec: TensorSpec, rule: str) -> None:
    if spec.datatype in (DataType.BYTES, DataType.BF16):
        raise InvalidInput(f"member {role.name}: an output of datatype {spec.datatype} cannot be combined")
    if rule in FLOATING_ONLY and not np.issubdtype(spec.datatype.numpy, np.floating):
        raise InvalidInput(
            f"member {role.name}: its output {spec.name} is {spec.datatype}, and the rule {rule!r} needs "
            "floating-point numbers"
        )
    if rule == "vote" and not spec.shape:
        raise InvalidInput(f"member {role.name}: its output {spec.name} has no axis of classes to vote with")
    classes = spec.shape[-1] if spec.shape else 1
    if role.classes and classes not in (len(role.classes), DYNAMIC):
        raise InvalidInput(
            f"member {role.name} has {len(role.classes)} classes, but its output {spec.name} has {classes}"
        )


def _check_equal(name: str, spec: TensorSpec, other: str, first: TensorSpec) -> None:
    fits = spec.datatype == first.datatype and len(spec.shape) == len(first.shape)
    sizes = zip(spec.shape, first.shape, strict=False)
    if not fits or any(ours != theirs and DYNAMIC not in (ours, theirs) for ours, theirs in sizes):
        raise InvalidInput(
            f"member {name} answers {_told([spec])} and member {other} answers {_told([first])}; outputs "
            "that are combined need the same datatype and shape"
        )


def with_outputs(signature: Signature, outputs: tuple[TensorSpec, ...]) -> Signature:
    """Return the signature of an ensemble whose rule runs in a worker: its outputs are that worker's."""
    return replace(signature, outputs=outputs)
