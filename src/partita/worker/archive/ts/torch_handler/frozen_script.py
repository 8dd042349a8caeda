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
    """A network and its frozen form, which is used once it has answered a request as the original did.

    They are compared again at the 2nd, 4th, 8th … request, for inputs of other sizes and for weights that a
    handler has changed; where they ever differ, the original answers from then on.
    """

    def __init__(self, original: Any) -> None:
        self.original = original
        self._frozen: Any = None
        self._calls = 0
        self._is_given_up = False

    def __call__(self, data: Any) -> Any:
        """Return what the network answers."""
        self._calls += 1
        if self._is_given_up:
            return self.original(data)
        if self._frozen is not None and self._calls & (self._calls - 1):
            return self._frozen(data)
        return self._compared(data)

    def _compared(self, data: Any) -> Any:
        """Return the original's answer, and give up the frozen form unless it answers alike."""
        given = data.clone() if isinstance(data, torch.Tensor) else data  # which networks may write to
        answer = self.original(data)
        try:
            if self._frozen is None:
                self._frozen = self._freeze()
            is_alike = self._frozen is not None and _agree(answer, self._frozen(given))
        except Exception as error:  # it goes without
            log.info("the network cannot be frozen: %s", error)
            is_alike = False
        if not is_alike:
            self._is_given_up, self._frozen = True, None
        return answer

    def _freeze(self) -> Any:
        weights = sum(tensor.nbytes for tensor in self.original.parameters())
        return None if weights > LARGEST_BYTES else torch.jit.freeze(self.original)


def _agree(answer: Any, other: Any) -> bool:
    if not isinstance(answer, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if other.shape != answer.shape or other.dtype != answer.dtype:
        return False
    if not answer.is_floating_point():
        return bool(torch.equal(answer, other))
    largest = float(answer.abs().max()) if answer.numel() else 0.0
    return bool(torch.allclose(answer, other, rtol=0, atol=TOLERANCE * largest))
