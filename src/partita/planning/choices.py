"""What there is to choose from at run time: the plans of one model for T cores, and what each is good for.

The controller asks these questions once an interval. A plan is judged *as it is configured*: an instance
takes no more items at once than its plan says, whatever its cores could do.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from math import isinf
from typing import Protocol

from partita.core.errors import InvalidInput
from partita.core.plan import InstanceSpec, Plan
from partita.planning.optimizer import Optimizer


class Choices(Protocol):
    """The plans of one model. Answers may raise `NoFeasiblePlan`."""

    @property
    def max_batch(self) -> int:
        """Largest aggregate batch to plan for."""
        ...

    def best(self, batch: int) -> Plan:
        """Return the best plan for this many items at once."""
        ...

    def rebatched(self, plan: Plan, batch: int) -> Plan | None:
        """Return the same instances with the best shares of this many items; None where there are none."""
        ...

    def latency_ms(self, plan: Plan, batch: int) -> float:
        """Return how long the plan as it is takes for this many items that are there at once."""
        ...

    def items_per_s(self, plan: Plan) -> float:
        """Return the plan's capacity as it is, with full executions."""
        ...


class KnownChoices(Choices, Protocol):
    """Choices by profiles, which say something of other plans and of single executions too."""

    def thinner(self, plan: Plan, batch: int) -> Plan | None:
        """Return two instances of half the threads for each of the plan's, with the best shares of `batch`.

        None where no instance has more than one thread, or nothing is known of half of them.
        """
        ...

    def execution_ms(self, plan: Plan, items: int) -> float:
        """Return how long one of the plan's instances takes for a batch of its own; infinite if unknown."""
        ...


