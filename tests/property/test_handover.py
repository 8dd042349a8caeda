"""Plans that change at random, over a real dispatcher and real leases: nothing of them is lost."""

from itertools import count

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from partita.core.plan import InstanceSpec, Plan
from partita.machines.dispatcher import Batch, BatchingRules, Dispatcher, Job, Policy
from partita.machines.handover import (
    Accepting,
    End,
    Handover,
    Instruction,
    Load,
    Reseat,
    Retire,
    RolledBack,
    Seat,
    Stage,
    Superseded,
    Unseat,
)
from partita.machines.leases import CoreLeases

CORES = 4
MIB = 1 << 20
LAYOUTS: list[list[tuple[int, ...]]] = [
    [(0, 1, 2, 3)],
    [(0, 1), (2, 3)],
    [(0,), (1,), (2,), (3,)],
    [(0,), (1,)],
    [(0, 1), (2,), (3,)],
    [(0, 1, 2)],
    [(2, 3)],
]
PLANS = st.tuples(st.sampled_from(LAYOUTS), st.sampled_from([1, 3, 8])).map(
    lambda drawn: Plan(
        instances=tuple(InstanceSpec(threads=len(c), batch=drawn[1], cores=c) for c in drawn[0]),
        cores=CORES,
        batch=drawn[1] * len(drawn[0]),
    )
)


