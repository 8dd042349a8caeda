"""Forms batches from one member's queue and hands them to its instances.

A pure state machine: the engine tells it what happened and at what time, and asks what to send. It knows
items, lanes and instances; it never sees item data, workers or clients.
"""

from dataclasses import dataclass
from enum import StrEnum

from partita.machines.job_queue import JobQueue
from partita.machines.leases import CoreLeases
from partita.machines.seats import Seat, shares, split
from partita.machines.work import Batch, Job, Lost, Piece

MAX_DEATHS = 2
"""An item that was being executed in this many worker deaths is not tried again."""


class Policy(StrEnum):
    """When a batch is formed (DESIGN §3)."""

    EAGER = "eager"
    """An idle instance takes up to r items as soon as they wait, or the oldest has waited the timeout."""
    AGGREGATE = "aggregate"
    """Packrat §3.5: collect B items or until the batch timeout, then partition them over all instances."""


TURN_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingRules:
    """How one member's batches are formed."""

    policy: Policy = Policy.EAGER
    batch_timeout_s: float = 0.0
    """Longest that the oldest item waits for a fuller batch."""
    queue_timeout_s: float | None = None
    """Longest that a job waits until its first item is dispatched."""
    execution_limit_s: float = 60.0
    """Longest that one dispatched batch may execute before its worker is taken for hung."""
    max_queue_items: int = 1024
    turn_s: float = TURN_S
    """How long an instance may execute in one go where others wait for its cores. Changing turns costs a
    tenth of a millisecond or more."""


