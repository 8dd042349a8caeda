"""The handwritten digits of scikit-learn, part of them held back for testing."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Array = NDArray[np.float32]
Labels = NDArray[np.int64]


def split(test_share: float, seed: int) -> tuple[Array, Array, Labels, Labels]:
    """Return pixels (n, 64) from 0 to 16 to train on and to test on, then their labels (n,), stratified."""
    pixels, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        pixels.astype(np.float32), labels, test_size=test_share, stratify=labels, random_state=seed
    )
    return x_train, x_test, y_train, y_test


def save(folder: Path, pixels: Array, labels: Labels) -> None:
    """Write the images to test on to ``digits_test.npz``: `x` and `labels`, uint8."""
    np.savez_compressed(folder / "digits_test.npz", x=pixels.astype(np.uint8), labels=labels.astype(np.uint8))
