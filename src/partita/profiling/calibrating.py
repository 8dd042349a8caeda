"""What candidates are compared on: calibration items in batches of different sizes, and the right answers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from partita.core.errors import PartitaError
from partita.core.tensors import Signature
from partita.engine.instance import ModelLaunch
from partita.planning.agreement import Outputs, tells_items_apart
from partita.profiling.contestant import Contestant
from partita.profiling.inputs import MAKERS, Calibration, Items, calibration, load_samples

ITEMS = 64
"""Calibration items, where there is time and memory for so many."""

_SIZES = (1, 3, 12, 16)
"""Batches that the items come in, and then the last again: sizes that are no powers of two among them."""
_FEW = 4
"""Items that show whether a way of making them up is any good."""
_OUTPUT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The items, and what the reference makes of them."""

    signature: Signature
    given: Calibration
    batches: tuple[Items, ...]
    outputs: tuple[Outputs, ...]
    tells_apart: bool
    """Whether different items are answered differently, so that agreeing means something."""

    @property
    def items(self) -> int:
        """Number of items."""
        return sum(_count(batch) for batch in self.batches)


def reference_of(
    contestant: Contestant,
    launch: ModelLaunch,
    *,
    samples: Path | None,
    max_batch: int,
    seconds: float,
    now_s: Callable[[], float],
    relative: float | None = None,
) -> Reference:
    """Return the items and the reference's outputs, of about as many as it can answer in `seconds`.

    Items made up are made so that they are answered differently, if any of several ways does that. Raises
    `ExecutionFailed`, `LoadFailed`, `MemoryError` or, for samples that do not fit, `InvalidInput`.
    """
    signature = contestant.signature
    assert signature is not None
    given = None if samples is None else load_samples(samples, signature)
    answer = partial(
        _answered, contestant, signature, max_batch=max_batch, seconds=seconds, now_s=now_s, relative=relative
    )
    first: Calibration | None = None
    for make in MAKERS if given is None else ():
        made = calibration(signature, dimensions=launch.dimensions, count=ITEMS, make=make)
        first = first or made
        try:
            if answer(made, most=_FEW).tells_apart:
                return answer(made, most=ITEMS)
        except PartitaError:
            if made is first:
                raise
    return answer(first or calibration(signature, samples=given, dimensions=launch.dimensions), most=ITEMS)


def _answered(
    contestant: Contestant,
    signature: Signature,
    given: Calibration,
    *,
    most: int,
    max_batch: int,
    seconds: float,
    now_s: Callable[[], float],
    relative: float | None,
) -> Reference:
    batches: list[Items] = []
    outputs: list[Outputs] = []
    begun_s, nbytes = now_s(), 0
    for batch in _batches(given.items, signature, max_batch, most):
        batches.append(batch)
        outputs.extend(contestant.outputs([batch]))
        nbytes += sum(array.nbytes for array in outputs[-1].values())
        took_s = now_s() - begun_s
        if len(batches) > 1 and (took_s * 2 > seconds or nbytes * 2 > _OUTPUT_BYTES):
            break
    return Reference(
        signature=signature,
        given=given,
        batches=tuple(batches),
        outputs=tuple(outputs),
        tells_apart=tells_items_apart(signature.outputs, outputs, relative=relative),
    )


def _batches(items: Items, signature: Signature, max_batch: int, most: int) -> Iterator[Items]:
    """Yield the items, all of them once, in batches that the model can take."""
    total, at = min(most, _count(items)), 0
    sizes = iter(_SIZES)
    size = 1
    while at < total:
        size = next(sizes, size)
        count = min(total - at, _allowed(size, signature, max_batch))
        yield {name: array[at : at + count] for name, array in items.items()}
        at += count


def _allowed(size: int, signature: Signature, max_batch: int) -> int:
    if not signature.batched:
        return 1
    return signature.fixed_batch or min(size, max_batch)


def _count(items: Items) -> int:
    return len(next(iter(items.values())))