class Dispatcher:
    """Batching, dispatch, retry and quarantine for one member model."""

    def __init__(self, rules: BatchingRules, leases: CoreLeases) -> None:
        self.rules = rules
        self.queue = JobQueue(max_items=rules.max_queue_items)
        self._leases = leases
        self._seats: dict[int, Seat] = {}
        self._by_size: list[Seat] = []
        self._next_batch_id = 0
        self.running_items = 0
        self.timeouts = 0
        """Batches that were formed because the batch timeout had passed, and not because they were full
        (policy `aggregate`; under `eager` a batch that is not full is no sign of anything).
        """

    # --- instances --------------------------------------------------------------------------------

    def add_instance(self, instance: int, threads: int, batch: int, executions: tuple[int, ...]) -> None:
        """Let an instance take work. Its cores must be registered with the leases."""
        assert instance not in self._seats, instance
        self._seats[instance] = Seat(instance, threads, batch, executions)
        self._order_seats()

    def reseat_instance(self, instance: int, batch: int, executions: tuple[int, ...]) -> None:
        """From now on it takes batches of this size, even if it was retiring; its worker is not touched."""
        self._seats[instance].change(batch, executions)
        self._order_seats()

    def retire_instance(self, instance: int) -> None:
        """Give it no new work; what it has in hand it finishes (`is_idle` tells when)."""
        self._seats[instance].retiring = True
        self._order_seats()

    def remove_instance(self, instance: int) -> None:
        """Forget an idle instance."""
        assert not self._seats[instance].batches, "remove_instance needs an idle instance"
        self._leases.withdraw(instance)
        del self._seats[instance]
        self._order_seats()

    def has_instance(self, instance: int) -> bool:
        """Whether it takes part in the dispatch."""
        return instance in self._seats

    def is_idle(self, instance: int) -> bool:
        """Whether the instance has nothing in hand."""
        return not self._seats[instance].batches

    def executing(self, instance: int) -> Batch | None:
        """The batch that it executes now; None where it executes nothing or takes no part."""
        seat = self._seats.get(instance)
        return seat.batches[0] if seat is not None and seat.batches else None

    def lose_instance(self, instance: int) -> Lost:
        """The instance is gone and reaped. Quarantine: what it was executing is re-run one job at a time.

        A batch that still waited in its channel goes back unmarked. A job whose items were being executed
        in `MAX_DEATHS` deaths fails, and so does one that is partly answered.
        """
        seat = self._seats.pop(instance)
        self._leases.withdraw(instance)
        self._order_seats()
        if not seat.batches:
            return Lost([], None, [])
        self._leases.release(instance)
        executing = seat.batches.popleft()
        touched = [job for b in (executing, *seat.batches) for job, _, _ in b.pieces]
        for waiting in seat.batches:
            self._give_back(waiting, alone=False)
        failed: list[Job] = []
        for job in dict.fromkeys(job for job, _, _ in executing.pieces):
            job.deaths += 1
            if (job.deaths >= MAX_DEATHS or job.is_partly_answered) and not job.ended:
                failed.append(job)
        self._give_back(executing, alone=True)
        return Lost(failed, executing, touched)

    def _order_seats(self) -> None:
        self._withdraw_all()  # an aggregate batch asks for all its seats at once: they queue up anew together
        taking = (s for s in self._seats.values() if not s.retiring)
        self._by_size = sorted(taking, key=lambda s: (-s.threads, -s.batch, s.instance))

    @property
    def depth(self) -> int:
        """Items queued and in flight."""
        return self.queue.items + self.running_items

    # --- jobs -------------------------------------------------------------------------------------

    def can_admit(self, n_items: int) -> bool:
        """Whether the bounded queue has room."""
        return self.queue.can_admit(n_items)

    def admit(self, job: Job) -> None:
        """Queue a job; ask `can_admit` first."""
        self.queue.admit(job)

    def end(self, job: Job) -> bool:
        """The job was answered, failed or cancelled: nothing of it is dispatched from now on.

        Returns whether to call `take`: where it waited, a fuller lane may come first now.
        """
        if job.ended:
            return False
        job.ended = True
        if job.settled + job.running == job.n_items:
            return False
        self.queue.drop(job)
        if not self.queue.items:
            self._withdraw_all()
        return self.queue.items > 0

    def unfinished_jobs(self) -> list[Job]:
        """Every job that was admitted and has not ended."""
        running = [job for seat in self._seats.values() for b in seat.batches for job, _, _ in b.pieces]
        jobs = dict.fromkeys((*running, *self.queue.waiting_jobs()))
        return [job for job in jobs if not job.ended]

    # --- batches ----------------------------------------------------------------------------------

    def take(self, now_s: float) -> list[Batch]:
        """Form every batch that the policy allows now; the caller sends them."""
        if not self.queue.items:
            self._withdraw_all()
            return []
        if self.rules.policy is Policy.AGGREGATE:
            return self._take_aggregate(now_s)
        return self._take_eager(now_s)

    def _take_eager(self, now_s: float) -> list[Batch]:
        batches: list[Batch] = []
        formed = -1
        while self.queue.items and len(batches) > formed:
            # Once more after any batch: it may have brought a fuller lane to the head, for one passed over.
            formed = len(batches)
            self._take_idle(batches, now_s)
            if len(batches) == formed:
                self._take_ahead(batches, now_s)
        if not self.queue.items:
            self._withdraw_all()
        return batches

    def _take_idle(self, batches: list[Batch], now_s: float) -> None:
        """Let every idle seat begin whose cores are free."""
        for seat in self._by_size:
            if not self.queue.items:
                return
            if seat.batches:
                continue
            if not self._worth_starting(seat, now_s):
                self._leases.withdraw(seat.instance)
                continue
            if not self._leases.can_lease(seat.instance):
                self._leases.wait((seat.instance,))
                continue
            batch = self._form(seat, self._turn(seat), (), now_s)
            if batch is not None:
                batches.append(batch)

    def _turn(self, seat: Seat) -> int:
        """Items that an idle seat takes at once: those of one execution, or of a turn on shared cores."""
        items = self.queue.items
        if items <= seat.micro_batch or not self._leases.has_rivals(seat.instance):
            return seat.micro_batch
        return seat.turn(self.rules.turn_s, items, len(self._by_size))

    def _take_ahead(self, batches: list[Batch], now_s: float) -> None:
        """Form one batch ahead for every busy seat, so that no core waits for the head: only a full one."""
        queue = self.queue
        for seat in self._by_size:
            if queue.items < seat.micro_batch:
                continue
            if len(seat.batches) != 1 or self._leases.has_rivals(seat.instance):
                continue
            if queue.next_lane_items(seat.micro_batch) >= seat.micro_batch:
                batch = self._form(seat, seat.micro_batch, (), now_s)
                if batch is not None:
                    batches.append(batch)

    def _withdraw_all(self) -> None:
        if self._leases.has_waiting:
            for instance in self._seats:
                self._leases.withdraw(instance)

    def _worth_starting(self, seat: Seat, now_s: float) -> bool:
        wait_s = self.rules.batch_timeout_s
        if wait_s <= 0 or self.queue.next_lane_items(seat.micro_batch) >= seat.micro_batch:
            return True
        head = self.queue.head()
        return head is not None and (head.deaths > 0 or now_s - head.admitted_s >= wait_s)

    def _take_aggregate(self, now_s: float) -> list[Batch]:
        seats = self._by_size
        if not seats or any(s.batches for s in seats):
            return []
        total = sum(s.batch for s in seats)
        waiting = self.queue.next_lane_items(total)
        head = self.queue.head()
        if head is None or (
            waiting < total and not head.deaths and now_s - head.admitted_s < self.rules.batch_timeout_s
        ):
            self._withdraw_all()
            return []
        together = [s.instance for s in seats]
        if not all(self._leases.can_lease(instance, together) for instance in together):
            self._leases.wait(together)
            return []
        batches = []
        for seat, share in zip(seats, shares(waiting, [s.batch for s in seats]), strict=True):
            if share and self.queue.items and self._leases.can_lease(seat.instance, together):
                executions = seat.executions if share == seat.batch else ()
                batch = self._form(seat, share, executions or split(share, seat.micro_batch), now_s)
                if batch is not None:
                    batches.append(batch)
                    self.timeouts += waiting < total
        self._withdraw_all()
        return batches

    def _form(self, seat: Seat, limit: int, executions: tuple[int, ...], now_s: float) -> Batch | None:
        pieces, items = self.queue.take(limit)
        if not items:
            return None
        if items != limit if executions else items > seat.micro_batch:
            executions = split(items, seat.micro_batch)
        self._next_batch_id += 1
        batch = Batch(self._next_batch_id, seat.instance, pieces, items, executions, now_s)
        if not seat.batches:
            self._leases.lease(seat.instance)
            seat.started_s = seat.heard_s = now_s
        seat.batches.append(batch)
        self.running_items += items
        return batch

    def part_done(self, instance: int, batch_id: int, row: int, now_s: float) -> Job | None:
        """The instance told a part of an item's answer: it is not hung, and the job cannot be tried again.

        None where nobody waits for the answer any more, or this is not the batch at hand.
        """
        batch = self.executing(instance)
        if batch is None or batch.batch_id != batch_id or row < 0:
            return None
        for job, _, count in batch.pieces:
            if row < count:
                self._seats[instance].heard_s = now_s
                if job.ended:
                    return None
                job.is_partly_answered = True
                return job
            row -= count
        return None

    def finish(self, instance: int, batch_id: int, now_s: float) -> Batch:
        """The instance's oldest batch was executed: its items are settled."""
        seat = self._seats[instance]
        started_s = seat.started_s
        batch = self._settle(instance, batch_id, now_s)
        if self._leases.has_rivals(instance):
            seat.took(batch, now_s - started_s)
        for job, _, count in batch.pieces:
            job.running -= count
            job.settled += count
        self.running_items -= batch.items
        return batch

    def fail(self, instance: int, batch_id: int, now_s: float) -> tuple[Batch, list[Job]]:
        """The instance's oldest batch raised. Its jobs run again, alone; one that was alone, or is partly
        answered, fails.
        """
        batch = self._settle(instance, batch_id, now_s)
        is_alone = len(batch.pieces) == 1
        jobs = dict.fromkeys(job for job, _, _ in batch.pieces if is_alone or job.is_partly_answered)
        self._give_back(batch, alone=True)
        return batch, [job for job in jobs if not job.ended]

    def _settle(self, instance: int, batch_id: int, now_s: float) -> Batch:
        seat = self._seats[instance]
        batches = seat.batches  # asked before anything is changed: workers may lie
        assert batches, batch_id
        assert batches[0].batch_id == batch_id, (batches[0].batch_id, batch_id)
        batch = batches.popleft()
        if seat.batches:
            seat.started_s = seat.heard_s = now_s
        else:
            self._leases.release(instance)
        return batch

    def _give_back(self, batch: Batch, *, alone: bool) -> None:
        for piece in batch.pieces:
            job, _, count = piece
            job.running -= count
            if not job.ended:
                self.queue.put_back(piece, alone=alone)
        self.running_items -= batch.items

    # --- time -------------------------------------------------------------------------------------

    def next_wake_s(self, now_s: float) -> float | None:
        """When to call `take`, `expired_job` and `hung_instances` again if nothing else happens.

        `now_s` is the time that `take` was called with: a batch timeout that had passed by then is no
        reason to wake, since what is missing is an idle instance or its cores.
        """
        rules = self.rules
        times = [s.heard_s + rules.execution_limit_s for s in self._seats.values() if s.batches]
        if self.queue.items:
            if rules.batch_timeout_s > 0:
                head = self.queue.head()
                is_early = head is not None and now_s - head.admitted_s < rules.batch_timeout_s
                if head is not None and is_early and any(not s.batches for s in self._by_size):
                    times.append(head.admitted_s + rules.batch_timeout_s)
            if rules.queue_timeout_s is not None:
                oldest = self.queue.oldest_unstarted()
                if oldest is not None:
                    times.append(oldest.admitted_s + rules.queue_timeout_s)
        return min(times, default=None)

    def expired_job(self, now_s: float) -> Job | None:
        """A job whose queue timeout has passed; end it and ask again."""
        if self.rules.queue_timeout_s is None:
            return None
        oldest = self.queue.oldest_unstarted()
        if oldest is None or now_s - oldest.admitted_s < self.rules.queue_timeout_s:
            return None
        return oldest

    def hung_instances(self, now_s: float) -> list[int]:
        """Instances whose batch has executed longer than allowed: kill their workers.

        One that is still there after another such time is told again.
        """
        limit_s = self.rules.execution_limit_s
        hung = [s for s in self._seats.values() if s.batches and now_s - s.heard_s >= limit_s]
        for seat in hung:
            seat.heard_s = now_s
        return [seat.instance for seat in hung]

    def check(self) -> None:
        """Assert the conservation laws of queue, seats and leases."""
        self.queue.check()
        self._leases.check()
        running = [p for s in self._seats.values() for b in s.batches for p in b.pieces]
        assert sum(p[2] for p in running) == self.running_items
        for job in {p[0] for p in running}:
            assert job.running == sum(p[2] for p in running if p[0] is job)
            assert job.settled + job.running <= job.n_items


__all__ = ["MAX_DEATHS", "Batch", "BatchingRules", "Dispatcher", "Job", "Lost", "Piece", "Policy"]
