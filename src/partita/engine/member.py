"""One member model of a service: its dispatcher and its instances, joined by real IO."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from partita.core.clock import Clock
from partita.core.errors import InferenceFailed, RequestError
from partita.core.plan import InstanceSpec, Plan
from partita.core.tensors import Signature
from partita.engine.chunks import execute_message
from partita.engine.instance import Instance, ModelLaunch
from partita.engine.owner import ArrivalMeter
from partita.engine.refusals import died
from partita.engine.request import Buffer, PartSink, Request, Shapes
from partita.engine.rows import Rows
from partita.engine.statistics import Statistics
from partita.engine.switching import Switcher
from partita.machines.dispatcher import BatchingRules, Dispatcher
from partita.machines.handover import Stage
from partita.machines.leases import CoreLeases
from partita.machines.work import Batch, Job
from partita.machines.worker_life import State
from partita.wire.messages import BatchDone, BatchFailed, PartDone

if TYPE_CHECKING:
    from partita.engine.observing import RequestObserver

InstanceFactory = Callable[[int, InstanceSpec, ModelLaunch, "Member"], Instance]


class MemberOwner(Protocol):
    """The service, as its members see it."""

    def piece_done(
        self, job: Job, first: int, count: int, outputs: Sequence[Buffer], rows: Shapes, now_s: float
    ) -> None:
        """Items of a job that has not ended are there; `rows` are the outputs' shapes, batch axis first."""

    def job_failed(self, job: Job, error: RequestError) -> None:
        """A job cannot be answered."""

    def job_settled(self, job: Job) -> None:
        """An ended job has nothing running any more: what it held can be recycled."""

    def member_ready(self, member: "Member") -> None:
        """The first of the member's instances is ready (again)."""

    def member_lost(self, reason: str) -> None:
        """A worker of the member is gone, as meant or not."""

    def member_failed(self, member: "Member", reason: str) -> None:
        """None of its instances will come back."""

    def plan_changed(self, plan: Plan) -> None:
        """Another plan is in force."""

    def job_expired(self, job: Job) -> None:
        """A job waited in the queue longer than allowed: end it."""


