"""What the arithmetic of the cores allows at most: the rate of a large matrix product, in the same minutes.

A network in FP32 that is made of products and convolutions cannot be executed faster than its operations
take at the best rate that the cores reach, unless it is computed in another way, in fewer operations.
"""

from time import perf_counter

import numpy as np

SIDES = (512, 1024, 2048)
_LOOK_S = 0.3

GIGA_OPERATIONS = {"resnet50": 8.18, "bert_base": 11.0}
"""Of one item's products and convolutions: a multiplication and an addition are two."""


def best_rate() -> float:
    """Return the best rate of FP32 matrix products on all cores, 10⁹ operations a second; takes a second."""
    return max(_rate(side) for side in SIDES)


def _rate(side: int) -> float:
    rng = np.random.default_rng(0)
    a, b = (rng.random((side, side), dtype=np.float32) for _ in range(2))
    made = np.empty_like(a)
    least_s, end_s = float("inf"), perf_counter() + _LOOK_S
    while perf_counter() < end_s:
        begun_s = perf_counter()
        np.dot(a, b, out=made)
        least_s = min(least_s, perf_counter() - begun_s)
    return 2.0 * side**3 / least_s / 1e9


def least_ms(name: str, items: int, rate: float) -> float:
    """Return the least time that a batch can take at this rate, milliseconds."""
    return GIGA_OPERATIONS[name] * items / rate * 1e3
