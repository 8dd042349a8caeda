"""Several models on one machine: how many cores each gets (Partita's addition to Packrat).

Each model's best plan gets no slower with more cores, so for a weighted latency λ each model needs a least
number of cores, and λ can be had if these fit into T together. The least such λ is one of the models' own
latencies, and is found by bisection over them. Cores that are left then go where they still help, to the
model that is slowest first.

Cores are one pool here: which of them a model gets, and that no instance spans two sockets, is for placement.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Protocol

from partita.core.errors import InvalidInput, NoFeasiblePlan
from partita.core.plan import Plan

LOAD_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Of a load that no division carries, the largest of these shares that one does is planned for."""


class Planner(Protocol):
    """What makes the plans of one model; an `Optimizer` is one."""

    def plan(self, cores: int, batch: int, /) -> Plan:
        """Return the best plan; raises `NoFeasiblePlan`."""
        ...

    def items_per_s(self, plan: Plan, /) -> float:
        """Return what a plan can do, full executions."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One model, and what is wanted of it."""

    name: str
    optimizer: Planner
    batch: int
    """Items at once, as estimated."""
    max_batch: int | None = None
    """Larger batches, up to this, may be planned for where the rate needs them; None = not."""
    weight: float = 1.0
    """How much its latency counts: twice as much = it should be half as long."""
    rate: float = 0.0
    """Items per second that its plan has to be able to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShare:
    """What one model gets."""

    name: str
    cores: int
    plan: Plan
    weighted_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlan:
    """Every model's share of the cores, in the order of the demands."""

    shares: tuple[ModelShare, ...]
    shared: bool
    """The models' cores are more than there are: they have to take turns, under the core leases."""
    text: str
    """Why, in words."""
    load_share: float = 1.0
    """Share of every demand's rate that the plans carry."""

    @property
    def worst_ms(self) -> float:
        """The largest weighted latency: what was minimised."""
        return max(share.weighted_ms for share in self.shares)


def split(demands: Sequence[Demand], cores: int) -> JointPlan:
    """Return the division of the cores with the least worst weighted latency.

    Where there are too few cores for every model to have its own, each gets the least that it can run on
    and they are to be shared. A load that no division carries is planned for as if it were less.
    Raises `InvalidInput` for demands that cannot be, and `NoFeasiblePlan` for a model that fits no number
    of cores.
    """
    _check(demands, cores)
    curves: list[_Curve] = []
    for share in LOAD_SHARES:
        curves = [_Curve(demand, cores, needed=share * demand.rate) for demand in demands]
        found = _solve(curves, cores)
        if found is not None:
            text = f"{cores} cores, divided"
            if share < 1.0:
                text = (
                    f"{cores} cores cannot carry all of the load, however divided; {share:.0%} of it they can"
                )
            return _joint(curves, found, text, load_share=share)
    least = [curve.least for curve in curves]
    text = (
        f"{len(demands)} models need {sum(least)} cores to have some of their own, and there are {cores}: "
        "they share them in turns"
    )
    return _joint(curves, least, text, load_share=0.0, shared=True)


def weighted_ms(demand: Demand, cores: int, *, load_share: float = 1.0) -> float:
    """Return a demand's weighted latency on so many cores; infinity where no plan carries its rate there."""
    return min(_Curve(demand, cores, needed=load_share * demand.rate, is_needed=False).weighted_ms)


def _check(demands: Sequence[Demand], cores: int) -> None:
    if not demands:
        raise InvalidInput("no models to divide the cores among")
    if cores < 1:
        raise InvalidInput(f"cores {cores}: must be 1 or more")
    for demand in demands:
        if not (isfinite(demand.weight) and demand.weight > 0.0):
            raise InvalidInput(f"model {demand.name!r}: weight {demand.weight}: must be more than 0")
        if not (isfinite(demand.rate) and demand.rate >= 0.0):
            raise InvalidInput(f"model {demand.name!r}: {demand.rate} items/s: must be 0 or more")


class _Curve:
    """One model's weighted latency by its number of cores: never more with more, since some may idle."""

    def __init__(self, demand: Demand, cores: int, *, needed: float, is_needed: bool = True) -> None:
        self.demand = demand
        self.weighted_ms = [inf]
        self._plans: list[Plan | None] = [None]
        why: NoFeasiblePlan | None = None
        for t in range(1, cores + 1):
            best_ms, best = self.weighted_ms[-1], self._plans[-1]
            try:
                plan = _carrying(demand, t, needed)
            except NoFeasiblePlan as error:
                plan, why = None, error
            if plan is not None:
                weighted_ms = demand.weight * (plan.expected_ms or 0.0)
                if weighted_ms < best_ms:
                    best_ms, best = weighted_ms, plan
            self.weighted_ms.append(best_ms)
            self._plans.append(best)
        if is_needed and needed == 0.0 and self._plans[-1] is None:
            raise NoFeasiblePlan(f"model {demand.name!r}: {why}")

    @property
    def least(self) -> int:
        """The fewest cores that it can run on."""
        return next(t for t, plan in enumerate(self._plans) if plan is not None)

    def needs(self, weighted_ms: float) -> int:
        """Return the fewest cores with which it is as fast as this; more than there are if it cannot be."""
        return bisect_left(self.weighted_ms, -weighted_ms, key=lambda ms: -ms)

    def share(self, cores: int) -> ModelShare:
        """Return its share with so many cores."""
        plan = self._plans[cores]
        assert plan is not None, (self.demand, cores)
        return ModelShare(name=self.demand.name, cores=cores, plan=plan, weighted_ms=self.weighted_ms[cores])


def _carrying(demand: Demand, cores: int, needed: float) -> Plan | None:
    """Return the plan for the least batch that carries so many items per second; None where there is none."""
    batch, most = demand.batch, demand.max_batch or 0
    while True:
        plan = demand.optimizer.plan(cores, batch)
        if demand.optimizer.items_per_s(plan) >= needed:
            return plan
        if batch >= most:
            return None
        batch = min(2 * batch, most)


def _solve(curves: Sequence[_Curve], cores: int) -> list[int] | None:
    """Return every model's number of cores, None if they do not fit together."""
    candidates = sorted({ms for curve in curves for ms in curve.weighted_ms if isfinite(ms)})

    def fits(ms: float) -> bool:
        return sum(curve.needs(ms) for curve in curves) <= cores

    first = bisect_left(candidates, True, key=fits)
    if first == len(candidates):
        return None
    found = [curve.needs(candidates[first]) for curve in curves]
    return _spend(curves, found, cores - sum(found))


def _spend(curves: Sequence[_Curve], found: list[int], left: int) -> list[int]:
    """Give the cores that are left to whoever they help, the slowest first, and only as many as help."""
    while True:
        for at in sorted(range(len(curves)), key=lambda at: -curves[at].weighted_ms[found[at]]):
            ms, now = curves[at].weighted_ms, found[at]
            better = next((t for t in range(now + 1, now + left + 1) if ms[t] < ms[now]), None)
            if better is not None:
                left -= better - now
                found[at] = better
                break
        else:
            return found


def _joint(
    curves: Sequence[_Curve],
    found: Sequence[int],
    text: str,
    *,
    load_share: float,
    shared: bool = False,
) -> JointPlan:
    shares = tuple(curve.share(cores) for curve, cores in zip(curves, found, strict=True))
    return JointPlan(shares=shares, shared=shared, text=text, load_share=load_share)
