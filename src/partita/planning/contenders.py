"""Plans worth running for a moment before one of them is taken (beyond Packrat, whose profile decides alone).

A profile is taken alone, at another moment, one execution at a time. What it cannot tell is how much
instances slow each other down, and whether executions one after another cost what they did apart. So the
plans to compare differ in kind: in the number of instances, and in the size of the executions that they run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from partita.core.plan import InstanceSpec, Plan
from partita.planning.micro_batches import batch_costs
from partita.planning.optimizer import Optimizer

WITHIN = 1.25
"""A variant expected to take longer than the best of its kind by this factor is not worth running."""


def contenders(optimizer: Optimizer, cores: int, batch: int, count: int) -> list[Plan]:
    """Return up to `count` plans that differ in kind, the fastest by the profile first.

    The best plan for each number of instances comes first, however slow alone: others may slow each other
    down by as much. Then come variants with smaller executions, of each kind in turn, the nearest first.
    Raises `InvalidInput` and `NoFeasiblePlan` as `Optimizer.plan` does.
    """
    kinds = optimizer.candidates(cores, batch, count)
    found = {plan.instances: plan for plan in kinds}
    rounds = zip_longest(*(_nearest(optimizer, plan) for plan in kinds))
    for plan in (plan for one_of_each in rounds for plan in one_of_each if plan is not None):
        if len(found) >= count:
            break
        found.setdefault(plan.instances, plan)
    return sorted(found.values(), key=lambda p: (p.expected_ms, len(p.instances)))


def _nearest(optimizer: Optimizer, best: Plan) -> list[Plan]:
    """Return the variants of a plan that are worth running, the fastest by the profile first."""
    variants = {plan.instances: plan for plan in _variants(optimizer, best)}
    variants.pop(best.instances, None)
    near = [p for p in variants.values() if (p.expected_ms or 0.0) <= WITHIN * (best.expected_ms or 0.0)]
    return sorted(near, key=lambda p: p.expected_ms or 0.0)


def _variants(optimizer: Optimizer, plan: Plan) -> Iterator[Plan]:
    """Yield the plan with executions of at most every profiled size, where they can serve it."""
    if not optimizer.costs(plan.batch).micro_batches:
        return
    for columns in range(1, len(optimizer.table.batches) + 1):
        instances = [_limited(optimizer, instance, columns) for instance in plan.instances]
        smaller = [instance for instance in instances if instance is not None]
        if len(smaller) == len(instances):
            variant = _timed(optimizer, plan, smaller)
            if optimizer.memory_of(variant) <= optimizer.memory_of(plan):
                yield variant


def _limited(optimizer: Optimizer, instance: InstanceSpec, columns: int) -> InstanceSpec | None:
    row = optimizer.table.row(instance.threads)
    assert row is not None, instance
    costs = batch_costs(optimizer.table.only(row, columns), instance.batch)
    if not costs.cost_ms[0, instance.batch] < float("inf"):
        return None
    return replace(instance, executions=costs.executions(0, instance.batch))


def _timed(optimizer: Optimizer, plan: Plan, instances: Sequence[InstanceSpec]) -> Plan:
    expected_ms = max(optimizer.instance_ms(instance) for instance in instances)
    return replace(plan, instances=tuple(instances), expected_ms=expected_ms)
