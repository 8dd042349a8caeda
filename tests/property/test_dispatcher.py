"""The dispatcher under random events: nothing is lost, mixed, oversubscribed or tried too often."""

from dataclasses import dataclass, field
from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from partita.machines.dispatcher import MAX_DEATHS, Batch, BatchingRules, Dispatcher, Job, Policy
from partita.machines.leases import CoreLeases
from partita.machines.seats import MOST_EXECUTIONS

SEATS = ((2, 8, (8,)), (1, 4, (2, 2)), (1, 1, (1,)), (3, 6, (6,)))
"""(threads, b, executions) that instances are drawn from."""
QUEUE = 60
TIMES = st.floats(0.0, 0.3)


@dataclass
class Item:
    """What became of one job, told by what the dispatcher dispatched and by nothing else."""

    job: Job
    order: int
    done: set[int] = field(default_factory=set)
    deaths: int = 0
    outcome: str = ""


class DispatcherMachine(RuleBasedStateMachine):
    """Two models that may share cores, driven as the engine drives them, and a record beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.leases = CoreLeases()
        self.models: list[Dispatcher] = []
        self.seats: list[dict[int, tuple[int, int, tuple[int, ...]]]] = []
        self.lost: list[list[tuple[int, tuple[int, int, tuple[int, ...]]]]] = []
        self.retiring: set[int] = set()
        self.records: dict[Job, Item] = {}
        self.of_model: dict[Job, int] = {}
        self.running: dict[int, list[Batch]] = {}
        self.to_ask: set[int] = set()
        """Models that the engine will ask for batches: something happened, or they were woken."""

    @initialize(
        policies=st.tuples(st.sampled_from(Policy), st.sampled_from(Policy)),
        wait_s=st.sampled_from([0.0, 0.2]),
        queue_timeout_s=st.sampled_from([None, 1.0]),
        plans=st.tuples(*[st.lists(st.sampled_from(SEATS), min_size=1, max_size=3)] * 2),
        shared=st.booleans(),
    )
    def begin(self, policies, wait_s, queue_timeout_s, plans, shared) -> None:  # type: ignore[no-untyped-def]
        for model, (policy, plan) in enumerate(zip(policies, plans, strict=True)):
            rules = BatchingRules(
                policy=policy,
                batch_timeout_s=wait_s,
                queue_timeout_s=queue_timeout_s,
                execution_limit_s=5.0,
                max_queue_items=QUEUE,
            )
            made = Dispatcher(rules, self.leases)
            self.models.append(made)
            self.seats.append({})
            self.lost.append([])
            core = 0 if shared else 100 * model
            for number, seat in enumerate(plan):
                instance = 10 * model + number
                self.leases.register(instance, range(core, core + seat[0]), partial(self.to_ask.add, model))
                core += seat[0]
                self.seats[model][instance] = seat
                self.running[instance] = []
                made.add_instance(instance, *seat)

    # --- events -----------------------------------------------------------------------------------

    @rule(model=st.integers(0, 1), size=st.integers(1, 17), lane=st.sampled_from("abc"))
    def admit(self, model: int, size: int, lane: str) -> None:
        if not self.models[model].can_admit(size):
            assert self.models[model].queue.items + size > QUEUE
            return
        job = Job(None, size, lane, self.now_s)
        self.records[job] = Item(job, len(self.records))
        self.of_model[job] = model
        self.models[model].admit(job)
        self.to_ask.add(model)

    @precondition(lambda self: self.to_ask)
    @rule(first=st.integers(0, 1))
    def turn_of_the_loop(self, first: int) -> None:
        for model in (first, 1 - first):
            if model in self.to_ask:
                self.take(model)

    def take(self, model: int) -> None:
        self.to_ask.discard(model)
        for batch in self.models[model].take(self.now_s):
            self.dispatched(model, batch)

    def dispatched(self, model: int, batch: Batch) -> None:
        threads, most, executions = self.seats[model][batch.instance]
        assert batch.instance not in self.retiring
        assert batch.items >= 1
        if batch.items > most:  # a turn of several executions
            assert self.leases.has_rivals(batch.instance)
            assert len(batch.executions) <= MOST_EXECUTIONS
            assert max(batch.executions) <= max(executions)
        assert batch.items == sum(count for _, _, count in batch.pieces)
        assert not batch.executions or sum(batch.executions) >= batch.items
        assert len({job.lane for job, _, _ in batch.pieces}) == 1
        cores = self.leases.executing_cores()
        assert len(set(cores)) == len(cores)
        assert len(self.leases._cores[batch.instance]) == threads
        for job, first, count in batch.pieces:
            assert self.of_model[job] == model
            record = self.records[job]
            assert not record.outcome, "nothing is dispatched of a job that has ended"
            assert not record.done & set(range(first, first + count)), "no item is executed twice to the end"
            if job.deaths == 0 and first == 0:
                self.is_in_turn(model, record)
        self.running[batch.instance].append(batch)
        assert len(self.running[batch.instance]) <= 2

    def is_in_turn(self, model: int, record: Item) -> None:
        """First items of the jobs of a lane are dispatched in order of arrival; later only what came back."""
        earlier = [
            r for r in self.records.values() if r.order < record.order and r.job.lane == record.job.lane
        ]
        for other in earlier:
            if self.of_model[other.job] == model and not other.outcome:
                assert other.job.has_started, "a job overtook another of its lane"

    def busy(self) -> list[int]:
        return sorted(instance for instance, batches in self.running.items() if batches)

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), raises=st.booleans())
    def finish(self, data: st.DataObject, raises: bool) -> None:
        self.complete(data.draw(st.sampled_from(self.busy())), raises=raises)

    def complete(self, instance: int, *, raises: bool) -> None:
        made = self.models[instance // 10]
        batch = self.running[instance].pop(0)
        self.to_ask.add(instance // 10)
        if raises:
            _, failed = made.fail(instance, batch.batch_id, self.now_s)
            assert all(len(batch.pieces) == 1 for _ in failed)
            for job in failed:
                self.end(job, "raised")
            return
        assert made.finish(instance, batch.batch_id, self.now_s) is batch
        for job, first, count in batch.pieces:
            record = self.records[job]
            record.done |= set(range(first, first + count))
            if len(record.done) == job.n_items and not record.outcome:
                assert job.settled == job.n_items
                self.end(job, "answered")

    def end(self, job: Job, outcome: str) -> None:
        assert not self.records[job].outcome, "one outcome each"
        self.records[job].outcome = outcome
        if self.models[self.of_model[job]].end(job):
            self.to_ask.add(self.of_model[job])

    @precondition(lambda self: any(self.seats))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        known = sorted(i for seats in self.seats for i in seats)
        instance = data.draw(st.sampled_from(known))
        model = instance // 10
        batches, self.running[instance] = self.running[instance], []
        lost = self.models[model].lose_instance(instance)
        self.to_ask.add(model)
        assert lost.executing is (batches[0] if batches else None)
        for job in dict.fromkeys(job for job, _, _ in batches[0].pieces) if batches else ():
            self.records[job].deaths += 1
            if self.records[job].deaths == MAX_DEATHS and not self.records[job].outcome:
                assert job in lost.failed
        for job in lost.failed:
            assert self.records[job].deaths == MAX_DEATHS
            self.end(job, "died")
        seat = self.seats[model].pop(instance)
        if instance in self.retiring:
            self.retiring.discard(instance)
        self.lost[model].append((instance, seat))

    @precondition(lambda self: any(self.lost))
    @rule(data=st.data())
    def respawn(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from([m for m, gone in enumerate(self.lost) if gone]))
        instance, seat = self.lost[model].pop(0)
        self.seats[model][instance] = seat
        self.models[model].add_instance(instance, *seat)
        self.to_ask.add(model)

    @precondition(lambda self: any(self.seats))
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(sorted(i for seats in self.seats for i in seats)))
        self.models[instance // 10].retire_instance(instance)
        self.retiring.add(instance)
        self.to_ask.add(instance // 10)

    @precondition(lambda self: any(not r.outcome for r in self.records.values()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        open_jobs = [r.job for r in self.records.values() if not r.outcome]
        job = data.draw(st.sampled_from(open_jobs))
        self.end(job, "cancelled")

    @rule(by_s=TIMES)
    def time_passes(self, by_s: float) -> None:
        self.now_s += by_s
        rules = self.models[0].rules
        if rules.batch_timeout_s or rules.queue_timeout_s:
            self.to_ask.update(range(len(self.models)))
        for made in self.models:
            while (job := made.expired_job(self.now_s)) is not None:
                assert not job.has_started
                assert self.now_s - job.admitted_s >= 1.0
                self.end(job, "expired")

    # --- laws -------------------------------------------------------------------------------------

    @invariant()
    def conserves(self) -> None:
        self.leases.check()
        for model, made in enumerate(self.models):
            made.check()
            mine = [r for r in self.records.values() if self.of_model[r.job] == model]
            in_flight = [r.job for r in mine if not r.outcome]
            assert set(in_flight) == set(made.unfinished_jobs())
            waiting = sum(job.n_items - job.settled - job.running for job in in_flight)
            assert waiting == made.queue.items
        executing = {i for i, batches in self.running.items() if batches}
        assert executing == self.leases._held

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """Whoever was not told to ask would get nothing by asking: no wake-up is ever missing."""
        for model, made in enumerate(self.models):
            if model not in self.to_ask:
                assert made.take(self.now_s) == []

    def teardown(self) -> None:
        """Everything drains: retiring and lost instances are replaced, and all that was accepted ends."""
        for model, made in enumerate(self.models):
            for instance in [i for i in self.seats[model] if i in self.retiring]:
                while self.running[instance]:
                    self.complete(instance, raises=False)
                made.remove_instance(instance)
                made.add_instance(instance, *self.seats[model][instance])
                self.retiring.discard(instance)
            for instance, seat in self.lost[model]:
                self.seats[model][instance] = seat
                made.add_instance(instance, *seat)
        rounds = 0
        while any(not r.outcome for r in self.records.values()):
            rounds += 1
            assert rounds < 2000, "stuck"
            self.now_s += 0.5
            for model in range(len(self.models)):
                self.take(model)
            for instance in self.busy():
                if self.running[instance]:
                    self.complete(instance, raises=False)
            self.conserves()
        while self.busy():
            for instance in self.busy():
                self.complete(instance, raises=False)
        outcomes = [r.outcome for r in self.records.values()]
        assert all(outcomes)
        assert all(made.queue.items == made.running_items == 0 for made in self.models)
        assert self.leases.executing_cores() == []


TestDispatcher = DispatcherMachine.TestCase
TestDispatcher.settings = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@given(
    bad=st.integers(0, 31),
    kills=st.booleans(),
    seats=st.lists(st.sampled_from(SEATS), min_size=1, max_size=3),
    policy=st.sampled_from(Policy),
)
@settings(max_examples=150, deadline=None)
def test_a_bad_item_among_31_good_ones_fails_alone(
    bad: int, kills: bool, seats: list[tuple[int, int, tuple[int, ...]]], policy: Policy
) -> None:
    leases = CoreLeases()
    made = Dispatcher(BatchingRules(policy=policy), leases)
    for instance, seat in enumerate(seats):
        leases.register(instance, range(10 * instance, 10 * instance + seat[0]))
        made.add_instance(instance, *seat)
    jobs = [Job(number, 1, None, 0.0) for number in range(32)]
    for job in jobs:
        made.admit(job)
    deaths, outcome = 0, {}
    for _ in range(200):
        dead: set[int] = set()
        for batch in made.take(0.0):
            if batch.instance in dead:
                continue  # it waited in the channel of a worker that is gone, and went back to the queue
            harmful = jobs[bad] in [job for job, _, _ in batch.pieces]
            if not harmful:
                made.finish(batch.instance, batch.batch_id, 0.0)
                ended, how = [job for job, _, _ in batch.pieces], "answered"
            elif kills:
                deaths += 1
                dead.add(batch.instance)
                ended, how = made.lose_instance(batch.instance).failed, "failed"
                made.add_instance(batch.instance, *seats[batch.instance])
            else:
                ended, how = made.fail(batch.instance, batch.batch_id, 0.0)[1], "failed"
            for job in ended:
                outcome[job.owner] = how
                made.end(job)
            made.check()
    assert outcome == {n: "failed" if n == bad else "answered" for n in range(32)}
    assert deaths == (2 if kills else 0)
    assert made.queue.items == made.running_items == 0
