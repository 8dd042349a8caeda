"""Combines the members' predictions for one request, in whatever order they arrive (ensembles paper, §II).

Predictions come as {member, rows, P}: rows may be a segment, or any batch that an instance happened to run.
Sums of floating-point numbers depend on their order, so a member's predictions are handed to the rule once
they are complete and those of all members before it are settled. The result is, to the bit, that of a
plain loop over the members, and a member that fails half-way leaves nothing behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import InferenceFailed
from partita.machines.rules import Rule

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOutput:
    """What one member's output is to the ensemble."""

    name: str
    order: tuple[int, ...] | None = None
    """Where the member has each of the ensemble's classes along its last axis; None = in the same place."""


class _Held:
    """What has arrived of one member."""

    __slots__ = ("array", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.array: Array | None = None


class Accumulator:
    """One request's predictions, members × items, on their way to one answer."""

    __slots__ = ("_held", "_members", "_n_items", "_next", "_rule", "_same_shape", "_shape", "dropped")

    def __init__(
        self, rule: Rule, members: Sequence[MemberOutput], n_items: int, *, same_shape: bool = True
    ) -> None:
        """`same_shape`: whether the rule needs all members' predictions of an item in one shape."""
        self._rule = rule
        self._members = members
        self._n_items = n_items
        self._same_shape = same_shape
        self._held = [_Held() for _ in members]
        self._next = 0
        """The first member that the rule has not heard of and that was not dropped."""
        self._shape: tuple[tuple[int, ...], str] | None = None
        self.dropped: set[int] = set()
        rule.start(n_items, [member.name for member in members])

    @property
    def is_complete(self) -> bool:
        """Whether every member has answered all items, or was dropped."""
        return self._next == len(self._members)

    def has_all_of(self, member: int) -> bool:
        """Whether a member's predictions are there for all items."""
        return self._held[member].rows == self._n_items

    def add(self, member: int, first: int, predictions: Array) -> None:
        """Take a member's predictions for the items from `first` on: (rows, *item shape), each item once.

        They are copied unless they are used at once. Raises `InferenceFailed` naming the member if their
        item shape is not that of the others; the request cannot be answered then.
        """
        held = self._held[member]
        rows = len(predictions)
        assert member not in self.dropped, self._members[member].name
        assert 0 < rows <= self._n_items - max(first, held.rows), (first, rows, held.rows)
        self._check_shape(member, predictions.shape[1:])
        held.rows += rows
        if rows == self._n_items and member == self._next:
            self._hand_on(member, predictions)
            self._settle()
            return
        if held.array is None:
            held.array = np.empty((self._n_items, *predictions.shape[1:]), predictions.dtype)
        held.array[first : first + rows] = predictions
        if held.rows == self._n_items:
            self._settle()

    def drop(self, member: int) -> None:
        """Go on without a member: its predictions have no weight. One that has answered everything stays."""
        if not self.has_all_of(member):
            self.dropped.add(member)
            self._held[member] = _Held()
            self._settle()

    def finish(self) -> Any:
        """Return the combined predictions; only once complete, and while somebody has answered."""
        assert self.is_complete
        assert len(self.dropped) < len(self._members), "nobody answered"
        return self._rule.finish()

    def _settle(self) -> None:
        """Hand on, in the order of the members, whatever is complete."""
        while self._next < len(self._members):
            held = self._held[self._next]
            if self._next in self.dropped:
                self._next += 1
            elif held.rows == self._n_items and held.array is not None:
                array, held.array = held.array, None
                self._hand_on(self._next, array)
            else:
                return

    def _hand_on(self, member: int, predictions: Array) -> None:
        self._next = member + 1
        known = self._members[member]
        if known.order is not None:
            predictions = predictions[..., list(known.order)]
        self._rule.update(slice(0, self._n_items), known.name, predictions)

    def _check_shape(self, member: int, shape: tuple[int, ...]) -> None:
        known = self._members[member]
        name = known.name
        if known.order is not None and shape[-1:] != (len(known.order),):
            raise InferenceFailed(
                f"member {name} answered items of shape {list(shape)}, and has {len(known.order)} classes"
            )
        if self._shape is None:
            self._shape = shape, name
        elif self._same_shape and self._shape[0] != shape:
            raise InferenceFailed(
                f"member {name} answered items of shape {list(shape)} and member {self._shape[1]} of shape "
                f"{list(self._shape[0])}; these cannot be combined"
            )


def class_order(ensemble: Sequence[str], member: Sequence[str]) -> tuple[int, ...] | None:
    """Return `MemberOutput.order` for a member whose classes are those of the ensemble in another order."""
    assert set(ensemble) == set(member), (ensemble, member)
    order = tuple(member.index(name) for name in ensemble)
    return None if order == tuple(range(len(order))) else order
