"""Which part of an ONNX operator's inputs it needs, where only some rows of its output are read.

Only operators are here that do not mix the rows of an axis, or whose inputs say which of them they need.
Shapes hold a number, the name of an unknown number, or None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

Shape = tuple[int | str | None, ...]
Shapes = Mapping[str, Shape]
END = (1 << 63) - 1
"""As a slice's stop: whatever the size of the axis is."""

_UNARY = frozenset(
    (
        *("Abs", "Cast", "Ceil", "Clip", "Cos", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu"),
        *("HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Neg", "Not"),
        *("Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus"),
        *("Softsign", "Sqrt", "Tanh"),
    )
)
_BROADCAST = frozenset(
    (
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("Max", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where"),
    )
)


@dataclass(frozen=True, slots=True)
class Pick:
    """The rows from `start` to `stop` of one axis, `count` of them; negative numbers count from the end."""

    axis: int
    start: int
    stop: int
    count: int


Wants = list[Pick | None]
"""What is needed of each input; None = all of it."""


def picked_index(axis: int, index: int) -> Pick:
    """Return the pick of one row."""
    return Pick(axis, index, END if index == -1 else index + 1, 1)


def picked_range(axis: int, start: int, stop: int, size: int | str | None) -> Pick | None:
    """Return the pick of a range; None where how many rows that are depends on an axis of unknown size."""
    most = size if isinstance(size, int) else 1
    if 0 <= start < stop <= most:
        return Pick(axis, start, stop, stop - start)
    return Pick(axis, start, END, -start) if -most <= start < 0 and stop >= END else None


def wants(node: Any, pick: Pick, shapes: Shapes) -> Wants | None:
    """Return what an operator needs to make these rows of its only output; None where it needs everything."""
    op, known = node.op_type, [shapes.get(name) for name in node.input]
    made = shapes.get(node.output[0])
    if made is None or not known or known[0] is None or not pick.axis < len(made):
        return None
    rest: Wants = [None] * (len(known) - 1)
    if op in _UNARY:
        return [pick, *rest]
    if op in _BROADCAST:
        return _broadcast(pick, made, known)
    if op in ("Softmax", "LogSoftmax", "LayerNormalization"):
        axis = attribute(node, "axis", -1) % len(made)
        mixes = pick.axis >= axis if op == "LayerNormalization" else pick.axis == axis
        return None if mixes else [pick, *rest]
    if op == "Transpose":
        order = attribute(node, "perm", list(range(len(made)))[::-1])
        return [replace(pick, axis=order[pick.axis])]
    if op == "MatMul":
        return _product(pick, made, known)
    return [pick, *rest] if op == "Reshape" and _keeps(pick.axis, known[0], made) else None


def attribute(node: Any, name: str, default: Any) -> Any:
    """Return a whole number, or a list of them, that an operator is set to."""
    for one in node.attribute:
        if one.name == name:
            return list(one.ints) if one.ints else one.i
    return default


def _broadcast(pick: Pick, made: Shape, known: Sequence[Shape | None]) -> Wants | None:
    """Each input needs the same rows, but for those that have one row for all."""
    found: Wants = []
    for shape in known:
        if shape is None:
            return None
        axis = pick.axis - (len(made) - len(shape))
        if axis < 0 or shape[axis] == 1:
            found.append(None)
        elif shape[axis] is not None and shape[axis] == made[pick.axis]:
            found.append(replace(pick, axis=axis))
        else:
            return None
    return found if any(found) else None


def _product(pick: Pick, made: Shape, known: Sequence[Shape | None]) -> Wants | None:
    """Rows of a product come from those of the first factor; columns, and stacks of both, are left alone."""
    first, second = known
    if first is None or second is None or min(len(first), len(second)) < 2:
        return None
    is_row = pick.axis == len(made) - 2
    if is_row or (pick.axis < len(made) - 2 and len(second) == 2):
        return [replace(pick, axis=pick.axis - (len(made) - len(first))), None]
    return None


def _keeps(axis: int, given: Shape, made: Shape) -> bool:
    """Whether reshaping leaves this axis, and all before it, as they are."""
    if axis >= len(given) or given[axis] is None or given[axis] != made[axis]:
        return False
    before = list(zip(given[:axis], made[:axis], strict=True))
    if all(a is not None and a == b for a, b in before):
        return True
    after, made_after = _size(given[axis:]), _size(made[axis:])
    return axis == 1 and after is not None and after == made_after


def _size(shape: Shape) -> int | None:
    sizes = [size for size in shape if isinstance(size, int)]
    return prod(sizes) if len(sizes) == len(shape) else None
