"""Choices among the plans of one model in several runtimes: which is fastest differs from batch to batch.

All instances of one plan have the same runtime, and carry it (`InstanceSpec.runtime`); a change of runtime
is a change of plan like any other, with its handover.
"""

from collections.abc import Mapping
from dataclasses import replace

from partita.core.errors import NoFeasiblePlan
from partita.core.plan import Plan
from partita.core.profile import Profile
from partita.planning.choices import KnownChoices

CLEARLY = 0.05
"""Another runtime than the model's own is taken for a batch if it is at least this much faster."""


class VariedChoices:
    """The plans of one model; `own` are those of its own runtime, `others` of others, by their names."""

    def __init__(self, own: KnownChoices, others: Mapping[str, KnownChoices]) -> None:
        self._own = own
        self._others = dict(others)
        self._best: dict[int, Plan] = {}

    @property
    def max_batch(self) -> int:
        """Largest aggregate batch to plan for."""
        return self._own.max_batch

    def best(self, batch: int) -> Plan:
        """Return the best plan of the runtime that is fastest for this many items at once."""
        if batch not in self._best:
            self._best[batch] = self._fastest(batch)
        return self._best[batch]

    def _fastest(self, batch: int) -> Plan:
        best = self._own.best(batch)
        least_ms = self._own.latency_ms(best, batch) * (1.0 - CLEARLY)
        for runtime, choices in self._others.items():
            try:
                plan = choices.best(batch)
                took_ms = choices.latency_ms(plan, batch)
            except NoFeasiblePlan:
                continue
            if took_ms < least_ms:
                best, least_ms = executed_by(plan, runtime), took_ms
        return best

    def rebatched(self, plan: Plan, batch: int) -> Plan | None:
        """Return the same instances with the best shares of this many items; None where there are none."""
        return self._of(plan).rebatched(plan, batch)

    def thinner(self, plan: Plan, batch: int) -> Plan | None:
        """Return two instances of half the threads for each of the plan's, in the same runtime."""
        found = self._of(plan).thinner(plan, batch)
        return None if found is None else executed_by(found, _runtime_of(plan))

    def latency_ms(self, plan: Plan, batch: int) -> float:
        """Return how long the plan as it is takes for this many items that are there at once."""
        return self._of(plan).latency_ms(plan, batch)

    def items_per_s(self, plan: Plan) -> float:
        """Return the plan's capacity as it is, with full executions."""
        return self._of(plan).items_per_s(plan)

    def execution_ms(self, plan: Plan, items: int) -> float:
        """Return how long one of the plan's instances takes for a batch of its own; infinite if unknown."""
        return self._of(plan).execution_ms(plan, items)

    def _of(self, plan: Plan) -> KnownChoices:
        return self._others.get(_runtime_of(plan), self._own)


def executed_by(plan: Plan, runtime: str) -> Plan:
    """Return the plan with its instances in this runtime."""
    return replace(plan, instances=tuple(replace(one, runtime=runtime) for one in plan.instances))


def comparable(other: Profile, own: Profile) -> Profile:
    """Return what is known of another runtime at the points that are known of the model's own.

    So none looks better for having been measured at more, and all can be judged by either.
    """
    points = [point for key, point in other.points.items() if key in own.points]
    return Profile(points, provenance=other.provenance, load_s=other.load_s, finished=other.finished)


def _runtime_of(plan: Plan) -> str:
    return plan.instances[0].runtime
