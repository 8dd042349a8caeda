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
    """Return the variants of a plan that are worth running, the fastest by the profile first.

    That with one execution for each instance is always: large points are run least often, and so are known
    the least.
    """
    variants = {plan.instances: plan for plan in _variants(optimizer, best)}
    variants.pop(best.instances, None)
    one_each = [_whole(optimizer, instance) for instance in best.instances]
    known = [instance for instance in one_each if instance is not None]
    whole = [_timed(optimizer, best, known)] if len(known) == len(one_each) else []
    near = [p for p in variants.values() if (p.expected_ms or 0.0) <= WITHIN * (best.expected_ms or 0.0)]
    ordered = sorted(near, key=lambda p: p.expected_ms or 0.0)
    return [plan for plan in (*whole, *ordered) if optimizer.fits(plan)]


def _variants(optimizer: Optimizer, plan: Plan) -> Iterator[Plan]:
    """Yield the plan with executions of at most every profiled size, where they can serve it."""
    if not optimizer.costs(plan.batch).micro_batches:
        return
    for columns in range(1, len(optimizer.table.batches) + 1):
        instances = [_limited(optimizer, instance, columns) for instance in plan.instances]
        smaller = [instance for instance in instances if instance is not None]
        if len(smaller) == len(instances):
            yield _timed(optimizer, plan, smaller)


def _whole(optimizer: Optimizer, instance: InstanceSpec) -> InstanceSpec | None:
    """Return the instance with one execution for its share; None where no such size was profiled."""
    table, row = optimizer.table, optimizer.table.row(instance.threads)
    if row is None or instance.batch not in table.batches:
        return None
    column = list(table.batches).index(instance.batch)
    is_known = table.latency_ms[row, column] < float("inf")
    return replace(instance, executions=(instance.batch,)) if is_known else None


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