class Member:
    """Sends what the dispatcher forms, and tells the service what came of it."""

    def __init__(
        self,
        launch: ModelLaunch,
        rules: BatchingRules,
        *,
        leases: CoreLeases,
        statistics: Statistics,
        owner: MemberOwner,
        make_instance: InstanceFactory,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self.launch = launch
        self.dispatcher = Dispatcher(rules, leases)
        self.instances: dict[int, Instance] = {}
        self.switcher: Switcher | None = None
        """Sees to changes of plan, from the start on."""
        self.meter: ArrivalMeter | None = None
        """Whoever wants to know the depth that arriving items find."""
        self.observer: RequestObserver | None = None
        """Who follows requests, if anybody."""
        self.signature: Signature | None = None
        self.failure: str | None = None
        self._leases = leases
        self._statistics = statistics
        self._owner = owner
        self._make_instance = make_instance
        self._loop = loop
        self._clock = clock
        self.beside: Sequence[Member] = ()
        """Members that take turns with this one, itself included: their next turn begins before its answers
        are looked at."""
        self._enlisted: list[tuple[int, InstanceSpec]] = []
        self._is_scheduled = False
        self._shapes: Shapes = ()
        """Shapes of the outputs of the newest batch of one piece."""
        self._tails: Shapes = ()
        """Item shapes of the outputs of the newest batch."""
        self._shapes_of: dict[int, Shapes] = {}
        """The outputs' shapes for so many items with these tails."""
        self._timer: asyncio.TimerHandle | None = None

    # --- instances --------------------------------------------------------------------------------

    def start(self, plan: Plan, numbers: Iterator[int]) -> None:
        """Start the plan's instances; `numbers` are unique on this machine."""
        self.enlist(plan, numbers)
        self.launch_enlisted()

    def enlist(self, plan: Plan, numbers: Iterator[int]) -> None:
        """Make the plan's instances known to the core leases: who starts later knows whom it shares with."""
        first = [next(numbers) for _ in plan.instances]
        self.switcher = Switcher(
            self,
            plan,
            first,
            leases=self._leases,
            next_number=numbers.__next__,
            loop=self._loop,
            clock=self._clock,
        )
        for number, spec in zip(first, plan.instances, strict=True):
            self._leases.register(number, spec.cores, self.schedule, spec.pool)
        self._enlisted = list(zip(first, plan.instances, strict=True))

    def launch_enlisted(self) -> None:
        """Start the workers of what was enlisted."""
        for number, spec in self._enlisted:
            self.make_instance(number, spec).start()
        self._enlisted = []

    def make_instance(self, number: int, spec: InstanceSpec) -> Instance:
        """Return a new instance of this member, which is to be started."""
        instance = self.instances[number] = self._make_instance(number, spec, self.launch, self)
        return instance

    def close_switcher(self) -> None:
        """Begin no change of plan any more, and give up the one under way."""
        if self.switcher is not None:
            self.switcher.close()

    @property
    def ready_instances(self) -> int:
        """Instances that take work now."""
        takes_part = self.dispatcher.has_instance
        return sum(instance.is_ready and takes_part(n) for n, instance in self.instances.items())

    def drain(self) -> None:
        """Let every instance finish and go."""
        self._cancel_timer()
        for instance in self.instances.values():
            instance.drain()

    def kill(self, reason: str, *, only_busy: bool = False) -> None:
        """End every worker at once; or only what executes, in a process of its own."""
        for number, instance in self.instances.items():
            if not only_busy or (not instance.is_hosted and self.dispatcher.executing(number) is not None):
                instance.kill(reason)

    def forget(self) -> None:
        """Give the cores back, once every worker is gone."""
        for number in self.instances:
            if self._leases.knows(number):
                self._leases.forget(number)
        self.instances.clear()

    @property
    def is_gone(self) -> bool:
        """Whether no worker process is left."""
        return all(instance.is_gone for instance in self.instances.values())

    # --- events of instances ----------------------------------------------------------------------

    def instance_ready(self, instance: Instance) -> None:
        """Take the instance into the dispatch."""
        signature = instance.signature
        assert signature is not None
        if self.signature is None:
            self.signature = signature
        elif self.signature != signature:
            instance.kill("its signature differs from that of the other instances")
            return
        if self.switcher is None or self.switcher.ready(instance):
            self.seat(instance)

    def seat(self, instance: Instance) -> None:
        """Let a ready instance take work."""
        spec = instance.spec
        self.dispatcher.add_instance(instance.number, spec.threads, *self._sizes(spec))
        self._owner.member_ready(self)
        self.schedule()

    def reseat(self, number: int, spec: InstanceSpec) -> None:
        """Let an instance take work of another size, even if it was retiring."""
        if self.dispatcher.has_instance(number):  # else it takes part by the new spec when it is back
            self.dispatcher.reseat_instance(number, *self._sizes(spec))
        self.schedule()

    def retire(self, number: int) -> None:
        """Give an instance no new work."""
        if self.dispatcher.has_instance(number):
            self.dispatcher.retire_instance(number)

    def unseat(self, number: int) -> None:
        """Take an idle instance out of the dispatch and give its cores back."""
        if self.dispatcher.has_instance(number):
            self.dispatcher.remove_instance(number)
        self._leases.forget(number)

    def _sizes(self, spec: InstanceSpec) -> tuple[int, tuple[int, ...]]:
        """b and the executions of an instance, as far as the model's own batch axis allows them."""
        signature = self.signature
        assert signature is not None
        largest = 1 if not signature.batched else signature.fixed_batch or spec.micro_batch
        executions = spec.executions if largest >= spec.micro_batch else (largest,)
        return max(spec.batch, largest) if signature.batched else 1, executions

    def plan_changed(self, plan: Plan) -> None:
        """Another plan is in force."""
        self._owner.plan_changed(plan)

    def instance_lost(self, instance: Instance, reason: str) -> None:
        """Quarantine what it was executing; the rest goes back to the queue."""
        self._statistics.worker_deaths += instance.life.state is not State.STOPPED
        if self.dispatcher.has_instance(instance.number):
            lost = self.dispatcher.lose_instance(instance.number)
            for job in lost.failed:
                self._owner.job_failed(job, died(job, reason))
            for job in lost.touched:
                if job.ended and not job.running:
                    self._owner.job_settled(job)
        if self.switcher is not None:
            self.switcher.lost(instance.number, reason)
        self._owner.member_lost(reason)
        self.schedule()

    def instance_gave_up(self, instance: Instance, reason: str) -> None:
        """Go on with the others; without any, everything that waits fails."""
        active = list(self.instances)
        if self.switcher is not None:
            self.switcher.gave_up(instance.number)
            active = self.switcher.handover.numbers(Stage.ACTIVE)
        if all(self.instances[number].has_given_up for number in active):
            self.failure = reason
            self._owner.member_failed(self, reason)

    def part_done(self, instance: Instance, done: PartDone) -> None:
        """Hand a part of an answer on; one that nobody waits for is dropped."""
        job = self.dispatcher.part_done(instance.number, done.batch_id, done.row, self._clock.now_s())
        if job is not None and isinstance(job.owner.sink, PartSink):
            job.owner.sink.part(job.owner, done.part)

    def batch_done(self, instance: Instance, done: BatchDone) -> None:
        """Hand the outputs on, piece by piece, straight from the worker's memory."""
        now_s = self._clock.now_s()
        batch = self.dispatcher.finish(instance.number, done.batch_id, now_s)
        if self.beside and self._leases.has_rivals(instance.number):
            self.schedule()
            for other in self.beside:
                other.dispatch_if_scheduled()
        if self.observer is not None:
            self.observer.executed(instance, self.launch.name, batch, done, now_s)
        assert instance.outputs is not None
        view = instance.outputs.view
        pieces = batch.pieces
        if len(pieces) == 1 or self.signature is None or not self.signature.batched:
            job, first, count = pieces[0]
            outputs = [view[o.offset : o.offset + o.size] for o in done.outputs]
            shapes = tuple([o.shape for o in done.outputs])
            if shapes == self._shapes:
                shapes = self._shapes  # the very same object: what protocols derived is found by it
            self._shapes = shapes
            self._hand_on(job, first, count, outputs, shapes, now_s)
        else:
            self._hand_on_rows(batch, done, view, now_s)
        if done.measured:
            self._statistics.take_measured(done.measured)
        self._count(instance, batch, done)  # after the answers are on their way
        self.schedule()

    def _hand_on_rows(self, batch: Batch, done: BatchDone, view: memoryview, now_s: float) -> None:
        assert self.signature is not None
        rows = [
            Rows(view, output, spec.datatype, batch.items)
            for output, spec in zip(done.outputs, self.signature.outputs, strict=True)
        ]
        only = rows[0] if len(rows) == 1 else None
        tails = tuple([output.shape[1:] for output in done.outputs])
        if tails != self._tails:
            self._tails, self._shapes_of = tails, {}
        shapes_of = self._shapes_of
        piece_done = self._owner.piece_done
        position = 0
        for job, first, count in batch.pieces:
            shapes = shapes_of.get(count)
            if shapes is None:
                shapes = shapes_of[count] = tuple((count, *tail) for tail in tails)
            end = position + count
            if not job.ended:
                outputs = [only.slice(position, end)] if only else [r.slice(position, end) for r in rows]
                piece_done(job, first, count, outputs, shapes, now_s)
            elif not job.running:
                self._owner.job_settled(job)
            position = end

    def _hand_on(
        self, job: Job, first: int, count: int, outputs: Sequence[Buffer], shapes: Shapes, now_s: float
    ) -> None:
        if not job.ended:
            self._owner.piece_done(job, first, count, outputs, shapes, now_s)
        elif not job.running:
            self._owner.job_settled(job)

    def _count(self, instance: Instance, batch: Batch, done: BatchDone) -> None:
        dispatched_s = batch.dispatched_s
        queued_s = 0.0
        for job, first, _ in batch.pieces:
            if first == 0:
                queued_s += dispatched_s - job.admitted_s
        queued_ns = int(queued_s * 1e9)
        if batch.items <= instance.spec.batch:
            self._statistics.count_batch(batch.items, done.infer_ns, done.total_ns, queued_ns)
            return
        left = batch.items
        for size in batch.executions:  # several of its batches in one turn
            share = size / batch.items
            left -= size
            times = (int(done.infer_ns * share), int(done.total_ns * share))
            self._statistics.count_batch(size, *times, 0 if left else queued_ns)

    def batch_failed(self, instance: Instance, failed: BatchFailed) -> None:
        """Retry one by one; what failed alone fails its request."""
        batch, jobs = self.dispatcher.fail(instance.number, failed.batch_id, self._clock.now_s())
        for job in jobs:
            self._owner.job_failed(job, InferenceFailed(failed.reason))
        for job, _, _ in batch.pieces:
            if job.ended and not job.running:
                self._owner.job_settled(job)
        self.schedule()

    # --- dispatch ---------------------------------------------------------------------------------

    def admit(self, request: Request) -> Job:
        """Queue a request's items; ask the dispatcher's `can_admit` first."""
        job = Job(request, request.n_items, request.layout.lane, request.arrived_s)
        dispatcher = self.dispatcher
        dispatcher.queue.admit(job)
        if self.meter is not None:
            self.meter.arrived(job.n_items, dispatcher.queue.items + dispatcher.running_items)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._dispatch)
        return job

    def schedule(self) -> None:
        """Dispatch once the loop has read what is there: one round for a burst of requests."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._dispatch)

    def dispatch_if_scheduled(self) -> None:
        """Do now what would be done soon."""
        if self._is_scheduled:
            self._dispatch()

    def _dispatch(self) -> None:
        if not self._is_scheduled:
            return  # done meanwhile
        self._is_scheduled = False
        dispatcher = self.dispatcher
        now_s = self._clock.now_s()
        for batch in dispatcher.take(now_s):
            instance = self.instances[batch.instance]
            instance.execute(execute_message(batch, instance.next_slot()))
        if self.switcher is not None and self.switcher.retiring:
            self.switcher.look_for_drained()
        wake_s = dispatcher.next_wake_s(now_s)
        if wake_s is not None and (self._timer is None or wake_s < self._timer.when()):
            self._cancel_timer()
            self._timer = self._loop.call_at(wake_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = self._clock.now_s()
        for number in self.dispatcher.hung_instances(now_s):
            limit_s = self.dispatcher.rules.execution_limit_s
            self.instances[number].kill(f"no progress within the execution limit of {limit_s:g} s")
        while (job := self.dispatcher.expired_job(now_s)) is not None:
            self._owner.job_expired(job)
        self.schedule()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
