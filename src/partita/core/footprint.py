"""What one instance of a model holds in its device's memory, by the items of a batch."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory by batch size: measured at a few sizes, or a static estimate, which it then says of itself."""

    points: tuple[tuple[int, int], ...]
    """(items of a batch, bytes held), fewest items first; at least one."""
    is_measured: bool

    def __post_init__(self) -> None:
        assert self.points, "a footprint has at least one point"
        assert list(self.points) == sorted(dict(self.points).items()), self.points

    @classmethod
    def measured(cls, points: Iterable[tuple[int, int]]) -> "Footprint":
        """Return one of these points. More items never hold less: what a batch took is kept."""
        held, ordered = 0, []
        for batch, nbytes in sorted(dict(points).items()):
            held = max(held, nbytes)
            ordered.append((batch, held))
        return cls(tuple(ordered), is_measured=True)

    @classmethod
    def estimated(cls, nbytes: int) -> "Footprint":
        """Return a guess that no batch size changes."""
        return cls(((1, nbytes),), is_measured=False)

    def at(self, batch: int) -> int:
        """Return the bytes with batches of so many items: on the lines through the points."""
        (low, least), (high, most) = self.points[0], self.points[-1]
        if batch <= low or low == high:
            return least
        for (below, held), (above, more) in zip(self.points, self.points[1:], strict=False):
            if batch <= above:
                return held + (more - held) * (batch - below) // (above - below)
        return most + (most - least) * (batch - high) // (high - low)

    def covers(self, batches: Iterable[int]) -> bool:
        """Whether it was measured at all of these sizes."""
        return self.is_measured and set(batches) <= dict(self.points).keys()
