"""The plan for a load whose batch size is not known (Partita's addition to Packrat).

Packrat plans for one B. A server that has just started does not know it, and a load changes. So the plan is
chosen that is least wrong: over B' = 1, 2, 4, … the largest ratio of its latency to that of the best plan for
B' is minimised. Ratios within 3 % of the least count as equal; among them the smallest mean ratio wins, then
the fewest instances. Looked at are the plans of equal instances of every profiled thread count, the best
plan for every B', and the best plans of other instance counts for several B'.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from partita.core.plan import Plan
from partita.planning import spread

if TYPE_CHECKING:
    from partita.planning.optimizer import Optimizer

NEAR = 1.03
CANDIDATES = 8
"""Plans of different instance counts looked at for a batch size."""

CORES_PER_STEP = 32
"""On more cores than this candidates are looked at for every second B' only, and so on: they take time."""


def choose(optimizer: "Optimizer", cores: int, max_batch: int) -> Plan:
    """Return the plan of least regret over batches 1 … `max_batch`; raises `NoFeasiblePlan`.

    The result is a plan for an aggregate batch of `max_batch` items.
    """
    largest = optimizer.plan(cores, max_batch, early_answers=True)
    batches = sorted({*(1 << k for k in range(max_batch.bit_length())), max_batch})
    best_ms = {batch: optimizer.plan(cores, batch).expected_ms or 0.0 for batch in batches}
    regret: dict[tuple[int, ...], tuple[float, float]] = {}
    for threads in set(_kinds(optimizer, cores, batches)):
        rows = [row for t in threads if (row := optimizer.table.row(t)) is not None]
        ratios = [spread.latency_ms(optimizer.costs(b), rows, b) / best_ms[b] for b in batches]
        regret[threads] = (max(ratios), sum(ratios) / len(ratios))
    worst, near = float("inf"), dict[tuple[int, ...], Plan]()
    for threads in sorted(regret, key=lambda t: (regret[t][0], len(t), t)):
        if regret[threads][0] > worst * NEAR:
            break
        plan = optimizer.spread(threads, cores, max_batch)
        if plan is not None:
            worst = min(worst, regret[threads][0])
            near[threads] = plan
    if not near:
        return largest
    return near[min(near, key=lambda t: (regret[t][1], len(t), t))]


def _kinds(optimizer: "Optimizer", cores: int, batches: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield the thread counts of the instances of every plan to look at; some more than once."""
    for threads, most in optimizer.most_instances(cores):
        yield (threads,) * min(most, batches[-1])
    step = 1 + cores // CORES_PER_STEP
    for batch in batches[::-1]:
        yield _threads(optimizer.plan(cores, batch))
    for batch in batches[::-step]:
        yield from map(_threads, optimizer.candidates(cores, batch, CANDIDATES))


def _threads(plan: Plan) -> tuple[int, ...]:
    return tuple(instance.threads for instance in plan.instances)