class HandoverMachine(RuleBasedStateMachine):
    """One model, driven as the engine drives it; workers are known by what they were told."""

    @initialize(plan=PLANS, policy=st.sampled_from(Policy), at_once=st.integers(1, 4))
    def begin(self, plan: Plan, policy: Policy, at_once: int) -> None:
        self.leases = CoreLeases()
        self.dispatcher = Dispatcher(BatchingRules(policy=policy), self.leases)
        numbers = count(1)
        first = [next(numbers) for _ in plan.instances]
        self.handover = Handover(plan, first, numbers.__next__, loads_at_once=at_once)
        self.workers: dict[int, str] = {}
        """loading, ready or ending, by number."""
        self.seated: dict[int, InstanceSpec] = {}
        self.retiring: set[int] = set()
        self.dead: set[int] = set()
        """Active ones whose worker is being started again."""
        self.running: dict[int, list[Batch]] = {}
        self.jobs: list[Job] = []
        self.asked = [plan]
        self.in_force = plan
        for number, spec in zip(first, plan.instances, strict=True):
            self.workers[number] = "ready"
            self.seat(number, spec)

    # --- the engine's part ------------------------------------------------------------------------

    def seat(self, number: int, spec: InstanceSpec) -> None:
        assert self.workers[number] == "ready"
        self.leases.register(number, spec.cores)
        self.dispatcher.add_instance(number, spec.threads, spec.batch, spec.executions)
        self.seated[number] = spec
        self.running[number] = []

    def follow(self, steps: list[Instruction]) -> None:
        for step in steps:
            match step:
                case Load(number=number):
                    assert number not in self.workers
                    self.workers[number] = "loading"
                case Seat(number=number, spec=spec):
                    self.seat(number, spec)
                case Reseat(number=number, spec=spec):
                    assert spec.cores == self.seated[number].cores
                    self.seated[number] = spec
                    self.retiring.discard(number)
                    if number not in self.dead:
                        self.dispatcher.reseat_instance(number, spec.batch, spec.executions)
                case Retire(number=number):
                    self.retiring.add(number)
                    if number not in self.dead:
                        self.dispatcher.retire_instance(number)
                case Unseat(number=number):
                    assert not self.running[number]
                    if self.dispatcher.has_instance(number):
                        self.dispatcher.remove_instance(number)
                    self.leases.forget(number)
                    del self.seated[number], self.running[number]
                    self.retiring.discard(number)
                case End(number=number):
                    assert number not in self.seated
                    self.workers[number] = "ending"
                case _:
                    self.hear(step)
        self.turn()

    def hear(self, step: Instruction) -> None:
        match step:
            case Accepting(plan=plan):
                assert plan is self.asked[-1], "the plan that was asked for last"
                self.in_force = plan
            case RolledBack(plan=plan):
                assert plan is self.asked[-1]
            case Superseded(plan=plan):
                assert plan is self.asked[-2]

    def turn(self) -> None:
        for batch in self.dispatcher.take(0.0):
            assert batch.instance in self.seated
            assert batch.instance not in self.retiring
            assert batch.items <= self.seated[batch.instance].batch
            self.running[batch.instance].append(batch)
        for number in list(self.retiring):
            if number in self.retiring and not self.running[number]:
                self.retiring.discard(number)
                self.dead.discard(number)
                self.follow(self.handover.drained(number))

    # --- events -----------------------------------------------------------------------------------

    @rule(plan=PLANS)
    def switch(self, plan: Plan) -> None:
        self.asked.append(plan)
        self.follow(self.handover.switch(plan))

    @rule(plans=st.lists(PLANS, max_size=2), max_mib=st.sampled_from([0, 150, 1000]))
    def keep_warm(self, plans: list[Plan], max_mib: int) -> None:
        self.follow(self.handover.keep_warm(plans, max_mib * MIB))

    @rule(items=st.integers(1, 20))
    def admit(self, items: int) -> None:
        job = Job(None, items, None, 0.0)
        self.jobs.append(job)
        self.dispatcher.admit(job)
        self.turn()

    @precondition(lambda self: "loading" in self.workers.values())
    @rule(data=st.data(), fails=st.sampled_from([False, False, True]))
    def load_ends(self, data: st.DataObject, fails: bool) -> None:
        number = data.draw(st.sampled_from([n for n, how in self.workers.items() if how == "loading"]))
        if fails:
            self.follow(self.handover.lost(number, "bad weights"))
        else:
            self.workers[number] = "ready"
            self.follow(self.handover.loaded(number, 100 * MIB))

    @precondition(lambda self: "ending" in self.workers.values())
    @rule(data=st.data())
    def ended(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([n for n, how in self.workers.items() if how == "ending"]))
        del self.workers[number]
        self.follow(self.handover.lost(number, "ended"))

    @precondition(lambda self: any(self.running.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.complete(data.draw(st.sampled_from(sorted(n for n, b in self.running.items() if b))))

    def complete(self, number: int) -> None:
        batch = self.running[number].pop(0)
        self.dispatcher.finish(number, batch.batch_id, 0.0)
        for job, _, _ in batch.pieces:
            if job.settled == job.n_items:
                self.dispatcher.end(job)
        self.turn()

    @precondition(lambda self: "ready" in self.workers.values())
    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        """Any loaded worker; one in use comes back later, all others are let go."""
        number = data.draw(st.sampled_from([n for n, how in self.workers.items() if how == "ready"]))
        if number in self.dead:
            return
        if self.dispatcher.has_instance(number):
            self.running[number] = []
            for job in self.dispatcher.lose_instance(number).failed:
                self.dispatcher.end(job)
        if self.handover.stage(number) is Stage.ACTIVE:
            self.dead.add(number)
        self.retiring.discard(number)
        self.follow(self.handover.lost(number, "killed"))

    @precondition(lambda self: self.dead)
    @rule(data=st.data())
    def comes_back(self, data: st.DataObject) -> None:
        self.restart(data.draw(st.sampled_from(sorted(self.dead))))

    def restart(self, number: int) -> None:
        self.dead.discard(number)
        spec = self.seated[number]
        self.dispatcher.add_instance(number, spec.threads, spec.batch, spec.executions)
        self.turn()

    # --- laws -------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "handover"):
            return
        self.handover.check()
        self.leases.check()
        self.dispatcher.check()
        assert self.handover.plan is self.in_force
        assert set(self.workers) == set(self.handover.numbers())
        taking = self.handover.numbers(Stage.ACTIVE)
        assert taking
        assert all(self.seated[n] == self.handover.spec(n) for n in taking)
        assert len(self.leases.executing_cores()) <= CORES
        asleep = self.handover.numbers(Stage.ASLEEP)
        assert not set(asleep) & set(self.seated), "what sleeps has no part in the dispatch"

    def is_quiet(self) -> bool:
        waits = {"loading", "ending"} & set(self.workers.values()) or self.dead or self.retiring
        return not waits and all(job.ended for job in self.jobs)

    def teardown(self) -> None:
        """Everything that was asked for comes about, and all that was accepted is done."""
        if not hasattr(self, "handover"):
            return
        wanted = self.in_force if self.handover.is_accepting else self.handover.target
        for _ in range(500):
            if self.is_quiet():
                break
            for number, how in list(self.workers.items()):
                if how == "loading":
                    self.workers[number] = "ready"
                    self.follow(self.handover.loaded(number, 100 * MIB))
                elif how == "ending" and number in self.workers:
                    del self.workers[number]
                    self.follow(self.handover.lost(number, "ended"))
            for number in list(self.dead):
                if number in self.dead:
                    self.restart(number)
            for number in [n for n, batches in self.running.items() if batches]:
                if self.running.get(number):
                    self.complete(number)
            self.turn()
            self.holds()
        assert self.is_quiet()
        assert self.handover.is_finished
        assert self.in_force is wanted
        assert sorted(self.seated.values()) == sorted(wanted.instances)
        assert all(job.ended for job in self.jobs)
        assert not self.leases.executing_cores()


TestHandover = HandoverMachine.TestCase
TestHandover.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
