"""Which candidate is fastest? Successive halving: a few points each, and those that cannot win are dropped.

One round measures one point ⟨t, b⟩ for every candidate that still stands. After a few rounds a candidate
is dropped unless at *some* point it was near the best: different batch sizes may have different winners.
How near it has to be tightens with every round. Where the time left does not suffice for a whole round, the
slower half is dropped, until it does or one is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log
from typing import NamedTuple

Point = tuple[int, int]
"""(threads, batch)."""


class Trial(NamedTuple):
    """What to measure next."""

    candidate: str
    threads: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingRules:
    """How candidates are compared.

    `spreads` says how much slower than the best a candidate may be and still stand after as many points:
    the first entry after `least_points`, the last one for all that follow. `visit_s` is about how long one
    point is measured, `executions` how often it is run at least.
    """

    least_points: int = 2
    spreads: tuple[float, ...] = (0.6, 0.4, 0.25, 0.15, 0.1)
    visit_s: float = 0.3
    executions: int = 4

    def spread_after(self, points: int) -> float:
        """Return how much slower a candidate may be after this many points; infinite before the first cut."""
        cut = points - self.least_points
        return inf if cut < 0 else self.spreads[min(cut, len(self.spreads) - 1)]

    def trial_s(self, expected_ms: float) -> float:
        """Return about how long a trial takes."""
        return max(self.visit_s, self.executions * expected_ms / 1e3)


class Halving:
    """Ask `next` with the time left, measure, `record` or `fail`; at the end `standing` holds the finalists.

    A point that is visited again counts with its shortest time: what disturbs a measurement makes it longer.
    """

    def __init__(
        self, candidates: Sequence[str], points: Sequence[Point], rules: HalvingRules | None = None
    ) -> None:
        assert candidates
        self.rules = rules or HalvingRules()
        self._standing = list(candidates)
        self._dropped: dict[str, str] = {}
        self._points = list(points)
        self._round = 0
        self._left: list[str] = list(candidates)
        """Who is still to be measured in this round."""
        self._ms: dict[str, dict[Point, float]] = {candidate: {} for candidate in candidates}

    @property
    def standing(self) -> tuple[str, ...]:
        """Candidates that may still win."""
        return tuple(self._standing)

    @property
    def dropped(self) -> Mapping[str, str]:
        """Why each of the others was dropped, in the order in which they were."""
        return dict(self._dropped)

    @property
    def rounds(self) -> int:
        """Rounds that all that stand have finished."""
        return self._round

    def latencies(self, candidate: str) -> dict[Point, float]:
        """Return what was measured of a candidate, milliseconds by point; infinite where it cannot be run."""
        return dict(self._ms[candidate])

    def next(self, left_s: float) -> Trial | None:
        """Return what to measure next in the time left; None at the end, or when one is left."""
        if not self._left:
            self._end_round()
        if self._round >= len(self._points) or (len(self._standing) < 2 and self._round):
            return None
        if len(self._left) == len(self._standing) and not self._make_fit(left_s):
            return None
        return Trial(self._left[0], *self._points[self._round]) if self._left else None

    def record(self, trial: Trial, mean_ms: float) -> None:
        """Take the time of one execution."""
        point = (trial.threads, trial.batch)
        measured = self._ms[trial.candidate]
        measured[point] = min(mean_ms, measured.get(point, inf))
        self._done(trial.candidate)

    def fail(self, trial: Trial) -> None:
        """Take that the candidate cannot run this point; it may be good at others."""
        self._ms[trial.candidate].setdefault((trial.threads, trial.batch), inf)
        self._done(trial.candidate)

    def drop(self, candidate: str, reason: str) -> None:
        """Take a candidate out. The last one stays."""
        if candidate in self._standing and len(self._standing) > 1:
            self._standing.remove(candidate)
            self._dropped[candidate] = reason
            self._done(candidate)

    def ratio(self, candidate: str) -> float:
        """Return the geometric mean of its times ÷ the best times, over the points that all standing have."""
        ratios = [self._ms[candidate].get(point, inf) / best for point, best in self._best().items()]
        if not ratios:
            return 1.0
        return exp(sum(map(log, ratios)) / len(ratios)) if all(map(isfinite, ratios)) else inf

    def _done(self, candidate: str) -> None:
        if candidate in self._left:
            self._left.remove(candidate)

    def _end_round(self) -> None:
        self._round += 1
        spread = self.rules.spread_after(self._round)
        best = self._best()
        for candidate in self._slowest_first():
            nearest = min((self._ms[candidate].get(p, inf) / ms for p, ms in best.items()), default=1.0)
            if nearest > 1.0 + spread:
                self.drop(candidate, f"at best {nearest:.2f} times the fastest's time")
        shift = self._round % len(self._standing)  # nobody is always first after a rest
        self._left = [*self._standing[shift:], *self._standing[:shift]]

    def _make_fit(self, left_s: float) -> bool:
        """Drop the slower half until a round fits in the time; returns whether it does."""
        while (needed_s := self._round_s()) > left_s:
            if len(self._standing) < 2 or not self._round:
                return False
            half = len(self._standing) // 2
            for candidate in self._slowest_first()[:half]:
                self.drop(
                    candidate, f"{self.ratio(candidate):.2f} times the fastest's time, and time was short"
                )
            if needed_s <= 0:
                return False
        return True

    def _round_s(self) -> float:
        """Return about how long the next round takes, seconds."""
        _, batch = self._points[self._round]
        return sum(self.rules.trial_s(self._expected_ms(candidate, batch)) for candidate in self._left)

    def _expected_ms(self, candidate: str, batch: int) -> float:
        """Guess from the nearest batch that was measured, in proportion to the items; nought for none."""
        known = {b: ms for (_, b), ms in self._ms[candidate].items() if isfinite(ms)}
        if not known:
            return 0.0
        nearest = min(known, key=lambda b: abs(log(b / batch)))
        return known[nearest] * max(1.0, batch / nearest)

    def _best(self) -> dict[Point, float]:
        """Return the least time at each point that all standing candidates were measured at."""
        common = [p for p in dict.fromkeys(self._points) if all(p in self._ms[c] for c in self._standing)]
        best = {p: min(self._ms[c][p] for c in self._standing) for p in common}
        return {p: ms for p, ms in best.items() if isfinite(ms)}

    def _slowest_first(self) -> list[str]:
        return sorted(self._standing, key=self.ratio, reverse=True)
