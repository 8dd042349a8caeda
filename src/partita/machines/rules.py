"""The rules that the head combines members' predictions by: mean, weighted mean, vote, maximum, median.

A rule is made for one request. It hears of each member's predictions once, in the order of the members,
and of those that answered only: what is missing has no weight. A user's own rule has the same three methods
and runs in a worker.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Rule(Protocol):
    """Combines the predictions for n items, one member after another."""

    def start(self, n_items: int, members: Sequence[str]) -> None:
        """There will be predictions for this many items by these members, in this order."""

    def update(self, rows: slice, member: str, predictions: Array) -> None:
        """Take one member's predictions for these items: (rows, *item shape). Not kept unless copied."""

    def finish(self) -> Any:
        """Return the combined predictions, (n_items, *item shape)."""


class WeightedMean:
    """Σ weight · P ÷ Σ weight over the members that answered. The paper's mean is that of equal weights.

    The paper adds P / M; dividing once, at the end, is as cheap, rounds once, and lets a member be missing.
    FP16 is summed in FP32.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    def start(self, n_items: int, members: Sequence[str]) -> None:  # noqa: ARG002
        """Begin with nothing."""
        self._n_items = n_items
        self._sum: Array | None = None
        self._dtype: np.dtype[Any] | None = None
        self._heard: set[str] = set()

    def _scored(self, member: str, predictions: Array) -> Array:
        """Return the weighted predictions, or themselves where the weight is 1."""
        weight = self._weights[member]
        return predictions if weight == 1 else predictions * predictions.dtype.type(weight)

    def update(self, rows: slice, member: str, predictions: Array) -> None:
        """Add to the sum."""
        if predictions.dtype == np.float16:
            self._dtype, predictions = predictions.dtype, predictions.astype(np.float32)
        if self._sum is None:
            self._sum = np.zeros((self._n_items, *predictions.shape[1:]), predictions.dtype)
        self._sum[rows] += self._scored(member, predictions)
        self._heard.add(member)

    def finish(self) -> Array:
        """Divide by the weights of those that answered."""
        assert self._sum is not None, "no member answered"
        self._sum /= self._sum.dtype.type(sum(self._weights[member] for member in sorted(self._heard)))
        return self._sum if self._dtype is None else self._sum.astype(self._dtype)


class Vote(WeightedMean):
    """Share of the votes for each class: every member votes for the largest along its last axis.

    Ties go to the lowest class, a member's own and, where one takes the class of most votes, those between
    classes: the largest value of the answer stands at the winner, and the first of equal ones counts.
    """

    def _scored(self, member: str, predictions: Array) -> Array:
        votes = np.zeros_like(predictions)
        np.put_along_axis(votes, predictions.argmax(axis=-1)[..., None], self._weights[member], axis=-1)
        return votes


class Maximum:
    """The largest prediction, element by element; NaN where a member says so."""

    def start(self, n_items: int, members: Sequence[str]) -> None:  # noqa: ARG002
        """Begin with nothing."""
        self._n_items = n_items
        self._largest: Array | None = None
        self._known = np.zeros(n_items, bool)

    def update(self, rows: slice, member: str, predictions: Array) -> None:  # noqa: ARG002
        """Keep what is larger."""
        if self._largest is None:
            self._largest = np.empty((self._n_items, *predictions.shape[1:]), predictions.dtype)
        known = self._known[rows]
        if known.all():
            np.maximum(self._largest[rows], predictions, out=self._largest[rows])
        else:
            assert not known.any(), "rows are taken whole"
            self._largest[rows] = predictions
            self._known[rows] = True

    def finish(self) -> Array:
        """Return the maximum."""
        assert self._largest is not None, "no member answered"
        return self._largest


class Median:
    """The median of the members that answered, element by element; of two middle ones their mean."""

    def start(self, n_items: int, members: Sequence[str]) -> None:
        """Begin with nothing."""
        self._n_items = n_items
        self._order = list(members)
        self._given: dict[str, Array] = {}

    def update(self, rows: slice, member: str, predictions: Array) -> None:
        """Keep a copy: a median needs all of them."""
        kept = self._given.get(member)
        if kept is None:
            kept = np.empty((self._n_items, *predictions.shape[1:]), predictions.dtype)
            self._given[member] = kept
        kept[rows] = predictions

    def finish(self) -> Array:
        """Return the median."""
        given = [self._given[member] for member in self._order if member in self._given]
        return np.asarray(np.median(np.stack(given), axis=0), given[0].dtype)


class Gathered:
    """No combination yet: all predictions, for a rule that runs in a worker."""

    def start(self, n_items: int, members: Sequence[str]) -> None:
        """Begin with nothing."""
        self._n_items = n_items
        self._given: dict[str, Array] = {}
        self._order = list(members)

    def update(self, rows: slice, member: str, predictions: Array) -> None:
        """Keep a copy."""
        kept = self._given.setdefault(
            member, np.empty((self._n_items, *predictions.shape[1:]), predictions.dtype)
        )
        kept[rows] = predictions

    def finish(self) -> list[Array]:
        """Return each member's predictions, in the order of the members."""
        return [self._given[member] for member in self._order if member in self._given]


FLOATING_ONLY = ("mean", "weighted", "vote", "median")
"""Rules that mean nothing for whole numbers."""


def rule_maker(name: str, weights: Mapping[str, float]) -> Callable[[], Rule]:
    """Return what makes a fresh rule for each request, by the name that ``ensemble.toml`` has for it."""
    equal = dict.fromkeys(weights, 1.0)
    makers: dict[str, Callable[[], Rule]] = {
        "mean": lambda: WeightedMean(equal),
        "weighted": lambda: WeightedMean(weights),
        "vote": lambda: Vote(weights),
        "max": Maximum,
        "median": Median,
        "gathered": Gathered,
    }
    return makers[name]
