"""Ways to look at a digit that a member of the ensemble decides by; each is numpy here and ONNX in `export`.

Members that look at different things err on different images, which is what an ensemble lives on.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

SIDE = 8
_POOL = 2

SLOPES = np.array(
    [
        [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]],
        [[1, 2, 1], [0, 0, 0], [-1, -2, -1]],
        [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]],
        [[2, 1, 0], [1, 0, -1], [0, -1, -2]],
    ],
    np.float32,
)
"""Sobel kernels, (4, 3, 3): how brightness rises in four directions; their negatives are four more."""


def shifted(images: Array, labels: NDArray[np.int64]) -> tuple[Array, NDArray[np.int64]]:
    """Return images (n, 64) with each moved by one pixel in the four directions as well: (5n, 64)."""
    padded = np.pad(images.reshape(-1, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    moves = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    moved = [padded[:, down : down + SIDE, right : right + SIDE] for down, right in moves]
    return np.concatenate(moved).reshape(-1, SIDE * SIDE), np.tile(labels, len(moves))


def slopes(images: Array) -> Array:
    """Return how much every 2 × 2 square rises in eight directions: (n, 64) 0..1 → (n, 8 · 16).

    Channels first, as ONNX lays them out: the four of `SLOPES`, then their opposites.
    """
    padded = np.pad(images.reshape(-1, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    rises = np.zeros((len(images), len(SLOPES), SIDE, SIDE), np.float32)
    for row in range(3):
        for column in range(3):
            window = padded[:, None, row : row + SIDE, column : column + SIDE]
            rises += SLOPES[None, :, row, column, None, None] * window
    both = np.maximum(np.concatenate([rises, -rises], axis=1), 0)
    half = SIDE // _POOL
    pooled: Array = both.reshape(len(images), -1, half, _POOL, half, _POOL).mean(axis=(3, 5))
    return pooled.reshape(len(images), -1)


def nearness(images: Array, examples: Array, width: float) -> Array:
    """Return how near images (n, 64) are to examples (k, 64): exp(−width · distance²), (n, k)."""
    squares = (images**2).sum(axis=1)[:, None] + (examples**2).sum(axis=1)[None]
    return np.asarray(np.exp(-width * (squares - 2 * images @ examples.T)), np.float32)
