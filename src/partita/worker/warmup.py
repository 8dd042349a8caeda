"""The first executions: they prime the runtime's memory and show what the outputs are."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from partita.core.errors import InvalidInput, LoadFailed
from partita.core.tensors import DYNAMIC, DataType, Signature, TensorSpec
from partita.worker.pipeline import Run
from partita.worker.runtimes.interface import Batch

DEFAULT_AXIS = 64
_AGAIN_BELOW_S = 0.5
_ENOUGH_S = 0.25
"""How long the largest size may take that is tried of what is warm at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Outputs seen at warm-up, by rows, fewest first; and what the first size that failed raised."""

    outputs: Mapping[int, Batch]
    held: Mapping[int, int] = field(default_factory=dict)
    """What was held after each size, bytes."""
    error: BaseException | None = None


def warm_up(
    run: Run,
    signature: Signature,
    *,
    max_batch: int,
    dimensions: Mapping[str, int],
    examples: Callable[[int], Batch] | None = None,
    memory_at: Collection[int] = (),
    held_bytes: Callable[[], int] = int,
    is_warm_at_once: bool = False,
) -> Observed:
    """Execute a few times with 1 item, with the sizes of `memory_at` and with `max_batch`, until one raises.

    `dimensions` gives the sizes of symbolic axes, 64 where it does not. `MemoryError` is passed on.
    `held_bytes` is asked after each size. What `is_warm_at_once` is executed once, and without `memory_at`
    with as many items as take a moment: neither another execution nor another size compiles anything.
    """
    outputs: dict[int, Batch] = {}
    held: dict[int, int] = {}
    at_once, began_s = is_warm_at_once and not memory_at, time.perf_counter()
    for size in sorted({1, max_batch, *memory_at}) if signature.batched else [1]:
        rows = size
        if at_once and outputs:
            rows = min(size, max(2, int(_ENOUGH_S / (time.perf_counter() - began_s))))
        try:
            if examples is not None:
                outputs[rows] = _executed(run, examples(rows), rows, again=not at_once)
            else:
                outputs[rows] = _run_generated(run, signature, rows, dimensions, again=not at_once)
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            return Observed(outputs=outputs, held=held, error=error)
        held[rows] = held_bytes()
    return Observed(outputs=outputs, held=held)


def generated_inputs(
    signature: Signature, rows: int, dimensions: Mapping[str, int], *, whole_number: int = 1
) -> Batch:
    """Return inputs that most models accept: floats in [0, 1), one whole number, empty texts, true."""
    rng = np.random.default_rng(0)
    batch: Batch = {}
    for spec in signature.inputs:
        shape = _shape(spec, dimensions)
        shape = (rows, *shape) if signature.batched else shape
        dtype = spec.datatype.numpy
        if spec.datatype is DataType.BYTES:
            batch[spec.name] = np.full(shape, b"", dtype=object)
        elif dtype.kind == "f":
            batch[spec.name] = rng.random(shape, dtype=np.float32).astype(dtype, copy=False)
        else:
            batch[spec.name] = np.full(shape, whole_number, dtype=dtype)
        batch[spec.name].flags.writeable = False
    return batch


def observed_outputs(observed: Observed, signature: Signature, *, named: str) -> tuple[TensorSpec, ...]:
    """Return the output specs that warm-up showed: an axis that differed between sizes is dynamic.

    Raises `LoadFailed` if nothing was seen, or if outputs do not have the batch axis in front.
    """
    if not observed.outputs:
        raise LoadFailed(
            f"{named} did not run on generated inputs, so that its outputs are not known: {observed.error}; "
            'give its class outputs = {"y": {"shape": [-1, 3], "datatype": "FP32"}}, '
            "or a method examples(self, rows) that returns inputs"
        )
    names = list(next(iter(observed.outputs.values())))
    return tuple(_observed(observed, name, signature.batched, named) for name in names)


def _observed(observed: Observed, name: str, batched: bool, named: str) -> TensorSpec:
    shapes: list[tuple[int, ...]] = []
    for rows, outputs in observed.outputs.items():
        if name not in outputs:
            raise LoadFailed(f"{named} returned output {name!r} for 1 item, but not for {rows}")
        array = np.asarray(outputs[name])
        if batched and (array.ndim == 0 or array.shape[0] != rows):
            raise LoadFailed(
                f"output {name!r} of {named} has shape {list(array.shape)} for {rows} items; "
                f"its first axis must be {rows}"
            )
        shapes.append(array.shape[1:] if batched else array.shape)
    try:
        datatype = DataType.of(array.dtype)
    except KeyError:
        raise LoadFailed(f"output {name!r} of {named} is {array.dtype}, which no answer can carry") from None
    if len({len(shape) for shape in shapes}) > 1:
        raise LoadFailed(f"output {name!r} of {named} has shapes of different ranks: {shapes}")
    merged = tuple(sizes[0] if len(set(sizes)) == 1 else DYNAMIC for sizes in zip(*shapes, strict=True))
    return TensorSpec(name, datatype, merged)


def _run_generated(
    run: Run, signature: Signature, rows: int, dimensions: Mapping[str, int], *, again: bool
) -> Batch:
    try:
        return _executed(run, generated_inputs(signature, rows, dimensions), rows, again=again)
    except InvalidInput:
        raise
    except Exception:
        zeros = generated_inputs(signature, rows, dimensions, whole_number=0)
        return _executed(run, zeros, rows, again=again)


def _executed(run: Run, batch: Batch, rows: int, *, again: bool) -> Batch:
    """Run it, and with `again` once more if that was quick."""
    started_s = time.perf_counter()
    outputs, _ = run(batch, rows, rows)
    if again and time.perf_counter() - started_s < _AGAIN_BELOW_S:
        outputs, _ = run(batch, rows, rows)
    return outputs


def _shape(spec: TensorSpec, dimensions: Mapping[str, int]) -> tuple[int, ...]:
    symbols = spec.symbols or ("",) * len(spec.shape)
    return tuple(
        dimensions.get(symbol, DEFAULT_AXIS) if size == DYNAMIC else size
        for size, symbol in zip(spec.shape, symbols, strict=True)
    )
