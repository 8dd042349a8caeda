"""The allocation matrix A of the ensembles paper: which models run on which devices, in which batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Worker(NamedTuple):
    """One non-zero element: model `model` runs on device `device` with batches of `batch` items."""

    device: int
    model: int
    batch: int


@dataclass(frozen=True, slots=True)
class AllocationMatrix:
    """A[d][m] = batch size of model m's worker on device d, 0 = no worker there.

    A row with several workers is co-localisation, a column with several is data parallelism.
    """

    rows: tuple[tuple[int, ...], ...]  # (devices, models), items

    def __post_init__(self) -> None:
        assert self.rows, "an allocation has at least one device"
        assert self.rows[0], "an allocation has at least one model"
        assert len({len(row) for row in self.rows}) == 1, self.rows
        assert all(batch >= 0 for row in self.rows for batch in row), self.rows

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "AllocationMatrix":
        """Return the matrix of these rows, one for each device."""
        return cls(tuple(tuple(int(batch) for batch in row) for row in rows))

    @classmethod
    def empty(cls, devices: int, models: int) -> "AllocationMatrix":
        """Return the matrix of no worker at all, which is not valid yet."""
        return cls(((0,) * models,) * devices)

    @property
    def devices(self) -> int:
        """Number of devices D."""
        return len(self.rows)

    @property
    def models(self) -> int:
        """Number of models M."""
        return len(self.rows[0])

    @property
    def is_valid(self) -> bool:
        """Whether every model has a worker: no column is zero."""
        return all(any(column) for column in zip(*self.rows, strict=True))

    def column(self, model: int) -> tuple[int, ...]:
        """Return the batch sizes of one model, one for each device."""
        return tuple(row[model] for row in self.rows)

    def with_element(self, device: int, model: int, batch: int) -> "AllocationMatrix":
        """Return the matrix with one element replaced."""
        row = self.rows[device]
        changed = (*row[:model], batch, *row[model + 1 :])
        return AllocationMatrix((*self.rows[:device], changed, *self.rows[device + 1 :]))

    def workers(self) -> Iterator[Worker]:
        """Yield the workers, device by device."""
        for device, row in enumerate(self.rows):
            for model, batch in enumerate(row):
                if batch:
                    yield Worker(device, model, batch)

    def as_lists(self) -> list[list[int]]:
        """Return the matrix as JSON has it."""
        return [list(row) for row in self.rows]

    def __str__(self) -> str:
        return "[" + "; ".join(" ".join(map(str, row)) for row in self.rows) + "]"
