"""A model with a profile for the tests of adaptation, and a load as a list of depths."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from partita.core.plan import Plan
from partita.core.profile import Profile, ProfilePoint
from partita.planning.choices import ProfiledChoices
from partita.planning.controller import Controller
from partita.planning.decisions import Action, Decision
from partita.planning.estimator import EstimatorRules
from partita.planning.load import Sample
from partita.planning.optimizer import Optimizer
from partita.planning.switching import SwitchRules

CORES = 8
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def profile() -> Profile:
    """One instance of 8 threads is best for 1 item, 8 of one thread for 64: 1.4 times as fast."""
    return Profile(
        ProfilePoint(threads=t, batch=b, mean_ms=10.0 + b * (1.0 + 15.0 / t))
        for t in range(1, CORES + 1)
        for b in BATCHES
    )


@cache
def choices() -> ProfiledChoices:
    return ProfiledChoices(Optimizer(profile()), cores=CORES, max_batch=128)


def plan_for(batch: int) -> Plan:
    return choices().best(batch)


def controller(
    plan: Plan | None = None, rules: SwitchRules | None = None, *, warm: bool = False
) -> Controller:
    known = choices()
    return Controller(
        known,
        plan or known.best(1),
        now_s=0.0,
        estimator=EstimatorRules(max_batch=known.max_batch),
        switching=rules or SwitchRules(switch_s=2.0),
        is_warm=lambda _: warm,
    )


class Drive:
    """Shows a controller a depth for each sample, and carries out switches after `takes_s`."""

    def __init__(
        self,
        controller: Controller,
        *,
        takes_s: float = 0.0,
        fails: bool = False,
        pace: Callable[[Plan], float] | None = None,
    ) -> None:
        self.controller = controller
        self.now_s = 0.0
        self.takes_s = takes_s
        self.fails = fails
        self.pace = pace
        """Measured by profiled time of a plan's executions; None where none are shown."""
        self.decisions: list[Decision] = []
        self._done_s: float | None = None

    def show(self, depths: Iterable[float], *, arrived: int = 1, standing: int = 0) -> "Drive":
        for depth in depths:
            self.now_s += self.controller.sample_s
            self._finish_switch()
            self.controller.observe(self._sample(depth, arrived, standing))
            decision = self.controller.decide(self.now_s)
            if decision is not None:
                self.decisions.append(decision)
                if decision.action is Action.SWITCH:
                    self._done_s = self.now_s + self.takes_s
        return self

    def _sample(self, depth: float, arrived: int, standing: int) -> Sample:
        sample = Sample(now_s=self.now_s, depth=depth, arrived=arrived, standing=standing)
        if self.pace is None:
            return sample
        took_s = 0.4 * self.pace(self.controller.plan)
        return replace(sample, executed=4, executed_s=took_s, profiled_s=0.4)

    def _finish_switch(self) -> None:
        if self._done_s is not None and self.now_s >= self._done_s:
            self._done_s = None
            if self.fails:
                self.controller.switch_failed(self.now_s, "no memory")
            else:
                self.controller.switched(self.now_s, cost_s=0.5)

    def intervals(self, count: int, depth: float, *, arrived: int = 1) -> "Drive":
        return self.show([depth] * (count * self.controller.estimator_rules.samples), arrived=arrived)

    @property
    def switches(self) -> list[Decision]:
        return [d for d in self.decisions if d.action is Action.SWITCH]
