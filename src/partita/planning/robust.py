"""The plan for a load whose batch size is not known (Partita's addition to Packrat).

Packrat plans for one B. A server that has just started does not know it, and a load changes. So the plan is
chosen that is least wrong: over B' = 1, 2, 4, … the largest ratio of its latency to that of the best plan for
B' is minimised. Ratios within 3 % of the least count as equal; among them the smallest mean ratio wins, then
the fewest instances.
"""

from typing import TYPE_CHECKING

from partita.core.errors import NoFeasiblePlan
from partita.core.plan import Plan

if TYPE_CHECKING:
    from partita.planning.optimizer import Optimizer

NEAR = 1.03
CANDIDATES = 8
"""Plans of different instance counts looked at for each batch size."""


def choose(optimizer: "Optimizer", cores: int, max_batch: int) -> Plan:
    """Return the plan of least regret over batches 1 … `max_batch`; raises `NoFeasiblePlan`.

    The result is a plan for an aggregate batch of `max_batch` items.
    """
    batches = [1 << k for k in range(max_batch.bit_length()) if 1 << k <= max_batch]
    best_ms = {batch: optimizer.plan(cores, batch).expected_ms or 0.0 for batch in batches}
    kinds: dict[tuple[int, ...], tuple[float, float]] = {}
    for batch in batches:
        for plan in optimizer.candidates(cores, batch, CANDIDATES):
            threads = tuple(instance.threads for instance in plan.instances)
            if threads not in kinds:
                ratios = [optimizer.latency_ms(plan, b) / best_ms[b] for b in batches]
                kinds[threads] = (max(ratios), sum(ratios) / len(ratios))
    if not kinds:
        raise NoFeasiblePlan(f"no plan on {cores} cores for batches up to {max_batch}")
    worst = min(ratio for ratio, _ in kinds.values())
    near = [threads for threads, (ratio, _) in kinds.items() if ratio <= worst * NEAR]
    for threads in sorted(near, key=lambda t: (kinds[t][1], len(t), t)):
        spread = optimizer.spread(threads, cores, max(max_batch, len(threads)))
        if spread is not None:
            return spread
    return optimizer.plan(cores, max_batch, early_answers=True)
