"""The plans of an ensemble on CPU cores (Partita's addition to the ensembles paper): a request waits for its
slowest member, so the cores are split among the members so that this one is as fast as it can be.

With fewer cores than members, or where that is notably sooner by the profiles, each member has all cores and
they take turns on them, under the core leases.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from partita.core.errors import NoFeasiblePlan
from partita.core.plan import InstanceSpec, Plan
from partita.planning.choices import ProfiledChoices
from partita.planning.joint import Demand, split
from partita.planning.optimizer import Optimizer

NOTABLY = 1.15
"""Turns cost something that no profile shows: they have to promise at least this much."""


class EnsemblePlanner:
    """Splits any number of cores among the members: to the division of the cores, the planner of one model.

    `optimizers` are those of the members, by name, for all cores of the machine.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self.optimizers = dict(optimizers)

    def plan(self, cores: int, batch: int, /) -> Plan:
        """Return the plan whose slowest member is the fastest, or that of all in turns on too few cores.

        Raises `NoFeasiblePlan` for a member that fits no number of cores.
        """
        try:
            return self.apart(cores, batch)
        except NoFeasiblePlan:
            return self._in_turns(cores, batch)

    def apart(self, cores: int, batch: int) -> Plan:
        """Return the plan whose members have cores of their own. Raises `NoFeasiblePlan` for too few."""
        demands = [Demand(name=n, optimizer=one, batch=batch) for n, one in self.optimizers.items()]
        joint = split(demands, cores)
        if joint.shared:
            raise NoFeasiblePlan(joint.text)
        parts = [
            named(self.optimizers[share.name].plan(share.cores, batch, early_answers=True), share.name)
            for share in joint.shares
        ]
        return joined(parts, cores, expected_ms=max(part.expected_ms or 0.0 for part in parts))

    def _in_turns(self, cores: int, batch: int) -> Plan:
        """Return every member's plan on all of the cores, which are numbered from 0."""
        parts = []
        for name, one in self.optimizers.items():
            part, free = one.plan(cores, batch, early_answers=True), iter(range(cores))
            own = tuple(i.placed(islice(free, i.threads)) for i in part.instances)
            parts.append(named(replace(part, instances=own), name))
        return in_turns(parts)

    def items_per_s(self, plan: Plan, /) -> float:
        """Return what a plan of `plan` can do: as much as its slowest member, or as all of them in turn."""
        return capacity(
            plan, [self.optimizers[name].items_per_s(part) for name, part in parts_of(plan).items()]
        )


def named(plan: Plan, member: str) -> Plan:
    """Return a plan's instances as those of one member."""
    return replace(plan, instances=tuple(replace(one, model=member) for one in plan.instances))


def joined(parts: Sequence[Plan], cores: int, *, expected_ms: float | None = None) -> Plan:
    """Return members' plans as one, whose batch is that of the member that takes fewest items."""
    return Plan(
        instances=tuple(one for part in parts for one in part.instances),
        cores=cores,
        batch=min(part.batch for part in parts),
        expected_ms=expected_ms,
    )


def in_turns(parts: Sequence[Plan]) -> Plan:
    """Return members' plans, which are placed on the same cores, as one."""
    threads = sum(one.threads for part in parts for one in part.instances)
    return joined(parts, threads, expected_ms=sum(part.expected_ms or 0.0 for part in parts))


def capacity(plan: Plan, rates: Sequence[float]) -> float:
    """Return what members of these capacities can do together, items per second."""
    if not all(rates):
        return 0.0
    return 1.0 / sum(1.0 / rate for rate in rates) if takes_turns(plan) else min(rates)


def parts_of(plan: Plan) -> dict[str, Plan]:
    """Return each member's part of a plan."""
    by_member: dict[str, list[InstanceSpec]] = {}
    for one in plan.instances:
        by_member.setdefault(one.model, []).append(one)
    return {
        name: Plan(
            instances=tuple(own),
            cores=sum(one.threads for one in own),
            batch=sum(one.batch for one in own),
            expected_ms=plan.expected_ms,
        )
        for name, own in by_member.items()
    }


def takes_turns(plan: Plan) -> bool:
    """Whether some instances execute on the same cores, or would, were they placed."""
    placed = [core for one in plan.instances for core in one.cores]
    return len(placed) > len(set(placed))


class EnsembleChoices:
    """What there is to choose from for one ensemble at run time; see `Choices`.

    `place` assigns cores to a plan of instances on distinct ones; `allowed` are the cores that there are.
    """

    def __init__(
        self,
        optimizers: Mapping[str, Optimizer],
        *,
        cores: int,
        max_batch: int,
        place: Callable[[Plan], Plan],
        allowed: Sequence[int] | None = None,
        together: bool = False,
    ) -> None:
        self._planner = EnsemblePlanner(optimizers)
        self._members = {
            name: ProfiledChoices(
                one, cores=cores, max_batch=max_batch, allowed=allowed, place=place, together=together
            )
            for name, one in optimizers.items()
        }
        self._cores = cores
        self._max_batch = max_batch
        self._place = place
        self._best: dict[int, Plan] = {}

    @property
    def max_batch(self) -> int:
        """Largest aggregate batch to plan for."""
        return self._max_batch

    def best(self, batch: int) -> Plan:
        """Return the plan of least latency: that of the slowest member, or of all in turn."""
        if batch not in self._best:
            self._best[batch] = self._find(batch)
        return self._best[batch]

    def _find(self, batch: int) -> Plan:
        shared = self._in_turns(batch)
        if len(self._members) > self._cores:
            return shared
        try:
            apart = self._planner.apart(self._cores, batch)
        except NoFeasiblePlan:
            return shared
        apart = self._place(apart)
        if self.latency_ms(shared, batch) * NOTABLY < self.latency_ms(apart, batch):
            return shared
        return apart

    def _in_turns(self, batch: int) -> Plan:
        return in_turns([named(one.best(batch), name) for name, one in self._members.items()])

    def rebatched(self, plan: Plan, batch: int) -> Plan | None:
        """Return the same instances with the best shares of this many items for each member."""
        parts = []
        for name, part in parts_of(plan).items():
            found = self._members[name].rebatched(part, batch)
            if found is None:
                return None
            parts.append(found)
        expected = [part.expected_ms or 0.0 for part in parts]
        total_ms = sum(expected) if takes_turns(plan) else max(expected)
        return joined(parts, plan.cores, expected_ms=total_ms)

    def thinner(self, plan: Plan, batch: int) -> Plan | None:  # noqa: ARG002
        """Return None: which member's instances are too wide is not known."""
        return None

    def latency_ms(self, plan: Plan, batch: int) -> float:
        """Return how long the plan takes for so many items: its slowest member, or all of them in turn."""
        times = [self._members[name].latency_ms(part, batch) for name, part in parts_of(plan).items()]
        return sum(times) if takes_turns(plan) else max(times)

    def execution_ms(self, plan: Plan, items: int) -> float:
        """Return how long one instance takes for a batch of its own, on average over all members'."""
        parts = parts_of(plan)
        total = sum(
            len(part.instances) * self._members[name].execution_ms(part, items)
            for name, part in parts.items()
        )
        return total / len(plan.instances)

    def items_per_s(self, plan: Plan) -> float:
        """Return the capacity: that of the slowest member, or of all in turn."""
        return capacity(
            plan, [self._members[name].items_per_s(part) for name, part in parts_of(plan).items()]
        )
