"""Choices as the pace of what was executed corrects them (Partita's addition to Packrat)."""

from collections.abc import Callable

from partita.core.plan import Plan
from partita.planning.choices import KnownChoices, halves
from partita.planning.pace import Pace


class PacedChoices:
    """The plans of one model, judged by their profile and by the pace of those that were seen to run.

    `today` returns the plan that serves; `left` is the one before, to be set by whoever switches. `is_warm`
    tells whether all instances of a plan are loaded already.
    """

    def __init__(
        self, profiled: KnownChoices, pace: Pace, today: Callable[[], Plan], is_warm: Callable[[Plan], bool]
    ) -> None:
        self.profiled = profiled
        self._today = today
        self.left: Plan | None = None
        self._pace = pace
        self._is_warm = is_warm

    @property
    def max_batch(self) -> int:
        """Largest aggregate batch to plan for."""
        return self.profiled.max_batch

    def best(self, batch: int) -> Plan:
        """Return the best plan.

        Where executions take longer than the profile says, thinner instances may keep to it: those that are
        loaded already are worth finding out, and so is going back where they do not.
        """
        plans = [self.profiled.best(batch)]
        thinner = self.profiled.thinner(self._today(), batch) if batch > 1 and self._may_hope else None
        if thinner is not None and self._is_warm(thinner):
            plans.append(thinner)
        if batch > 1 and self.left is not None and self._pace.is_known(self.left, self._today()):
            before = self.profiled.rebatched(self.left, batch)
            plans += [] if before is None else [before]
        return min(plans, key=lambda plan: self.latency_ms(plan, batch))

    @property
    def _may_hope(self) -> bool:
        return (self._pace.now or 1.0) > 1.0

    def _pace_of(self, plan: Plan) -> float:
        is_thinner = sorted(i.threads for i in plan.instances) == sorted(halves(self._today()))
        is_hopeful = self._may_hope and is_thinner and self._is_warm(plan)
        return self._pace.of(plan, self._today(), is_hopeful=is_hopeful)

    def rebatched(self, plan: Plan, batch: int) -> Plan | None:
        """Return the same instances with the best shares of this many items; None where there are none."""
        return self.profiled.rebatched(plan, batch)

    def latency_ms(self, plan: Plan, batch: int) -> float:
        """Return how long the plan as it is takes for this many items that are there at once.

        An item that is alone is disturbed by nobody: what was seen under load says nothing of it.
        """
        pace = self._pace_of(plan) if batch > 1 else self._pace.now or 1.0
        return pace * self.profiled.latency_ms(plan, batch)

    def items_per_s(self, plan: Plan) -> float:
        """Return the plan's capacity as it is, with full executions."""
        return self.profiled.items_per_s(plan) / self._pace_of(plan)
