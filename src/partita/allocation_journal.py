"""What a search for an allocation has measured, line by line, so that a later one can go on from there."""

import json
from pathlib import Path

from partita.core.allocation import AllocationMatrix
from partita.core.errors import InvalidInput


class Journal:
    """A file beside the kept allocation. Lines cut short, or of another shape, are passed over."""

    def __init__(self, path: Path, *, devices: int, models: int) -> None:
        self.path = path
        self._shape = devices, models

    def read(self) -> dict[AllocationMatrix, float]:
        """Return the items per second of every matrix that was measured."""
        known: dict[AllocationMatrix, float] = {}
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except OSError:
            return known
        for line in lines:
            try:
                rows, rate = json.loads(line)
                matrix = AllocationMatrix.of(rows)
                if (matrix.devices, matrix.models) == self._shape:
                    known[matrix] = float(rate)
            except (ValueError, TypeError, AssertionError):
                continue
        return known

    def note(self, matrix: AllocationMatrix, items_per_s: float) -> None:
        """Add one; raises `InvalidInput` where the folder cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" + json.dumps([matrix.as_lists(), items_per_s]))  # after one cut short, too
        except OSError as error:
            raise InvalidInput(f"cannot write {self.path}: {error.strerror}") from error

    def clear(self) -> None:
        """Begin anew."""
        self.path.unlink(missing_ok=True)
