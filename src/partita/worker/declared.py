"""Inputs and outputs that a user's class declares.

``inputs = {"x": {"shape": [-1, 64], "datatype": "FP32"}}``, and ``outputs`` likewise.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from partita.core.errors import InvalidInput
from partita.core.tensors import DYNAMIC, DataType, TensorSpec


def declared_specs(owner: Any, attribute: str, *, batched: bool) -> tuple[TensorSpec, ...] | None:
    """Return the specs that the attribute declares, None if there is no such attribute.

    The declared shape of a batched model has the batch axis, −1, in front. Raises `InvalidInput`.
    """
    declared = getattr(owner, attribute, None)
    if declared is None:
        return None
    return read_specs(declared, where=f"{type(owner).__name__}.{attribute}", batched=batched)


def read_specs(declared: object, *, where: str, batched: bool) -> tuple[TensorSpec, ...]:
    """Return the specs that a mapping spells; `where` begins the message of the `InvalidInput` raised."""
    if not isinstance(declared, Mapping) or not declared:
        raise InvalidInput(f"{where} must map names to a shape and a datatype, not {declared!r}")
    return tuple(_spec(f"{where}[{name!r}]", str(name), one, batched) for name, one in declared.items())


def _spec(where: str, name: str, declared: object, batched: bool) -> TensorSpec:
    if not isinstance(declared, Mapping) or set(declared) != {"shape", "datatype"}:
        raise InvalidInput(f'{where} must be {{"shape": [...], "datatype": "FP32"}}, not {declared!r}')
    shape = _shape(where, declared["shape"])
    if batched:
        if not shape or shape[0] != DYNAMIC:
            raise InvalidInput(f"{where}: the first axis is the batch and must be -1, not {list(shape)}")
        shape = shape[1:]
    try:
        return TensorSpec(name, DataType(declared["datatype"]), shape)
    except ValueError as error:
        known = ", ".join(DataType)
        raise InvalidInput(f"{where}: {declared['datatype']!r} is none of {known}") from error


def _shape(where: str, shape: object) -> tuple[int, ...]:
    if isinstance(shape, Sequence) and all(isinstance(n, int) and n >= DYNAMIC for n in shape):
        return tuple(shape)
    raise InvalidInput(f"{where}: a shape is a list of sizes, -1 for one that differs; not {shape!r}")
