"""Calibration items on disk: a few of the user's, kept because what was made with them may be made again."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InvalidInput
from partita.core.formats import CALIBRATION
from partita.profiling.identity import model_hash
from partita.system.artefacts import cache_dir, kept

FILE = "items.npz"
ONLY = "items"
"""Name of the array where there is one input, and the file does not say which."""
COMPARED = 64
"""The first items, which candidates are compared on; others are for quantising, where there are enough."""
MOST = 256
"""Items that a model is quantised with at most."""


def keep_items(samples: Path) -> str:
    """Keep items of a ``.npy`` or ``.npz`` file in the cache; returns their name there, by what they are.

    Raises `InvalidInput` if the file cannot be read or needs pickle.
    """
    try:
        name = model_hash(samples)[:16]
        kept(cache_dir() / CALIBRATION, name, lambda folder: _write(samples, folder / FILE))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{samples}: cannot be kept as calibration items: {error}") from error
    return name


def _write(samples: Path, file: Path) -> None:
    loaded = np.load(samples, allow_pickle=False, mmap_mode="r" if samples.suffix == ".npy" else None)
    arrays = {ONLY: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    np.savez(file, allow_pickle=False, **{name: _for_quantising(array) for name, array in arrays.items()})


def _for_quantising(array: NDArray[Any]) -> NDArray[Any]:
    """Return the items after those that are compared, or all where there are too few."""
    rest = array[COMPARED : COMPARED + MOST]
    return rest if len(rest) >= COMPARED else array[:MOST]
