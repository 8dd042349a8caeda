"""Does a candidate compute the same as the reference? Outputs compared against stated tolerances.

A candidate agrees in an output of floating-point numbers if everywhere

    |candidate − reference| ≤ absolute tolerance + relative tolerance · s,

where s is the largest finite magnitude of that output in the same item. Whole numbers, booleans and texts
must be equal. Values that are not finite must be so in the same places, and infinities of the same sign.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partita.core.choice import Allowance, Deviation, Verdict
from partita.core.tensors import DataType, TensorSpec

Array = NDArray[Any]
Outputs = Mapping[str, Array]
"""Outputs of one batch by name, each (items, *item shape); BF16 as its raw 16 bits."""

TELLING_SHARE = 0.25
"""Share of items that must differ from the item before by more than the tolerance, in some output."""


class Tolerance(NamedTuple):
    """How far a floating-point output may be from the reference's."""

    relative: float
    absolute: float


TOLERANCES: Mapping[DataType, Tolerance] = {
    DataType.FP64: Tolerance(1e-6, 1e-9),
    DataType.FP32: Tolerance(1e-3, 1e-6),
    DataType.FP16: Tolerance(1e-2, 1e-3),
    DataType.BF16: Tolerance(3e-2, 3e-3),
}
"""What is allowed where the user says nothing else: other orders of summation, and no lower precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether outputs agree, why not, and how far each is off."""

    verdict: Verdict
    reason: str = ""
    deviations: tuple[Deviation, ...] = ()


def judge(
    specs: Sequence[TensorSpec],
    reference: Sequence[Outputs],
    given: Sequence[Outputs],
    *,
    relative: float | None = None,
    allowed: Allowance | None = None,
) -> Judgement:
    """Compare a candidate's outputs with the reference's, batch by batch; `specs` are the reference's.

    `relative` is the user's own relative tolerance. `allowed` is what a candidate of lower precision may
    change; None for one that computes with the model's own.
    """
    if wrong := _wrong_form(specs, reference, given):
        return Judgement(verdict=Verdict.REFUSED, reason=wrong)
    deviations = tuple(
        deviation(
            spec,
            [batch[spec.name] for batch in reference],
            [batch[spec.name] for batch in given],
            relative=relative,
            allowed=allowed,
        )
        for spec in specs
    )
    broken = [d for d in deviations if not d.agrees]
    if not broken:
        return Judgement(verdict=Verdict.ADMITTED, deviations=deviations)
    worst = max(broken, key=lambda d: d.relative)
    datatype = next(spec.datatype for spec in specs if spec.name == worst.output)
    reason = _why(worst, tolerance_of(datatype, relative), allowed)
    return Judgement(verdict=Verdict.REFUSED, reason=reason, deviations=deviations)


def deviation(
    spec: TensorSpec,
    reference: Sequence[Array],
    given: Sequence[Array],
    *,
    relative: float | None = None,
    allowed: Allowance | None = None,
) -> Deviation:
    """Return how far an output is from the reference's: batches (items, *item shape), of equal shapes.

    Where only a share of items is `allowed` that must have their largest value in its place, an output
    without such a place disagrees.
    """
    pairs = [
        (_floats(spec, r), _floats(spec, g)) for r, g in zip(_items(reference), _items(given), strict=True)
    ]
    tolerance = tolerance_of(spec.datatype, relative)
    if tolerance is None:
        share = max((_share_of_different(r, g) for r, g in pairs), default=0.0)
        most = 0.0 if allowed is None else allowed.deviation or 0.0
        return Deviation(output=spec.name, absolute=share, relative=share, agrees=share <= most)
    if allowed is not None and allowed.deviation is not None:
        tolerance = tolerance._replace(relative=allowed.deviation)
    least_scale = tolerance.absolute / tolerance.relative if tolerance.relative else np.inf
    offs = [(_largest_difference(r, g), _scale(r)) for r, g in pairs]
    hits = [bool(np.argmax(r) == np.argmax(g)) for r, g in pairs if r.ndim == 1 and r.size > 1]
    top1 = sum(hits) / len(hits) if hits else None
    return Deviation(
        output=spec.name,
        absolute=max((off for off, _ in offs), default=0.0),
        relative=max((off / max(scale, least_scale) for off, scale in offs), default=0.0),
        agrees=_keeps_places(top1, allowed) and all(_is_near(*off, tolerance, allowed) for off in offs),
        top1=top1,
    )


