"""Chooses plans from a profile: the face of this package (Packrat §3.3 and what Partita adds to it)."""

from collections.abc import Iterable
from dataclasses import replace
from math import inf, isinf
from typing import NamedTuple

from partita.core.errors import InvalidInput, NoFeasiblePlan
from partita.core.plan import InstanceSpec, Objective, Plan
from partita.core.profile import Profile
from partita.planning import robust, spread, throughput
from partita.planning.memory import FrugalSearch
from partita.planning.micro_batches import BatchCosts, batch_costs
from partita.planning.table import LatencyTable
from partita.planning.threshold import Search, Share, allotments, solve

PRICES = 8
"""How many prices of memory are tried for a plan of most items per second that fits."""

EARLY_SLACK = 0.02
"""How much longer a share may take in smaller executions, which answer earlier and pipeline better."""


class Question(NamedTuple):
    """What a plan is the answer to."""

    cores: int
    batch: int
    objective: Objective
    limit_ms: float | None
    early_answers: bool


class Optimizer:
    """Answers "which instances for T cores and B items?" from one profile, and remembers its answers.

    `sockets` are the cores of each socket (default: one socket of any size); no instance spans two, and
    fewer cores than they have together may be planned for: then the best share of each socket is found.
    With `micro_batches` off an instance runs one execution per dispatch, as in the paper, except that it
    may pad its items to a larger profiled size. `memory_bytes` bounds the sum over the instances of the
    largest memory that the profile records for the sizes they execute; plans never exceed it, and where
    the fastest does, a slower one that fits is chosen. `max_instance_batch` bounds the items of one
    instance in one dispatch.

    Raises `InvalidInput` if an argument, or the profile, cannot be planned with.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        sockets: tuple[int, ...] | None = None,
        micro_batches: bool = True,
        memory_bytes: int | None = None,
        max_instance_batch: int | None = None,
    ) -> None:
        self.table = LatencyTable.of(profile)
        if sockets is not None and (not sockets or min(sockets) < 1):
            raise InvalidInput(f"sockets {sockets}: give at least one socket, each with 1 or more cores")
        if memory_bytes is not None and self.table.memory_bytes is None:
            raise InvalidInput(
                "a memory limit needs a profile that records memory; profile again, or drop it"
            )
        if max_instance_batch is not None and max_instance_batch < 1:
            raise InvalidInput(f"largest batch of an instance {max_instance_batch}: must be 1 or more")
        self._sockets = sockets
        self._micro_batches = micro_batches
        self._memory_bytes = memory_bytes
        self._max_share = max_instance_batch
        self._costs: BatchCosts | None = None
        self._plans: dict[Question, Plan] = {}
        self._robust: dict[tuple[int, int], Plan] = {}

    def plan(
        self,
        cores: int,
        batch: int,
        objective: Objective = Objective.LATENCY,
        limit_ms: float | None = None,
        *,
        early_answers: bool = False,
    ) -> Plan:
        """Return the best plan for exactly `batch` items on at most `cores` cores; cached.

        `LATENCY`: least time until all items are answered; ties go to fewer instances. `THROUGHPUT`: most
        Σ b_j / latency_j, for instances that each take their next items without waiting for the others.
        `limit_ms` bounds the time of every instance. With `early_answers` each instance's items are run
        as the smallest executions that take at most 2 % longer; `expected_ms` is then that longer time.

        Raises `NoFeasiblePlan`, saying what is missing, and `InvalidInput` for an impossible argument.
        """
        question = Question(cores, batch, objective, limit_ms, early_answers)
        found = self._plans.get(question)
        if found is None:
            self._check(cores, batch, limit_ms)
            find = self._fastest if objective is Objective.LATENCY else self._steadiest
            found = self._plans[question] = find(question)
        return found

    def candidates(self, cores: int, batch: int, count: int) -> list[Plan]:
        """Return up to `count` different plans, the best for each number of instances, fastest first.

        They are for verification by running: profiles are taken alone and thin instances slow each other
        down, so the best plan of all is among plans that differ in kind, not among near-copies. Where the
        best for a number of instances leaves cores idle, so does the profile's word for it: the one that
        shares all of them equally is there too.
        """
        if count < 1:
            raise InvalidInput(f"candidates {count}: ask for 1 or more")
        best = self.plan(cores, batch)
        search = Search(self.costs(batch), self._sockets_of(cores), cores, batch, self._max_share)
        found = [best]
        for instances in instance_counts(min(cores, batch)):
            solution = search.exactly(instances) if instances != len(best.instances) else None
            if solution is not None:
                plan = self.of_shares(solution.shares, cores, batch)
                if self.fits(plan):
                    found.append(plan)
            equal = self._equal(instances, cores, batch)
            if equal is not None and not any(same_threads(equal, plan) for plan in found):
                found.append(equal)
        return sorted(found, key=lambda p: (p.expected_ms, len(p.instances)))[:count]

    def _equal(self, instances: int, cores: int, batch: int) -> Plan | None:
        """Return the plan of so many instances that share all cores equally; None if there is none."""
        sockets = self._sockets_of(cores)
        each, rest = divmod(instances, len(sockets))
        if rest or sum(sockets) != cores or min(sockets) < each:
            return None
        return self.spread([min(sockets) // each] * instances, cores, batch)

    def latency_ms(self, plan: Plan, batch: int) -> float:
        """Return the least time in which the plan's instances answer `batch` items, spread at best.

        What counts of the plan is the threads of its instances; any of the profiled sizes may be run.

        Raises `NoFeasiblePlan` if they cannot, or were never profiled.
        """
        if batch < 1:
            raise InvalidInput(f"batch {batch}: must be 1 or more")
        latency = spread.latency_ms(self.costs(batch), self._rows(plan.instances), batch)
        if isinf(latency):
            raise NoFeasiblePlan(f"the instances {plan} cannot serve {batch} items with the profiled sizes")
        return latency

    def items_per_s(self, plan: Plan) -> float:
        """Return Σ b_j / latency_j of the plan's instances, each at its own pace."""
        return sum(1000.0 * instance.batch / self.instance_ms(instance) for instance in plan.instances)

    def instance_ms(self, instance: InstanceSpec) -> float:
        """Return the profiled time of the instance's executions, one after another.

        Raises `NoFeasiblePlan` if one of them was not profiled.
        """
        times = [self.table.at_ms(instance.threads, size) for size in instance.executions]
        if None in times:
            raise NoFeasiblePlan(
                f"{instance.threads} threads with executions {instance.executions} were not all profiled"
            )
        return sum(ms for ms in times if ms is not None)

    def robust(self, cores: int, max_batch: int) -> Plan:
        """Return the plan for a load of unknown batch sizes up to `max_batch`; see `planning.robust`."""
        key = (cores, max_batch)
        if key not in self._robust:
            self._robust[key] = robust.choose(self, cores, max_batch)
        return self._robust[key]

    def most_instances(self, cores: int) -> list[tuple[int, int]]:
        """Return every profiled thread count with how many of its instances the cores have room for."""
        ways = allotments(self._sockets_of(cores), cores)
        rooms = [(int(t), int((ways // t).sum(axis=1).max())) for t in self.table.threads]
        return [(threads, most) for threads, most in rooms if most > 0]

    def costs(self, batch: int) -> BatchCosts:
        """Return what 0..`batch` items, or more, cost an instance of each profiled thread count."""
        if self._costs is None or self._costs.max_batch < batch:
            width = 1 << (batch - 1).bit_length()
            self._costs = batch_costs(self.table, width, micro_batches=self._micro_batches)
        return self._costs

    def spread(self, threads: Iterable[int], cores: int, batch: int) -> Plan | None:
        """Return the plan of just these instances for `batch` items, None if they cannot serve them."""
        rows = [self.table.row(t) for t in threads]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            return None
        shares = spread.shares(self.costs(batch), known, batch, self._max_share)
        if shares is None:
            return None
        plan = self.of_shares(shares, cores, batch, early_answers=True)
        return plan if self.fits(plan) else None

    def of_shares(
        self,
        shares: Iterable[Share],
        cores: int,
        batch: int,
        *,
        objective: Objective = Objective.LATENCY,
        early_answers: bool = False,
        limit_ms: float = inf,
    ) -> Plan:
        """Return the plan of instances with these shares of the batch."""
        shares = list(shares)
        costs = self.costs(batch)
        specs: dict[Share, InstanceSpec] = {}  # most instances are alike
        for row, items in dict.fromkeys(shares):
            threads = int(self.table.threads[row])
            spec = InstanceSpec(threads=threads, batch=items, executions=costs.executions(row, items))
            if early_answers:
                early = replace(spec, executions=costs.executions(row, items, slack=EARLY_SLACK))
                spec = early if self.instance_ms(early) <= limit_ms else spec
            specs[row, items] = spec
        return self._plan([specs[share] for share in shares], cores, batch, objective)

    def _plan(self, instances: list[InstanceSpec], cores: int, batch: int, objective: Objective) -> Plan:
        return Plan(
            instances=tuple(instances),
            cores=cores,
            batch=batch,
            objective=objective,
            expected_ms=max(self.instance_ms(instance) for instance in set(instances)),
            fat_ms=self.table.at_ms(cores, batch),
        )

    def _fastest(self, question: Question) -> Plan:
        cores, batch, objective, limit_ms, early = question
        sockets = self._sockets_of(cores)
        solution = solve(self.costs(batch), sockets, cores, batch, self._max_share)
        if solution is None:
            raise NoFeasiblePlan(self._why_not(cores, batch))
        plan = self.of_shares(
            solution.shares, cores, batch, early_answers=early, limit_ms=inf if limit_ms is None else limit_ms
        )
        if not self.fits(plan):
            plan = self._frugal(cores, batch, solution.latency_ms, objective)
        if limit_ms is not None and plan.expected_ms is not None and plan.expected_ms > limit_ms:
            raise NoFeasiblePlan(_too_slow(question, plan.expected_ms))
        return plan

    def _frugal(self, cores: int, batch: int, at_least_ms: float, objective: Objective) -> Plan:
        assert self._memory_bytes is not None
        search = FrugalSearch(
            self.table,
            self._sockets_of(cores),
            cores,
            batch,
            micro_batches=self._micro_batches,
            max_share=self._max_share,
        )
        found = search.solve(self._memory_bytes, at_least_ms)
        if found is None:
            raise NoFeasiblePlan(
                f"no plan for batch {batch} on {cores} cores fits in {self._memory_bytes / 2**20:.0f} MiB; "
                f"the smallest needs {search.least_bytes() / 2**20:.0f} MiB"
            )
        instances = [
            InstanceSpec(threads=int(self.table.threads[one.row]), batch=one.items, executions=one.executions)
            for one in found[1]
        ]
        return self._plan(instances, cores, batch, objective)

    def _steadiest(self, question: Question) -> Plan:
        cores, batch, objective, limit_ms, early = question
        fastest = self.plan(cores, batch, Objective.LATENCY, limit_ms, early_answers=early)
        plans = [self._plan(list(fastest.instances), cores, batch, objective)]
        free = self._priced(question, 0.0)
        if free is not None and not self.fits(free):
            free = self._within_memory(question, self.items_per_s(free) / 1000.0 / self.memory_of(free))
        if free is not None:
            plans.append(free)
        return max(plans, key=lambda plan: (self.items_per_s(plan), -len(plan.instances)))

    def _priced(self, question: Question, rate_per_byte: float) -> Plan | None:
        cores, batch, objective, limit_ms, early = question
        limit = inf if limit_ms is None else limit_ms
        shares = throughput.solve(
            self.costs(batch),
            self._sockets_of(cores),
            cores,
            batch,
            limit_ms=limit,
            max_share=self._max_share,
            rate_per_byte=rate_per_byte,
        )
        if shares is None:
            return None
        return self.of_shares(shares, cores, batch, objective=objective, early_answers=early, limit_ms=limit)

    def _within_memory(self, question: Question, rate_per_byte: float) -> Plan | None:
        """Return the best plan that fits at some price of memory: the lower the price, the better it is."""
        best: Plan | None = None
        low, price = 0.0, rate_per_byte
        for _ in range(PRICES):
            plan = self._priced(question, price)
            if plan is not None and self.fits(plan):
                if best is None or self.items_per_s(plan) > self.items_per_s(best):
                    best = plan
                price = (low + price) / 2
            else:
                low, price = price, price * 4 if best is None else price * 1.5
        return best

    def fits(self, plan: Plan) -> bool:
        """Whether the plan keeps to the memory limit, if there is one."""
        return self._memory_bytes is None or self.memory_of(plan) <= self._memory_bytes

    def memory_of(self, plan: Plan) -> float:
        """Return the bytes that all instances hold together; 0 where the profile records none."""
        rows = self._rows(plan.instances)
        return sum(
            self.table.memory_of(row, instance.executions)
            for row, instance in zip(rows, plan.instances, strict=True)
        )

    def _rows(self, instances: Iterable[InstanceSpec]) -> list[int]:
        rows = []
        for instance in instances:
            row = self.table.row(instance.threads)
            if row is None:
                raise NoFeasiblePlan(f"instances of {instance.threads} threads were never profiled")
            rows.append(row)
        return rows

    def _sockets_of(self, cores: int) -> tuple[int, ...]:
        return self._sockets or (cores,)

    def _check(self, cores: int, batch: int, limit_ms: float | None) -> None:
        if cores < 1:
            raise InvalidInput(f"cores {cores}: must be 1 or more")
        if batch < 1:
            raise InvalidInput(f"batch {batch}: must be 1 or more")
        if limit_ms is not None and not limit_ms > 0:
            raise InvalidInput(f"latency limit {limit_ms:g} ms: must be more than 0")
        if self._sockets is not None and sum(self._sockets) < cores:
            raise InvalidInput(f"cores {cores}: sockets {self._sockets} have {sum(self._sockets)} in all")

    def _why_not(self, cores: int, batch: int) -> str:
        threads = ", ".join(str(t) for t in self.table.threads)
        largest = int(self.table.batches[-1])
        hint = f"; no instance takes more than {self._max_share} items" if self._max_share else ""
        return (
            f"no plan serves {batch} items on {cores} cores: the profile has thread counts {threads} and "
            f"batches up to {largest}{hint}"
        )


def instance_counts(most: int) -> list[int]:
    """Return the numbers of instances worth looking at: all small ones, then ever fewer."""
    counts = list(range(1, min(most, 8) + 1))
    while counts[-1] < most:
        counts.append(min(most, counts[-1] + max(1, counts[-1] // 4)))
    return counts


def _too_slow(question: Question, least_ms: float) -> str:
    return (
        f"no plan serves {question.batch} items on {question.cores} cores within "
        f"{question.limit_ms:g} ms; the least is {least_ms:.3g} ms"
    )


def same_threads(one: Plan, other: Plan) -> bool:
    """Whether two plans have as many instances of each number of threads."""
    return sorted(i.threads for i in one.instances) == sorted(i.threads for i in other.instances)
