"""The demo's models and the real images that they were never trained on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parent / "models"
INPUT, OUTPUT = "x", "probabilities"


@dataclass(frozen=True, slots=True)
class Digits:
    """Test images and what they show."""

    images: NDArray[np.float32]  # (n, 64), pixels 0..16
    labels: NDArray[np.int64]  # (n,)

    def __len__(self) -> int:
        return len(self.labels)

    def accuracy(self, answers: NDArray[np.int64]) -> float:
        """Return the share of images whose answer (n,) is right."""
        return float((answers == self.labels).mean())


def load_digits() -> Digits:
    """Return the 450 images that training held back."""
    return read_images(FOLDER / "digits_test.npz")


def read_images(file: Path) -> Digits:
    """Return the images of an .npz with ``x`` and ``labels``."""
    with np.load(file, allow_pickle=False) as data:
        return Digits(data["x"].astype(np.float32), data["labels"].astype(np.int64))


def model_files() -> Mapping[str, Path]:
    """Return the committed models by name, in alphabetical order."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.onnx"))}