def tells_items_apart(
    specs: Sequence[TensorSpec], outputs: Sequence[Outputs], *, relative: float | None = None
) -> bool:
    """Return whether items differ by more than the tolerance in some output.

    If they do not, then a candidate that answers every item alike would agree as well.
    """
    return any(_tells_apart(spec, [batch[spec.name] for batch in outputs], relative) for spec in specs)


def tolerance_of(datatype: DataType, relative: float | None = None) -> Tolerance | None:
    """Return the tolerance of a datatype, with the user's own relative one; None = must be equal."""
    tolerance = TOLERANCES.get(datatype)
    return tolerance if tolerance is None or relative is None else tolerance._replace(relative=relative)


def _wrong_form(specs: Sequence[TensorSpec], reference: Sequence[Outputs], given: Sequence[Outputs]) -> str:
    """Return what is wrong with the names or shapes of outputs, "" if nothing is."""
    for was, now in zip(reference, given, strict=True):
        if set(was) != set(now):
            return f"its outputs are {_names(now)}, the reference's {_names(was)}"
        for spec in specs:
            shapes = was[spec.name].shape, now[spec.name].shape
            if shapes[0] != shapes[1]:
                return f"output {spec.name} has shape {list(shapes[1])}, the reference's {list(shapes[0])}"
    return ""


def _tells_apart(spec: TensorSpec, batches: Sequence[Array], relative: float | None) -> bool:
    items = list(_items(batches))
    pairs = list(pairwise(items))
    different = sum(
        a.shape != b.shape or not deviation(spec, [a[None]], [b[None]], relative=relative).agrees
        for a, b in pairs
    )
    return bool(pairs) and different >= TELLING_SHARE * len(pairs)


def _items(batches: Sequence[Array]) -> Iterator[Array]:
    for batch in batches:
        yield from (np.asarray(item) for item in batch)


def _floats(spec: TensorSpec, array: Array) -> Array:
    """Return an item whose floating-point numbers can be computed with."""
    if spec.datatype is DataType.BF16 and array.dtype == np.uint16:  # the upper half of a float32's bits
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _largest_difference(reference: Array, given: Array) -> float:
    """Return the largest |given − reference| of one item; infinite where only one is a finite number."""
    r, g = reference.astype(np.float64), given.astype(np.float64)
    both = np.isfinite(r) & np.isfinite(g)
    same = both | (r == g) | (np.isnan(r) & np.isnan(g))
    if not same.all():
        return float("inf")
    return float(np.abs(r[both] - g[both]).max()) if both.any() else 0.0


def _scale(item: Array) -> float:
    values = item.astype(np.float64)
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def _is_near(off: float, scale: float, tolerance: Tolerance, allowed: Allowance | None) -> bool:
    """Whether one item is off by no more than it may be; by any number where only places count."""
    if allowed is not None and allowed.deviation is None:
        return bool(np.isfinite(off))
    return off <= tolerance.absolute + tolerance.relative * scale


def _keeps_places(top1: float | None, allowed: Allowance | None) -> bool:
    """Whether enough items have their largest value in its place, or how far they are off is what counts."""
    if allowed is None or allowed.top1 is None:
        return True
    return allowed.deviation is not None if top1 is None else top1 >= allowed.top1


def _share_of_different(reference: Array, given: Array) -> float:
    return float(np.mean(reference != given)) if reference.size else 0.0


def _names(outputs: Outputs) -> str:
    return ", ".join(sorted(outputs)) or "none"


def _why(worst: Deviation, tolerance: Tolerance | None, allowed: Allowance | None) -> str:
    if np.isinf(worst.absolute):
        return f"output {worst.output} is not a finite number where the reference's is, or the reverse"
    if not _keeps_places(worst.top1, allowed):
        return _misplaced(worst, allowed)
    if tolerance is None:
        return f"output {worst.output}: {worst.relative:.2g} of an item's elements differ and must be equal"
    limit = tolerance.relative if allowed is None or allowed.deviation is None else allowed.deviation
    return (
        f"output {worst.output} is off by {worst.absolute:.2g}, which is {worst.relative:.2g} of the item's "
        f"largest value; allowed is {limit:.2g}"
    )


def _misplaced(worst: Deviation, allowed: Allowance | None) -> str:
    assert allowed is not None
    if worst.top1 is None:
        return f"output {worst.output} has no largest value among several; say how far it may be off"
    return (
        f"output {worst.output} has its largest value in the same place in {worst.top1:.1%} of the items; "
        f"wanted is {allowed.top1:.1%}"
    )
