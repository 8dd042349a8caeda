"""A small convolutional classifier trained in plain numpy.

Two 3×3 convolutions, max pooling and one dense layer. A convolution is a matrix product over patches
(im2col), so that numpy's BLAS does the work. Arrays of images are NHWC, float32.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Parameters = dict[str, Array]

SIDE = 8
CLASSES = 10


def initialise(rng: np.random.Generator, *, first: int, second: int) -> Parameters:
    """He initialisation; `conv*` are (kernel_row · kernel_column · channels_in, channels_out)."""
    flat = (SIDE // 2) ** 2 * second

    def normal(fan_in: int, fan_out: int) -> Array:
        return np.asarray(rng.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in), np.float32)

    return {
        "conv1": normal(9, first),
        "bias1": np.zeros(first, np.float32),
        "conv2": normal(9 * first, second),
        "bias2": np.zeros(second, np.float32),
        "dense": normal(flat, CLASSES),
        "bias": np.zeros(CLASSES, np.float32),
    }


def train(
    images: Array,
    labels: NDArray[np.int64],
    *,
    rng: np.random.Generator,
    epochs: int,
    first: int,
    second: int,
) -> Parameters:
    """Adam on cross entropy, images (n, 8, 8) scaled to 0..1 and shifted by up to one pixel each time."""
    parameters = initialise(rng, first=first, second=second)
    mean = {name: np.zeros_like(value) for name, value in parameters.items()}
    square = {name: np.zeros_like(value) for name, value in parameters.items()}
    step = 0
    for epoch in range(epochs):
        rate = 2e-3 * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
        for rows in _minibatches(len(images), rng):
            step += 1
            gradients = _gradients(parameters, _shifted(images[rows], rng), labels[rows])
            for name, gradient in gradients.items():
                mean[name] += np.float32(0.1) * (gradient - mean[name])
                square[name] += np.float32(0.001) * (gradient**2 - square[name])
                unbiased = mean[name] / (1 - 0.9**step)
                scale = np.sqrt(square[name] / (1 - 0.999**step)) + 1e-8
                parameters[name] -= (rate * unbiased / scale).astype(np.float32)
    return parameters


def probabilities(parameters: Parameters, images: Array) -> Array:
    """Class probabilities (n, 10) of images (n, 8, 8)."""
    return _softmax(_forward(parameters, images)[-1])


def _minibatches(items: int, rng: np.random.Generator, size: int = 64) -> Iterator[NDArray[np.int64]]:
    order = rng.permutation(items)
    for start in range(0, items, size):
        yield order[start : start + size]


def _shifted(images: Array, rng: np.random.Generator) -> Array:
    """Each image moved by −1, 0 or 1 pixel in either direction, zeros coming in."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    down, right = rng.integers(0, 3, (2, len(images)))
    pixels = np.arange(SIDE)
    rows = (down[:, None] + pixels)[:, :, None]
    columns = (right[:, None] + pixels)[:, None, :]
    moved: Array = padded[np.arange(len(images))[:, None, None], rows, columns]
    return moved


def _patches(images: Array) -> Array:
    """(n, h, w, c) → (n·h·w, 9·c): the 3×3 surroundings of every pixel, zeros outside."""
    n, height, width, channels = images.shape
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return np.concatenate(parts, axis=3).reshape(n * height * width, 9 * channels)


def _scatter(patches: Array, shape: tuple[int, ...]) -> Array:
    """The transpose of `_patches`: adds every patch back to where it was taken from."""
    n, height, width, channels = shape
    padded = np.zeros((n, height + 2, width + 2, channels), np.float32)
    parts = patches.reshape(n, height, width, 9, channels)
    for k in range(9):
        i, j = divmod(k, 3)
        padded[:, i : i + height, j : j + width] += parts[:, :, :, k]
    return padded[:, 1:-1, 1:-1]


def _forward(parameters: Parameters, images: Array) -> tuple[Array, Array, Array, Array, Array, Array]:
    n = len(images)
    patches1 = _patches(images[..., None])
    hidden1 = np.maximum(patches1 @ parameters["conv1"] + parameters["bias1"], 0)
    hidden1 = hidden1.reshape(n, SIDE, SIDE, -1)
    patches2 = _patches(hidden1)
    hidden2 = np.maximum(patches2 @ parameters["conv2"] + parameters["bias2"], 0)
    windows = hidden2.reshape(n, SIDE // 2, 2, SIDE // 2, 2, -1)
    pooled = windows.max(axis=(2, 4))
    logits = pooled.reshape(n, -1) @ parameters["dense"] + parameters["bias"]
    return patches1, hidden1, patches2, windows, pooled, logits


def _gradients(parameters: Parameters, images: Array, labels: NDArray[np.int64]) -> Parameters:
    n = len(images)
    patches1, hidden1, patches2, windows, pooled, logits = _forward(parameters, images)
    d_logits = _softmax(logits)
    d_logits[np.arange(n), labels] -= 1
    d_logits /= np.float32(n)
    d_pooled = (d_logits @ parameters["dense"].T).reshape(pooled.shape)
    # A window's gradient goes to its largest pixel; a window that is all zero (dead relu) gets none.
    largest = (windows == pooled[:, :, None, :, None]) & (windows > 0)
    d_hidden2 = (largest * d_pooled[:, :, None, :, None]).reshape(n * SIDE * SIDE, -1)
    d_hidden1 = _scatter(d_hidden2 @ parameters["conv2"].T, hidden1.shape)
    d_hidden1 = (d_hidden1 * (hidden1 > 0)).reshape(n * SIDE * SIDE, -1)
    return {
        "conv1": patches1.T @ d_hidden1,
        "bias1": d_hidden1.sum(axis=0),
        "conv2": patches2.T @ d_hidden2,
        "bias2": d_hidden2.sum(axis=0),
        "dense": pooled.reshape(n, -1).T @ d_logits,
        "bias": d_logits.sum(axis=0),
    }


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)
