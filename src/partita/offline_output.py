"""Where the answers of an offline run go: joined in memory, or into a mapped file that may exceed memory."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InvalidInput
from partita.embedded import Answer


class Collected(Protocol):
    """Takes the answers to consecutive segments."""

    def add(self, piece: Answer) -> None:
        """The next segment's outputs by name, items on the first axis."""

    def finish(self) -> Answer:
        """Return the whole, once every segment is there."""

    def discard(self) -> None:
        """The run has failed; a second time, or after `finish`, it does nothing."""


class Joined:
    """In memory."""

    def __init__(self, join: Callable[[list[NDArray[Any]]], NDArray[Any]]) -> None:
        self._join = join
        self._pieces: list[Answer] = []

    def add(self, piece: Answer) -> None:
        """Keep it."""
        self._pieces.append(piece)

    def finish(self) -> Answer:
        """Put them together."""
        names = self._pieces[0]
        return Answer((name, self._join([piece[name] for piece in self._pieces])) for name in names)

    def discard(self) -> None:
        """Nothing outlives the run."""


class Mapped:
    """An .npy for a model's one output, written in place: it appears under its name once it is whole."""

    def __init__(self, path: Path, n_items: int, *, batched: bool) -> None:
        self.path = path
        self._beside = path.with_name(f".{path.name}.{os.getpid()}")
        self._n_items = n_items
        self._batched = batched
        self._name = ""
        self._array: NDArray[Any] | None = None
        self._done = 0

    def add(self, piece: Answer) -> None:
        """Write it behind the others; raises `InvalidInput` for what an .npy of one shape cannot hold."""
        if len(piece) != 1:
            raise InvalidInput(f"{self.path}: the model has the outputs {', '.join(piece)}; write to an .npz")
        ((name, values),) = piece.items()
        rows = values if self._batched else values[None]
        if self._array is None:
            self._name, self._array = name, self._created(rows)
        if rows.shape[1:] != self._array.shape[1:] or rows.dtype != self._array.dtype:
            ours, others = (f"{a.dtype} {list(a.shape[1:])}" for a in (rows, self._array))
            raise InvalidInput(
                f"{self.path}: item {self._done} has an output of {ours}, and those before have {others}; "
                "an .npy holds one shape"
            )
        self._array[self._done : self._done + len(rows)] = rows
        self._done += len(rows)

    def _created(self, rows: NDArray[Any]) -> NDArray[Any]:
        if rows.dtype == object:
            raise InvalidInput(f"{self.path}: texts of differing lengths cannot be mapped")
        try:
            made: NDArray[Any] = np.lib.format.open_memmap(
                self._beside, mode="w+", dtype=rows.dtype, shape=(self._n_items, *rows.shape[1:])
            )
        except OSError as error:
            raise InvalidInput(f"cannot write {self.path}: {error.strerror or error}") from error
        return made

    def finish(self) -> Answer:
        """Give the file its name, and return it mapped for reading."""
        assert self._array is not None
        assert self._done == self._n_items, (self._done, self._n_items)
        self._array.flush()  # type: ignore[attr-defined]
        self._array = None
        self._beside.replace(self.path)
        return Answer({self._name: np.load(self.path, mmap_mode="r", allow_pickle=False)})

    def discard(self) -> None:
        """Leave no half of a file."""
        self._array = None
        self._beside.unlink(missing_ok=True)
