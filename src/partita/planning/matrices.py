"""The decision space of an ensemble's allocation (ensembles paper, equations 1 and 2)."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from partita.core.allocation import AllocationMatrix


def count_matrices(devices: int, models: int, batch_sizes: int) -> int:
    """Return the number of valid matrices, ((B + 1)^D − 1)^M: no column is zero (equation 1)."""
    columns: int = (batch_sizes + 1) ** devices - 1
    matrices: int = columns**models
    return matrices


def count_neighbours(matrix: AllocationMatrix, batch_sizes: Sequence[int]) -> int:
    """Return how many matrices `neighbours` yields.

    Equation 2 of the paper, (B + 1)·D·M − F, counts each element's present value as well; this does not. F is
    the number of models with one worker, which cannot be taken away.
    """
    elements = [batch for row in matrix.rows for batch in row]
    others = sum(len(batch_sizes) + (batch != 0) - (batch in batch_sizes) for batch in elements)
    forbidden = sum(sum(map(bool, matrix.column(model))) == 1 for model in range(matrix.models))
    return others - forbidden


def neighbours(matrix: AllocationMatrix, batch_sizes: Sequence[int]) -> Iterator[AllocationMatrix]:
    """Yield the valid matrices that differ from this one in exactly one element, each once, in order."""
    for device in range(matrix.devices):
        for model in range(matrix.models):
            is_only_one = sum(map(bool, matrix.column(model))) == 1
            present = matrix.rows[device][model]
            for batch in (0, *sorted(set(batch_sizes))):
                if batch == present or (batch == 0 and is_only_one):
                    continue
                yield matrix.with_element(device, model, batch)


def scientific(count: int) -> str:
    """Return a count with two figures, such as ``1.3e31``; small ones as they are."""
    if count < 100_000:
        return str(count)
    mantissa, _, exponent = f"{Decimal(count):.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
