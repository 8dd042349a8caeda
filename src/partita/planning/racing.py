"""Which of a few candidates is fastest, by measuring them in turns until all others have fallen behind.

The best of many short measurements is the luckiest as well, and a machine's speed drifts by more than close
candidates differ. So all are measured once in every round, in the opposite order every second time, and
only figures of one round are compared. This is successive elimination, tested by the order of figures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

Candidate = TypeVar("Candidate")


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceRules:
    """How long a race goes on."""

    least_rounds: int = 3
    """Before anybody is out, and before time may end it."""
    most_rounds: int = 12
    halving_rounds: int = 2
    """From `least_rounds` on, every so many rounds at most half of the candidates stay."""


@dataclass(frozen=True, slots=True)
class Raced(Generic[Candidate]):
    """How a race ended."""

    winner: Candidate
    rates: dict[Candidate, list[float]]
    """What each was measured at, one figure a round for as long as it took part."""


def race(
    candidates: Sequence[Candidate],
    bench: Callable[[Candidate], float],
    rules: RaceRules | None = None,
    *,
    kept: Sequence[Candidate] = (),
    is_over: Callable[[], bool] = lambda: False,
) -> Raced[Candidate]:
    """Return the fastest of the candidates; `kept` ones are measured in every round, however slow.

    Out is who was slower than the leader in every round, and now and then the slower half. Of those that stay
    to the end the one of the greatest median wins, the first of equal ones.
    """
    given = rules or RaceRules()
    rates: dict[Candidate, list[float]] = {one: [] for one in candidates}
    running = list(rates)
    for number in range(1, given.most_rounds + 1):
        for one in running if number % 2 else reversed(running):
            rates[one].append(bench(one))
        if number < given.least_rounds:
            continue
        halves = (number - given.least_rounds) % given.halving_rounds == 0
        staying = _staying(running, rates, halves=halves)
        running = [one for one in running if one in staying or one in kept]
        if is_over() or len(staying) == 1:
            break
    return Raced(_leader(running, rates), rates)


def _staying(
    running: Sequence[Candidate], rates: dict[Candidate, list[float]], *, halves: bool
) -> set[Candidate]:
    """Return those that are not out after this round."""
    leader = _leader(running, rates)
    staying = [one for one in running if any(a >= b for a, b in zip(rates[one], rates[leader], strict=True))]
    if halves:
        staying.sort(key=lambda one: -median(rates[one]))
        staying = staying[: max(2, -(-len(staying) // 2))]
    return {leader, *staying}


def _leader(running: Sequence[Candidate], rates: dict[Candidate, list[float]]) -> Candidate:
    return max(running, key=lambda one: median(rates[one]))
