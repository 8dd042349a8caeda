"""Which batch size a load needs so that a plan can carry it (Partita's addition to Packrat).

A plan for fewer items at once is sooner with each of them, but does fewer of them a second. So the estimated
batch size has a floor: the rate at which items come. And where today's instances cannot keep up with it, or
only with batches far larger than it takes, the depth says nothing of the load: it is what has gathered.
"""

from math import log2

from partita.core.errors import NoFeasiblePlan
from partita.core.plan import Plan
from partita.planning.choices import Choices
from partita.planning.decisions import Seen
from partita.planning.switching import SwitchRules

NOTABLE = 0.02
"""A larger batch that adds less capacity than this is not worth the longer wait for its answers."""


def enough(choices: Choices, rate: float) -> int:
    """Return the least batch size at which the best plan does `rate` items/s; else that of the most."""
    batch = best = 1
    most = 0.0
    while True:
        capacity = choices.items_per_s(choices.best(batch))
        if capacity >= rate:
            return batch
        if capacity > most:
            best, most = batch, capacity
        if batch >= choices.max_batch:
            return best
        batch = min(2 * batch, choices.max_batch)


def is_strained(choices: Choices, rules: SwitchRules, plan: Plan, rate: float) -> bool:
    """Whether the plan's instances cannot carry the rate with a batch size at which the best plan can."""
    needed = rate / rules.planned_load
    try:
        same = choices.rebatched(plan, enough(choices, needed)) or plan
    except NoFeasiblePlan:
        return False
    return choices.items_per_s(same) < needed


def wanted_batch(choices: Choices, rules: SwitchRules, seen: Seen, *, strained: bool, timed_out: bool) -> int:
    """Return the batch size to plan for.

    Where the load is too much for today's instances it is the least that carries it; else B̃, or what
    really comes together where batches hardly ever fill, or the least above that carries the load.
    """
    if strained:
        return enough(choices, seen.rate / rules.planned_load)
    batch = min(seen.batch, choices.max_batch)
    if timed_out:
        batch = max(1, min(batch, 1 << round(log2(max(seen.together, 1.0)))))
    while rules.max_load * choices.items_per_s(choices.best(batch)) < seen.rate:
        if batch >= choices.max_batch:
            break
        batch = min(2 * batch, choices.max_batch)
    return batch


def widest_needed(choices: Choices, plan: Plan, needed: float) -> Plan:
    """Return the same instances with batches just large enough for `needed` items/s, or for the most."""
    wider, most, batch = plan, choices.items_per_s(plan), plan.batch
    while most < needed and batch < choices.max_batch:
        batch = min(2 * batch, choices.max_batch)
        found = choices.rebatched(plan, batch)
        if found is not None and choices.items_per_s(found) > most * (1.0 + NOTABLE):
            wider, most = found, choices.items_per_s(found)
    return wider
