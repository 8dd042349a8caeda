"""One model as the live engine runs it: dispatcher, leases and handover, with service times for workers."""

from collections.abc import Callable, Sequence
from math import inf

from partita.core.plan import InstanceSpec, Plan
from partita.machines.dispatcher import BatchingRules, Dispatcher, Policy
from partita.machines.handover import (
    Accepting,
    End,
    Finished,
    Handover,
    Instruction,
    Load,
    Reseat,
    Retire,
    RolledBack,
    Seat,
    Stage,
    Unseat,
)
from partita.machines.work import Batch, Job
from partita.simulator.counts import Counts
from partita.simulator.machine import SharedMachine
from partita.simulator.service_times import ServiceTimes

Announcement = Accepting | RolledBack | Finished

LATE_S = 1e-9
"""A timer is never early: at the very time a timeout may, in floating point, not have passed yet."""


class SimulatedMember:
    """Takes requests and answers them after the time that the profile says. Loading takes `load_s`.

    `announce` is told when another plan is in force, why one could not be brought there, and when what
    another had no use for is gone.
    """

    def __init__(
        self,
        plan: Plan,
        rules: BatchingRules,
        times: ServiceTimes,
        machine: SharedMachine,
        counts: Counts,
        *,
        load_s: float,
        announce: Callable[[float, Announcement], None],
    ) -> None:
        self.dispatcher = Dispatcher(rules, machine.leases)
        first = [machine.next_number() for _ in plan.instances]
        self.handover = Handover(plan, first, machine.next_number)
        self._times = times
        self._machine = machine
        self._agenda = machine.agenda
        self._counts = counts
        self._load_s = load_s
        self._announce = announce
        self._is_aggregate = rules.policy is Policy.AGGREGATE
        self._waits = rules.batch_timeout_s > 0
        self._threads: dict[int, int] = {}
        self._busy = 0
        self._least = 1
        self._wake_s = inf
        for number, spec in zip(first, plan.instances, strict=True):
            self._seat(number, spec)
        self._find_least()

    @property
    def depth(self) -> int:
        """Items queued and in flight."""
        return self.dispatcher.queue.items + self.dispatcher.running_items

    # --- requests ---------------------------------------------------------------------------------

    def admit(self, now_s: float, request: int, items: int) -> None:
        """A request comes; it is refused if the queue has no room."""
        dispatcher = self.dispatcher
        queue = dispatcher.queue
        if not queue.can_admit(items):
            self._counts.count_refusal(request)
            return
        queue.admit(Job(request, items, None, now_s))
        self._counts.meter.arrived(items, queue.items + dispatcher.running_items)
        if self._may_take():
            self._dispatch(now_s)

    def _may_take(self) -> bool:
        """Whether asking the dispatcher can be of use: mostly all are busy, and it need not be asked."""
        if self._busy < len(self._threads):
            return True
        return self.dispatcher.queue.items >= self._least and not self._is_aggregate

    def _dispatch(self, now_s: float) -> None:
        self._take(now_s)
        self._machine.settle(now_s)

    def _take(self, now_s: float) -> None:
        machine = self._machine
        while True:
            batches = self.dispatcher.take(now_s)
            if batches:
                self._send(batches, now_s)
            if not machine.heeds(self._take):
                break
        if self._waits:
            self._set_alarm(now_s)

    def _send(self, batches: Sequence[Batch], now_s: float) -> None:
        for batch in batches:
            self._counts.count_batch(batch)
            if self.dispatcher.executing(batch.instance) is batch:
                self._busy += 1
                self._machine.busy_threads += self._threads[batch.instance]
                self._begin(batch, now_s)

    def _begin(self, batch: Batch, now_s: float) -> None:
        threads = self._threads[batch.instance]
        takes_s = self._times.batch_s(threads, batch, self._machine.busy_threads - threads)
        self._agenda.at(now_s + takes_s, self._finish, batch)

    def _finish(self, now_s: float, batch: Batch) -> None:
        instance = batch.instance
        self.dispatcher.finish(instance, batch.batch_id, now_s)
        count_answer = self._counts.count_answer
        for job, _, _ in batch.pieces:
            if job.settled == job.n_items:
                job.ended = True
                count_answer(job.owner, now_s - job.admitted_s)
        following = self.dispatcher.executing(instance)
        if following is not None:
            self._begin(following, now_s)
        else:
            self._busy -= 1
            self._machine.busy_threads -= self._threads[instance]
            if self.handover.stage(instance) is Stage.RETIRING:
                self._carry_out(now_s, self.handover.drained(instance))
        self._dispatch(now_s)

    def _set_alarm(self, now_s: float) -> None:
        """Ask again when a batch timeout passes."""
        wake_s = self.dispatcher.next_wake_s(now_s)
        if wake_s is not None and wake_s < inf and (wake_s < self._wake_s or self._wake_s <= now_s):
            self._wake_s = wake_s + LATE_S
            self._agenda.at(self._wake_s, self._alarm)

    def _alarm(self, now_s: float, _: object) -> None:
        if now_s >= self._wake_s:
            self._wake_s = inf
        self._dispatch(now_s)

    # --- plans ------------------------------------------------------------------------------------

    def switch(self, now_s: float, plan: Plan) -> None:
        """Change to another plan; `announce` says what came of it."""
        self._carry_out(now_s, self.handover.switch(plan))
        self._dispatch(now_s)

    def _carry_out(self, now_s: float, steps: Sequence[Instruction]) -> None:
        for step in steps:
            match step:
                case Load(number, _):
                    self._agenda.at(now_s + self._load_s, self._loaded, number)
                case Seat(number, spec):
                    self._seat(number, spec)
                case Reseat(number, spec):
                    self.dispatcher.reseat_instance(number, spec.batch, spec.executions)
                case Retire(number):
                    self.dispatcher.retire_instance(number)
                    if self.dispatcher.is_idle(number):
                        self._agenda.at(now_s, self._drained, number)
                case Unseat(number):
                    self.dispatcher.remove_instance(number)
                    self._machine.leases.forget(number)
                    del self._threads[number]
                case End(number):
                    self._agenda.at(now_s, self._ended, number)
                case Accepting() | RolledBack() | Finished():
                    self._announce(now_s, step)
        self._find_least()

    def _seat(self, number: int, spec: InstanceSpec) -> None:
        self._machine.leases.register(number, spec.cores, self._wake)
        self.dispatcher.add_instance(number, spec.threads, spec.batch, spec.executions)
        self._threads[number] = spec.threads

    def _wake(self) -> None:
        self._machine.wake(self._take)

    def _find_least(self) -> None:
        """The fewest waiting items with which a busy instance may get a batch ahead."""
        active = self.handover.numbers(Stage.ACTIVE)
        self._least = min((self.handover.spec(n).micro_batch for n in active), default=1)

    def _loaded(self, now_s: float, number: int) -> None:
        self._carry_out(now_s, self.handover.loaded(number))
        self._dispatch(now_s)

    def _drained(self, now_s: float, number: int) -> None:
        if self.handover.stage(number) is Stage.RETIRING and self.dispatcher.is_idle(number):
            self._carry_out(now_s, self.handover.drained(number))
            self._dispatch(now_s)

    def _ended(self, now_s: float, number: int) -> None:
        self._carry_out(now_s, self.handover.lost(number, "ended"))
        self._machine.settle(now_s)

    def check(self) -> None:
        """Assert every conservation law."""
        self.dispatcher.check()
        self._machine.leases.check()
        self.handover.check()
