"""Which batch size a load needs so that a plan can carry it (Partita's addition to Packrat).

A plan for fewer items at once is sooner with each of them, but does fewer of them a second. So the estimated
batch size has a floor: the rate at which items come. And where today's instances cannot keep up with it, or
only with batches far larger than it takes, the depth says nothing of the load: it is what has gathered.
"""

from math import log2

from partita.core.errors import NoFeasiblePlan
from partita.core.plan import Plan
from partita.planning.choices import Choices
from partita.planning.decisions import Action, Reason, Seen
from partita.planning.switching import SwitchRules, Verdict

NOTABLE = 0.02
"""A larger batch that adds less capacity than this is not worth the longer wait for its answers."""
ALONE = 1.05
"""A depth below this: an arriving item finds no other."""


def enough(choices: Choices, rate: float, *, first: int = 1) -> int:
    """Return the least batch size, `first` or more, at which the best plan does `rate` items/s.

    Where none does, it is the one above which no plan does notably more.
    """
    batch = best = min(first, choices.max_batch)
    most = 0.0
    while True:
        capacity = choices.items_per_s(choices.best(batch))
        if capacity >= rate:
            return batch
        if capacity > most * (1.0 + NOTABLE):
            best, most = batch, capacity
        if batch >= choices.max_batch:
            return best
        batch = min(2 * batch, choices.max_batch)


def is_alone(seen: Seen) -> bool:
    """Whether items hardly ever meet: a client that waits is as fast as its answers, and strains nothing."""
    return seen.batch == 1 and seen.depth < ALONE


def is_strained(choices: Choices, rules: SwitchRules, plan: Plan, rate: float) -> bool:
    """Whether the plan's instances cannot carry the rate with a batch size at which the best plan can.

    Clients that wait for their answers send as fast as any plan is: one that hardly does more is no better.
    """
    needed = rate / rules.planned_load
    try:
        batch = enough(choices, needed)
        most = choices.items_per_s(choices.best(batch))
    except NoFeasiblePlan:
        return False
    capacity = choices.items_per_s(choices.rebatched(plan, batch) or plan)
    return capacity < needed and most > capacity * (1.0 + rules.warm_gain)


def wanted_batch(choices: Choices, rules: SwitchRules, seen: Seen, *, strained: bool, timed_out: bool) -> int:
    """Return the batch size to plan for.

    Where the load is too much for today's instances it is the least that carries it; else B̃, or what
    really comes together where batches hardly ever fill, or the least above that carries the load.
    """
    if is_alone(seen):
        return 1
    if strained:
        return enough(choices, seen.rate / rules.planned_load)
    batch = min(seen.batch, choices.max_batch)
    if timed_out:
        batch = max(1, min(batch, 1 << round(log2(max(seen.together, 1.0)))))
    return enough(choices, seen.rate / rules.max_load, first=batch)


def widest_needed(choices: Choices, plan: Plan, needed: float) -> Plan:
    """Return the same instances with batches just large enough for `needed` items/s, or for the most."""
    wider, most, batch = plan, choices.items_per_s(plan), plan.batch
    while most < needed and batch < choices.max_batch:
        batch = min(2 * batch, choices.max_batch)
        found = choices.rebatched(plan, batch)
        if found is not None and choices.items_per_s(found) > most * (1.0 + NOTABLE):
            wider, most = found, choices.items_per_s(found)
    return wider


def widened(
    choices: Choices, rules: SwitchRules, plan: Plan, came: float, gathered: float, interval_s: float
) -> tuple[Plan, Verdict] | None:
    """Return the same instances with batches large enough for what comes, items/s, and has gathered, items.

    The latter is to be worked off within an interval. None where the plan carries it all as it is, or
    larger batches are of no use.
    """
    capacity, rate = choices.items_per_s(plan), came + gathered / interval_s
    if plan.batch >= choices.max_batch or rate <= rules.max_load * capacity:
        return None
    wider = widest_needed(choices, plan, rate / rules.planned_load)
    gain = choices.items_per_s(wider) / capacity - 1.0
    if gain < rules.rebatch_gain:
        return None
    text = (
        f"{came:.3g} items/s and {gathered:.0f} items that have gathered are more than the {capacity:.3g}/s "
        f"that {plan} can do; {wider} can do {gain:.0%} more, and no worker is touched"
    )
    return wider, Verdict(Action.REBATCH, Reason.LOAD, text, gain=gain)


def narrowed(choices: Choices, rules: SwitchRules, plan: Plan, seen: Seen) -> tuple[Plan, Verdict] | None:
    """Return the same instances with batches for B̃, once what had gathered has been worked off.

    None where these are no smaller than today's, do not carry the rate, or are hardly any sooner.
    """
    less = choices.rebatched(plan, seen.batch)
    if less is None or less.batch >= plan.batch or rules.max_load * choices.items_per_s(less) < seen.rate:
        return None
    gain = choices.latency_ms(plan, seen.batch) / choices.latency_ms(less, seen.batch) - 1.0
    if gain < rules.rebatch_gain:
        return None
    text = f"what had gathered has been worked off: {less} answers {seen.batch} items {gain:.0%} sooner"
    return less, Verdict(Action.REBATCH, Reason.GAIN, text, gain=gain)