class ProfiledChoices:
    """Choices from one profile. Remembers its answers; `plan_ahead` makes them all beforehand.

    `place` assigns cores to a plan's instances, `allowed` are those that they may have (None = any).
    `together` says that a batch is partitioned over all instances at once (policy `aggregate`), and not taken
    by whichever is idle.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        cores: int,
        max_batch: int,
        place: Callable[[Plan], Plan] | None = None,
        allowed: Collection[int] | None = None,
        together: bool = False,
    ) -> None:
        if max_batch < 1:
            raise InvalidInput(f"largest batch {max_batch}: must be 1 or more")
        self._optimizer = optimizer
        self._cores = cores
        self._max_batch = max_batch
        self._place = place
        self._allowed = None if allowed is None else frozenset(allowed)
        self._together = together
        self._best: dict[int, Plan] = {}
        self._spreads: dict[tuple[tuple[int, ...], int], Plan | None] = {}
        self._thinner: dict[tuple[tuple[int, ...], int], Plan | None] = {}
        self._latency: dict[tuple[tuple[tuple[int, int], ...], int], float] = {}

    @property
    def max_batch(self) -> int:
        """Largest aggregate batch to plan for."""
        return self._max_batch

    def best(self, batch: int) -> Plan:
        """Return the plan of least latency, its executions as small as they may be without losing 2 %."""
        if batch not in self._best:
            plan = self._optimizer.plan(self._cores, batch, early_answers=True)
            self._best[batch] = plan if self._place is None else self._place(plan)
        return self._best[batch]

    def rebatched(self, plan: Plan, batch: int) -> Plan | None:
        """Return the same instances, each with its share of the batch and at least 1 item."""
        if not self._is_possible(plan):
            return None
        found = self._spread(tuple(i.threads for i in plan.instances), batch)
        return None if found is None else _placed_like(plan, found)

    def _spread(self, threads: tuple[int, ...], batch: int) -> Plan | None:
        key = (threads, max(batch, len(threads)))
        if key not in self._spreads:
            # A plan that is there may have more threads than plans are made for (planning/head_core.py).
            cores = max(self._cores, sum(threads))
            self._spreads[key] = self._optimizer.spread(threads, cores, key[1])
        return self._spreads[key]

    def _is_possible(self, plan: Plan) -> bool:
        """Whether all of its cores may be used; not so of a plan of before they were divided anew."""
        return self._allowed is None or all(self._allowed.issuperset(i.cores) for i in plan.instances)

    def thinner(self, plan: Plan, batch: int) -> Plan | None:
        """Return two instances of half the threads for each of the plan's that has more than one."""
        threads = halves(plan)
        if len(threads) == len(plan.instances) or not self._is_possible(plan):
            return None
        key = (threads, max(batch, len(threads)))
        if key not in self._thinner:
            found = self._spread(threads, batch)
            self._thinner[key] = self._place(found) if found is not None and self._place else found
        return self._thinner[key]

    def latency_ms(self, plan: Plan, batch: int) -> float:
        """Return the time until the last of `batch` items that are there at once is answered."""
        kinds = tuple((i.threads, i.batch if self._together else i.micro_batch) for i in plan.instances)
        key = (kinds, batch)
        if key not in self._latency:
            find = self._rounds_ms if self._together else self._makespan_ms
            self._latency[key] = find(kinds, batch)
        return self._latency[key]

    def execution_ms(self, plan: Plan, items: int) -> float:
        """Return how long one instance takes for a batch of its own, on average over the instances."""
        return sum(self._alone_ms(i.threads, items) for i in plan.instances) / len(plan.instances)

    def _rounds_ms(self, kinds: Sequence[tuple[int, int]], batch: int) -> float:
        """All instances take their shares of B items, and then of the next B."""
        capacity = sum(items for _, items in kinds)
        full, rest = divmod(batch, capacity)

        def round_ms(items: int) -> float:
            return max(self._alone_ms(threads, -(-items * most // capacity)) for threads, most in kinds)

        return full * (round_ms(capacity) if full else 0.0) + (round_ms(rest) if rest else 0.0)

    def _alone_ms(self, threads: int, items: int) -> float:
        row = self._optimizer.table.row(threads)
        return float("inf") if row is None else float(self._optimizer.costs(items).cost_ms[row, items])

    def _makespan_ms(self, kinds: Sequence[tuple[int, int]], batch: int) -> float:
        """Whoever is idle takes as much as it may."""
        free = [(0.0, at) for at in range(len(kinds))]
        heapify(free)
        left, last = batch, 0.0
        while left > 0:
            begins, at = free[0]
            threads, most = kinds[at]
            taken = min(most, left)
            ends = begins + self._alone_ms(threads, taken)
            if isinf(ends):
                return ends
            heapreplace(free, (ends, at))
            left -= taken
            last = max(last, ends)
        return last

    def items_per_s(self, plan: Plan) -> float:
        """Return the sum of the instances' rates, each with full executions of its own size."""
        total = 0.0
        for instance in plan.instances:
            items = instance.batch if self._together else instance.micro_batch
            total += 1000.0 * items / self._alone_ms(instance.threads, items)
        return total


def plan_ahead(choices: Choices) -> None:
    """Plan for every power of two now: milliseconds each on many cores, better not spent in a loop."""
    batch = 1
    while batch < choices.max_batch:
        choices.best(batch)
        batch *= 2
    choices.best(choices.max_batch)


def halves(plan: Plan) -> tuple[int, ...]:
    """Return the threads of two instances for each of the plan's, where it has more than one thread."""
    return tuple(
        half
        for i in plan.instances
        for half in ((i.threads // 2, i.threads - i.threads // 2) if i.threads > 1 else (1,))
    )


def _placed_like(old: Plan, new: Plan) -> Plan:
    """Return `new` on the cores of `old`, whose instances have the same threads in the same order."""
    pairs = zip(old.instances, new.instances, strict=True)
    return replace(new, instances=tuple(_moved(theirs, ours) for theirs, ours in pairs))


def _moved(old: InstanceSpec, new: InstanceSpec) -> InstanceSpec:
    assert old.threads == new.threads, (old, new)
    kept = replace(new, model=old.model, device=old.device, runtime=old.runtime)
    return kept.placed(old.cores, old.affinity)
