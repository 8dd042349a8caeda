"""Verifies plans by running them with all instances at once, since profiles were taken alone (DESIGN §4).

Plans take turns, so that a machine that becomes slower does so for all of them; one that is slower than the
best in so many turns that it is hardly chance drops out, and leaves the time to those that are near. The best
is measured once more at the end: the least of several noisy figures is too good to be true.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from statistics import median

from partita.core.clock import Clock
from partita.core.errors import InvalidInput
from partita.core.plan import Plan
from partita.profiling.crew import Crew, CrewSettings

_LEAST_TURNS = 5
_BURST = 3
"""Batches in one turn; the first wakes the workers up and is not counted."""
_DEVIATIONS = 2.5
"""Standard deviations from half of the turns at which a plan counts as slower: by chance 1 in 150."""


def verify_plans(
    settings: CrewSettings, plans: Sequence[Plan], *, seconds: float, clock: Clock
) -> list[Plan]:
    """Return the plans with `measured_ms`, the fastest first; those that dropped out come last.

    `measured_ms` is the median time of one aggregate batch, from when its first instance begins until the
    last is over. `seconds` is for all plans together, loading not counted. Plans must be placed: every
    instance with its cores. Raises `LoadFailed` or `ExecutionFailed`.
    """
    if not plans:
        return []
    for plan in plans:
        if any(not instance.cores for instance in plan.instances):
            raise InvalidInput(f"plan {plan} has no cores assigned; place it first")
    largest = max(instance.batch for plan in plans for instance in plan.instances)
    with Crew(settings, largest=largest) as crew:
        for plan in plans:
            crew.load(plan)
        return _contest(crew, plans, seconds, clock)


def _contest(crew: Crew, plans: Sequence[Plan], seconds: float, clock: Clock) -> list[Plan]:
    for plan in plans:
        _turn_ms(crew, plan)
    turns: list[list[list[float]]] = [[] for _ in plans]
    standing = list(range(len(plans)))
    end_s = clock.now_s() + seconds
    while len(turns[standing[0]]) < _LEAST_TURNS or (len(standing) > 1 and clock.now_s() < end_s):
        for k in standing:
            turns[k].append(_turn_ms(crew, plans[k]))
        standing = _still_standing(standing, turns)
    best = _ordered(standing, turns)[0]
    again = [_turn_ms(crew, plans[best]) for _ in range(_LEAST_TURNS)]
    order = _ordered(standing, turns) + _ordered([k for k in range(len(plans)) if k not in standing], turns)
    turns[best] = again
    return [replace(plans[k], measured_ms=median(ms for turn in turns[k] for ms in turn)) for k in order]


def _still_standing(standing: Sequence[int], turns: Sequence[Sequence[Sequence[float]]]) -> list[int]:
    """Return the plans that were not slower than the best in nearly all turns."""
    best = _ordered(standing, turns)[0]
    count = len(turns[best])
    limit = count / 2 + _DEVIATIONS * sqrt(count) / 2
    lost = {k: sum(min(a) > min(b) for a, b in zip(turns[k], turns[best], strict=True)) for k in standing}
    return [k for k in standing if lost[k] < limit]


def _ordered(which: Sequence[int], turns: Sequence[Sequence[Sequence[float]]]) -> list[int]:
    """Return these plans, the fastest first: by the median of their turns, each taken at its least."""
    return sorted(which, key=lambda k: median(min(turn) for turn in turns[k]))


def _turn_ms(crew: Crew, plan: Plan) -> list[float]:
    with crew.awake(plan):
        return [crew.batch_ms(plan) for _ in range(_BURST)][1:]
