"""Items to measure with: the user's samples, else made up from the model's signature."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InvalidInput
from partita.core.tensors import DYNAMIC, DataType, Signature, TensorSpec

DEFAULT_AXIS = 64
"""Size of an axis that differs between requests, where the user gave none."""

DISTINCT_ROWS = 32
"""Different items; larger batches repeat them."""

_LARGEST_INTEGER = 99
"""Bound of made-up integers: small enough to be a valid token or class of most models."""
_TEXT = b"partita"
_LENGTH = struct.Struct("<I")

Items = Mapping[str, NDArray[Any]]
"""Arrays by input name, each (rows, *item shape); BYTES as objects."""


Maker = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float32]]
"""Makes floating-point numbers of a shape."""


def standard_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return numbers as inputs usually are: around nought, of size one."""
    return rng.standard_normal(shape, dtype=np.float32)


def of_different_sizes(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return numbers whose mean and size differ from item to item, as brightness and contrast do."""
    each = (shape[0], *(1,) * (len(shape) - 1))
    size = np.exp2(rng.uniform(-2, 3, each)).astype(np.float32)
    mean = rng.normal(0, 2, each).astype(np.float32)
    return rng.standard_normal(shape, dtype=np.float32) * size + mean


def of_bytes(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return whole numbers from 0 to 255, for models that take unscaled pixels."""
    return rng.integers(0, 256, shape).astype(np.float32)


MAKERS: tuple[Maker, ...] = (standard_normal, of_different_sizes, of_bytes)
"""Tried in this order where a model has to answer different items differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Distinct items, the sizes that their differing axes have, and what the user should hear."""

    items: Items
    dimensions: Mapping[str, int]
    notes: tuple[str, ...] = ()


def calibration(
    signature: Signature,
    *,
    samples: Items | None = None,
    dimensions: Mapping[str, int] | None = None,
    count: int = DISTINCT_ROWS,
    make: Maker | None = None,
) -> Calibration:
    """Return items for a signature, the samples or `count` made up, floating-point numbers by `make`.

    Raises `InvalidInput` for samples or sizes that do not fit it.
    """
    sizes = dict(dimensions or {})
    if samples is not None:
        return Calibration(items=_checked(samples, signature), dimensions=sizes)
    notes: list[str] = []
    used: dict[str, int] = {}
    rng = np.random.default_rng(0)
    items = {
        spec.name: _made_up(rng, spec, (count, *_shape(spec, sizes, used, notes)), make or standard_normal)
        for spec in signature.inputs
    }
    if unknown := sorted(set(sizes) - set(used)):
        known = ", ".join(sorted(_axis_names(signature))) or "none"
        raise InvalidInput(f"no axis is named {unknown[0]}; the model's axes of any size are: {known}")
    return Calibration(items=items, dimensions=used, notes=tuple(notes))


def load_samples(path: Path, signature: Signature) -> Items:
    """Read samples: ``.npz`` with one array for each input, or ``.npy`` for a model with one input.

    Raises `InvalidInput` if the file cannot be read, needs pickle, or does not fit.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: cannot be read as .npy or .npz samples: {error}") from error
    if isinstance(loaded, np.ndarray):
        if len(signature.inputs) != 1:
            names = ", ".join(spec.name for spec in signature.inputs)
            raise InvalidInput(f"{path}: the model has several inputs; give an .npz with the arrays {names}")
        return _checked({signature.inputs[0].name: loaded}, signature)
    with loaded:
        try:
            return _checked({name: loaded[name] for name in loaded.files}, signature)
        except ValueError as error:
            raise InvalidInput(f"{path}: an array in it cannot be read: {error}") from error


def rows(items: Items, count: int) -> Items:
    """Return `count` items, repeating those that there are."""
    return {name: array[np.arange(count) % len(array)] for name, array in items.items()}


def packed(array: NDArray[Any]) -> bytes:
    """Return an array's bytes as X holds them; texts as length (4 bytes, little endian) and bytes."""
    if array.dtype != object:
        return array.tobytes()
    return b"".join(_LENGTH.pack(len(text)) + text for text in array.ravel().tolist())


def unpacked(data: bytes | memoryview, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return texts as an array of `bytes` from how X and P hold them: the reverse of `packed`."""
    texts, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        texts.append(bytes(data[at : at + length]))
        at += length
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array.reshape(shape)


def _axis_names(signature: Signature) -> set[str]:
    return {
        _axis_name(spec, axis)
        for spec in signature.inputs
        for axis, size in enumerate(spec.shape)
        if size == DYNAMIC
    }


def _axis_name(spec: TensorSpec, axis: int) -> str:
    symbol = spec.symbols[axis] if spec.symbols else ""
    return symbol or f"{spec.name}.{axis}"


def _shape(
    spec: TensorSpec, sizes: Mapping[str, int], used: dict[str, int], notes: list[str]
) -> tuple[int, ...]:
    shape = list(spec.shape)
    for axis, size in enumerate(spec.shape):
        if size != DYNAMIC:
            continue
        name = _axis_name(spec, axis)
        if name not in sizes and name not in used:
            notes.append(
                f"axis {name} of input {spec.name} is measured at {DEFAULT_AXIS}; give its usual size"
            )
        shape[axis] = used[name] = sizes.get(name, DEFAULT_AXIS)
        if shape[axis] < 1:
            raise InvalidInput(f"axis {name}: size {shape[axis]}; expected a whole number from 1 up")
    return tuple(shape)


def _made_up(rng: np.random.Generator, spec: TensorSpec, full: tuple[int, ...], make: Maker) -> NDArray[Any]:
    match spec.datatype:
        case DataType.BYTES:
            return np.full(full, _TEXT, dtype=object)
        case DataType.BOOL:
            return rng.integers(0, 2, full).astype(bool)
        case DataType.BF16:  # the upper half of a float32's bits
            bits = make(rng, full).view(np.uint32)
            return (bits >> 16).astype(np.uint16)
        case DataType.FP16 | DataType.FP32 | DataType.FP64:
            return make(rng, full).astype(spec.datatype.numpy)
    return rng.integers(0, _LARGEST_INTEGER + 1, full).astype(spec.datatype.numpy)


def _checked(samples: Items, signature: Signature) -> Items:
    names = {spec.name for spec in signature.inputs}
    if set(samples) != names:
        raise InvalidInput(f"samples are for {sorted(samples)}, the model's inputs are {sorted(names)}")
    if len({len(array) if array.ndim else 0 for array in samples.values()}) != 1:
        raise InvalidInput("samples: all inputs need equally many items")
    return {spec.name: _fitted(samples[spec.name], spec) for spec in signature.inputs}


def _fitted(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    wanted = spec.shape
    given = array.shape[1:]
    fits = len(given) == len(wanted) and all(w in (DYNAMIC, g) for w, g in zip(wanted, given, strict=False))
    if not array.size or not fits:
        raise InvalidInput(
            f"samples of input {spec.name} have shape {list(array.shape)}; "
            f"expected [items, {', '.join('any' if w == DYNAMIC else str(w) for w in wanted)}], 1 or more"
        )
    if spec.datatype is DataType.BYTES:
        texts = [text.encode() if isinstance(text, str) else bytes(text) for text in array.ravel().tolist()]
        fitted = np.empty(len(texts), dtype=object)
        fitted[:] = texts
        return fitted.reshape(array.shape)
    if spec.datatype is not DataType.BF16 and not np.can_cast(array.dtype, spec.datatype.numpy, "same_kind"):
        raise InvalidInput(f"samples of input {spec.name} are {array.dtype}; expected {spec.datatype}")
    return np.ascontiguousarray(array, dtype=spec.datatype.numpy)
