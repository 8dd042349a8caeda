"""From a picture to a network's input, step by step, without torchvision."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

Step = Callable[[Any], Any]


class Steps:
    """Several steps, one after another."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.transforms = list(steps)

    def __call__(self, image: Any) -> Any:
        """Return what the last step makes of it."""
        for step in self.transforms:
            image = step(image)
        return image


class Resize:
    """Scales a picture so that its shorter side has this many pixels."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the changed picture."""
        width, height = image.size
        short, long = min(width, height), max(width, height)
        other = int(self._size * long / short)
        size = (self._size, other) if width <= height else (other, self._size)
        return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)


class CenterCrop:
    """Cuts a square out of the middle; a picture that is too small is padded with black."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the changed picture."""
        width, height = image.size
        left, top = round((width - self._size) / 2.0), round((height - self._size) / 2.0)
        return image.crop((left, top, left + self._size, top + self._size))


def to_tensor(image: Image.Image) -> Any:
    """Return a picture as (channels, height, width) float32 from 0 to 1."""
    pixels = np.asarray(image)
    if pixels.dtype == bool:
        pixels = pixels.astype(np.uint8) * 255
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    return tensor.float().div(255) if tensor.dtype == torch.uint8 else tensor.float()


class Normalize:
    """Subtracts each channel's mean and divides by its deviation."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean = torch.tensor(mean)[:, None, None]
        self._std = torch.tensor(std)[:, None, None]

    def __call__(self, tensor: Any) -> Any:
        """Return the normalized channels."""
        return (tensor - self._mean) / self._std
