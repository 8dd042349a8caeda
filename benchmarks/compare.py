"""Compares two things on a noisy machine: A B A B …, then the median of the ratios with its 95 % interval."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import comb
from statistics import median
from typing import TextIO

CONFIDENCE = 0.95
MIN_ALTERNATIONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How B's figures stand to A's: one ratio b ÷ a for every alternation."""

    name: str
    unit: str
    a: tuple[float, ...]
    b: tuple[float, ...]
    ratio: float
    """Median of b ÷ a."""
    low: float
    high: float
    """Interval that holds the true median with at least `confidence`, from the order of the ratios alone."""
    confidence: float

    @classmethod
    def of(cls, name: str, a: Sequence[float], b: Sequence[float], *, unit: str = "") -> "Comparison":
        """Compare figures taken in pairs; all must be above zero."""
        if len(a) != len(b) or not a or min(*a, *b) <= 0:
            raise ValueError(f"{name}: pairs of positive figures are needed, not {a} and {b}")
        ratios = sorted(y / x for x, y in zip(a, b, strict=True))
        low, high, confidence = median_interval(ratios)
        return cls(
            name=name,
            unit=unit,
            a=tuple(a),
            b=tuple(b),
            ratio=median(ratios),
            low=low,
            high=high,
            confidence=confidence,
        )

    @property
    def is_conclusive(self) -> bool:
        """Whether the interval leaves out 1, at the confidence that was aimed for."""
        return self.confidence >= CONFIDENCE and not self.low <= 1.0 <= self.high

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return (
            f"{self.name}: A {median(self.a):.4g}{unit}, B {median(self.b):.4g}{unit}, "
            f"B/A {self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}] "
            f"({self.confidence:.0%} of {len(self.a)} alternations)"
        )


def alternate(
    a: Callable[[], float],
    b: Callable[[], float],
    n: int = MIN_ALTERNATIONS,
    *,
    name: str = "B against A",
    unit: str = "",
    warm_up: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Run A B A B … `n` times each and compare what they return.

    Each pair is run close together in time, so that a drift of the machine meets both alike. The first run
    of each is thrown away with `warm_up`. `progress` is told the number of pairs done.
    """
    if warm_up:
        a()
        b()
    left: list[float] = []
    right: list[float] = []
    for done in range(1, n + 1):
        left.append(a())
        right.append(b())
        if progress is not None:
            progress(done)
    return Comparison.of(name, left, right, unit=unit)


def median_interval(ordered: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return (low, high, confidence reached) for the median of what these ascending values were drawn from.

    The k-th smallest and k-th largest of n values enclose the median with probability
    1 − 2·P(Binomial(n, ½) < k), whatever the distribution. The narrowest such pair that reaches the
    confidence is taken; with fewer than 6 values none does, and the whole range is returned.
    """
    n = len(ordered)
    best = 1
    for k in range(1, (n + 1) // 2 + 1):
        if _coverage(n, k) >= confidence:
            best = k
    return ordered[best - 1], ordered[n - best], _coverage(n, best)


def write_json(comparisons: Iterable[Comparison], file: TextIO) -> None:
    """Write all figures as one JSON document."""
    json.dump([asdict(comparison) for comparison in comparisons], file, indent=1)
    file.write("\n")


def _coverage(n: int, k: int) -> float:
    return 1.0 - 2.0 * (sum(comb(n, i) for i in range(k)) / float(2**n))
