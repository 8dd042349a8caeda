"""A core for the head, where the head works as hard as the workers do (Partita's addition to Packrat)."""

from partita.core.plan import Plan
from partita.core.profile import Profile
from partita.planning.optimizer import Optimizer

HEAD_REQUEST_MS = 0.03
"""What a request costs the head beside its execution (docs/decisions/0006-a-core-for-the-head.md)."""
LEAST_SHARE = 0.5
"""Share of a core from which on the head gets one."""


def worker_cores(profile: Profile | None, cores: int, *, leaves_core: bool = True) -> int:
    """Return how many of a model's cores its instances get: all, or all but one that is left to the head.

    `leaves_core` says whether one may be: of several models none leaves one, since each would.

    When all cores are busy with requests of one item, h ÷ (h + w) of their time is the head's: h is
    what a request costs it, w the least core time that an item costs a worker. A profile that was not
    measured to its end may know of no instance that fits the others: then none is left.
    """
    if profile is None or not profile.points or cores < 2 or not leaves_core:
        return cores
    if min(profile.threads) > cores - 1:
        return cores
    item_ms = min(p.threads * p.mean_ms / p.batch for p in profile.points.values())
    head_cores = cores * HEAD_REQUEST_MS / (HEAD_REQUEST_MS + item_ms)
    return cores - 1 if head_cores >= LEAST_SHARE else cores


class LeavingPlanner:
    """Plans a model that is alone: with any number of cores, on those that its instances get of them."""

    def __init__(self, profile: Profile, optimizer: Optimizer) -> None:
        self._profile = profile
        self._optimizer = optimizer

    def plan(self, cores: int, batch: int, /) -> Plan:
        """Return the best plan; raises `NoFeasiblePlan`."""
        return self._optimizer.plan(worker_cores(self._profile, cores), batch)

    def items_per_s(self, plan: Plan, /) -> float:
        """Return what a plan can do, full executions."""
        return self._optimizer.items_per_s(plan)
