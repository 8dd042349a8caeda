"""TorchScript, frozen where that changes no answer: constants folded, batch normalization in convolutions."""

import logging
from typing import Any

import torch

log = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Largest difference from the original's answer, as a share of that answer's largest value."""
LARGEST_BYTES = 2 << 30
"""Networks with more weights stay as they are: both are kept in memory."""


class FrozenScript:
    """A network and its frozen form, which is used once it has answered a request as the original did."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self._frozen: Any = None
        self._is_tried = False

    def __call__(self, data: Any) -> Any:
        """Return what the network answers."""
        if self._frozen is not None:
            return self._frozen(data)
        answer = self.original(data)
        if not self._is_tried:
            self._is_tried = True
            self._frozen = self._frozen_if_equal(data, answer)
        return answer

    def _frozen_if_equal(self, data: Any, answer: Any) -> Any:
        weights = sum(tensor.nbytes for tensor in self.original.parameters())
        if weights > LARGEST_BYTES or not isinstance(answer, torch.Tensor):
            return None
        try:
            frozen = torch.jit.freeze(self.original)
            other = frozen(data)
        except Exception as error:  # it goes without
            log.info("the network cannot be frozen: %s", error)
            return None
        return frozen if _agree(answer, other) else None


def _agree(answer: Any, other: Any) -> bool:
    if not isinstance(other, torch.Tensor) or other.shape != answer.shape or other.dtype != answer.dtype:
        return False
    if not answer.is_floating_point():
        return bool(torch.equal(answer, other))
    largest = float(answer.abs().max()) if answer.numel() else 0.0
    return bool(torch.allclose(answer, other, rtol=0, atol=TOLERANCE * largest))
