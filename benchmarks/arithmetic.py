"""What the arithmetic of the cores allows at most: the rate of the best matrix product, in the same minutes.

A network in FP32 that is made of products and convolutions cannot be executed faster than its operations
take at the best rate that the cores reach, unless it is computed in another way, in fewer operations.

    python -m benchmarks.arithmetic
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch

SIDES = (512, 1024, 2048)
DENSE = ((64, 768, 3072), (256, 768, 3072), (256, 3072, 768))
"""Rows, inputs and outputs of dense layers, whose weights oneDNN may lay out beforehand."""
_LOOK_S = 0.3

GIGA_OPERATIONS = {"resnet50": 8.18, "bert_base": 10.27}
"""Of one item's products and convolutions: a multiplication and an addition are two. Of BERT's last layer
only those that its answer depends on, the first token and all keys and values: 11.02 with the others."""


def best_rate() -> float:
    """Return the best rate of FP32 products on all cores, 10⁹ operations a second; takes a few seconds.

    It is the best of square products by NumPy's library and dense layers by oneDNN, in torch.
    """
    return max(rates().values())


def rates() -> dict[str, float]:
    """Return the best rate of each kind of product, 10⁹ operations a second."""
    return {
        "square, NumPy": max(_square_rate(side) for side in SIDES),
        **({"dense, oneDNN": max(_dense_rate(*sizes) for sizes in DENSE)} if _has_onednn() else {}),
    }


def _square_rate(side: int) -> float:
    rng = np.random.default_rng(0)
    a, b = (rng.random((side, side), dtype=np.float32) for _ in range(2))
    made = np.empty_like(a)
    return _rate(lambda: np.dot(a, b, out=made), 2.0 * side**3)


def _dense_rate(rows: int, given: int, made: int) -> float:
    x, weights, bias = torch.rand(rows, given), torch.rand(made, given), torch.rand(made)
    packed = torch.ops.mkldnn._reorder_linear_weight(weights, rows)
    with torch.inference_mode():
        return _rate(
            lambda: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], ""),
            2.0 * rows * given * made,
        )


def _has_onednn() -> bool:
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


def _rate(compute: Callable[[], Any], operations: float) -> float:
    least_s, end_s = float("inf"), perf_counter() + _LOOK_S
    while perf_counter() < end_s:
        begun_s = perf_counter()
        compute()
        least_s = min(least_s, perf_counter() - begun_s)
    return operations / least_s / 1e9


def least_ms(name: str, items: int, rate: float) -> float:
    """Return the least time that a batch can take at this rate, milliseconds."""
    return GIGA_OPERATIONS[name] * items / rate * 1e3


if __name__ == "__main__":
    for kind, rate in rates().items():
        print(f"{kind}: {rate:.0f} · 10⁹ operations/s")
