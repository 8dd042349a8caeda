"""One served name: admission, item memory, the life of its requests, and their answers.

A single model is an ensemble of one: its service has one member and the identity rule.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from partita.core.clock import Clock
from partita.core.errors import (
    DeadlineExceeded,
    InferenceFailed,
    ModelUnavailable,
    QueueFull,
    RequestError,
    ShuttingDown,
    SwitchFailed,
)
from partita.core.plan import Plan
from partita.core.tensors import Signature
from partita.engine.arena import ALIGNMENT, InputArena, aligned
from partita.engine.call_sample import CallSample
from partita.engine.deadlines import Deadlines
from partita.engine.instance import ModelLaunch
from partita.engine.member import InstanceFactory, Member
from partita.engine.refusals import refusal
from partita.engine.request import Buffer, Layout, Request, Shapes, Sink, joined
from partita.engine.service_state import ServiceSettings, ServiceState
from partita.engine.statistics import Statistics
from partita.engine.switching import Switch
from partita.machines.leases import CoreLeases
from partita.machines.work import Job

if TYPE_CHECKING:
    from partita.engine.observing import RequestObserver

RAGGED = "ragged"
"""Key of the pool, counted in bytes, that items of differing sizes lie in."""


class Service:
    """Takes requests for one name and sees each of them to its one outcome."""

    def __init__(
        self,
        name: str,
        version: str,
        launch: ModelLaunch,
        settings: ServiceSettings,
        *,
        leases: CoreLeases,
        make_instance: InstanceFactory,
        rows_hint: int,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self.name = name
        self.version = version
        self.settings = settings
        self.state = ServiceState.LOADING
        self.failure: str | None = None
        self.statistics = Statistics()
        self.sample: CallSample | None = None  # of an archive that is to be measured
        self.plan: Plan | None = None
        self.arena = InputArena(settings.arena_bytes, name=f"{name}-inputs", rows_hint=rows_hint)
        self._loop = loop
        self._clock = clock
        self._now_s = clock.now_s
        self._deadlines = Deadlines(self._late, loop=loop, clock=clock)
        self._changed = asyncio.Event()
        self.memo: dict[Any, Any] = {}
        """For protocols: what they derived from this service's signature, kept as long as the service."""
        self._launch = launch
        self.member = self._make_member(
            leases=leases,
            statistics=self.statistics,
            owner=self,
            make_instance=make_instance,
            loop=loop,
            clock=clock,
        )
        self._queue = self.member.dispatcher.queue
        self.observer: RequestObserver | None = None
        """Who follows requests, if anybody."""

    def _make_member(self, **parts: Any) -> Member:
        return Member(self._launch, self.settings.rules, **parts)

    @property
    def signature(self) -> Signature:
        """What the service takes and gives; raises `ModelUnavailable` before its first worker is ready."""
        signature = self.member.signature
        if signature is None:
            raise ModelUnavailable(f"model {self.name!r} is {self.state.value}" + self._because())
        return signature

    @property
    def has_signature(self) -> bool:
        """Whether the model was ever loaded, so that `signature` can be told."""
        return self.member.signature is not None

    def last_inference_ms(self) -> int:
        """Wall-clock time of the newest answer, milliseconds since 1970; 0 before the first."""
        answered_s = self.statistics.last_answer_s
        return int((answered_s - self._now_s() + self._clock.wall_s()) * 1000) if answered_s else 0

    @property
    def is_ready(self) -> bool:
        """Whether a request admitted now would be executed at once or after those before it."""
        return self.state is ServiceState.READY and self.member.ready_instances > 0

    def _because(self) -> str:
        return f": {self.failure}" if self.failure else ""

    # --- starting and stopping --------------------------------------------------------------------

    def start(self, plan: Plan, numbers: Iterator[int]) -> None:
        """Start the instances of a placed plan; `numbers` are unique on this machine."""
        self.plan = plan
        self.member.start(plan, numbers)

    def switch(self, plan: Plan, *, reason: str = "asked for") -> Switch:
        """Change to another placed plan without losing a request; the switch tells what becomes of it."""
        switcher = self.member.switcher
        if switcher is None:
            raise SwitchFailed(f"model {self.name!r} was not started")
        return switcher.switch(plan, reason)

    def plan_changed(self, plan: Plan) -> None:
        """Another plan is in force."""
        self.plan = plan
        self.arena.rows_hint = 2 * max(instance.batch for instance in plan.instances)

    async def until_ready(self) -> None:
        """Wait until every instance is ready, or has given up beside ready ones.

        Raises `ModelUnavailable` with the reason of a failure.
        """
        while True:
            if self.state is ServiceState.FAILED or (self.state is ServiceState.LOADING and self.failure):
                raise ModelUnavailable(f"model {self.name!r} could not be loaded{self._because()}")
            if all(i.is_ready or i.has_given_up for i in self.member.instances.values()):
                return
            self._changed.clear()
            await self._changed.wait()

    async def drain(self, grace_s: float) -> None:
        """Refuse new requests, finish what was accepted within `grace_s`, fail the rest, end the workers."""
        if self.state not in (ServiceState.FAILED, ServiceState.STOPPED):
            self.state = ServiceState.DRAINING
        self.member.close_switcher()
        ended = await self._wait_until(lambda: self.statistics.in_flight() == 0, self._now_s() + grace_s)
        self._fail_everything(ShuttingDown("the server stopped before this request was answered"))
        self.member.drain()
        if not ended:
            self.member.kill("still executing after the grace period", only_busy=True)
        if not await self._wait_until(lambda: self.member.is_gone, self._now_s() + 5.0):
            self.member.kill("still running after the grace period")
            await self._wait_until(lambda: self.member.is_gone, self._now_s() + 5.0)
        if self.state is ServiceState.STOPPED:
            return
        self.member.forget()
        self.state = ServiceState.STOPPED
        self._deadlines.cancel()
        self.arena.close()

    def abandon(self, reason: str) -> None:
        """Fail what is in hand and end the workers at once; a drain that is under way ends with it."""
        self._fail_everything(ShuttingDown(f"the server stopped: {reason}"))
        self.member.kill(reason)
        self._changed.set()

    async def _wait_until(self, condition: Any, deadline_s: float) -> bool:
        while not condition():
            left_s = deadline_s - self._now_s()
            if left_s <= 0:
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)
        return True

    # --- admission --------------------------------------------------------------------------------

    def submit(
        self,
        buffers: Sequence[Buffer],
        n_items: int,
        layout: Layout,
        sink: Sink,
        context: Any = None,
        deadline_s: float | None = None,
    ) -> Request:
        """Accept a request: write its items into X and queue it.

        `buffers` hold each input's n items, row-major, in signature order. `deadline_s` is relative to now.
        Raises `RequestError` (queue full, not ready, too many items, …) and then keeps nothing.
        """
        if self.state is not ServiceState.READY or not self._queue.can_admit(n_items):
            raise self._refusal(n_items)
        request = Request(n_items, layout, sink, context, self._now_s())
        arena = self.arena
        pool = arena.pools.get(layout.lane) or arena.pool(layout.lane, layout.row_bytes)
        extent = pool.reserve(n_items)
        if extent is None:
            raise self._refused(QueueFull(f"the item memory of model {self.name!r} is full; try again later"))
        request.extent = extent
        request.first_row = row = extent.rows - n_items
        view = arena.view
        starts, widths = extent.starts, layout.row_bytes
        if len(buffers) == 1 == len(starts):
            begin = starts[0] + row * widths[0]
            view[begin : begin + n_items * widths[0]] = buffers[0]
        else:
            for start, row_bytes, buffer in zip(starts, widths, buffers, strict=True):
                begin = start + row * row_bytes
                view[begin : begin + n_items * row_bytes] = buffer
        self._enqueue(request, deadline_s)
        return request

    def submit_ragged(
        self,
        items: Sequence[Sequence[Buffer]],
        layout: Layout,
        sink: Sink,
        context: Any = None,
        deadline_s: float | None = None,
    ) -> Request:
        """Accept a request whose items differ in size: of each item, the bytes of each input."""
        if self.state is not ServiceState.READY or not self._queue.can_admit(len(items)):
            raise self._refusal(len(items))
        sizes = [tuple(len(part) for part in item) for item in items]
        total = sum(aligned(size) for item in sizes for size in item)
        extent = self.arena.pool(RAGGED, (1,)).reserve(max(total, ALIGNMENT))
        if extent is None:
            raise self._refused(QueueFull(f"the item memory of model {self.name!r} is full; try again later"))
        request = Request(len(items), layout, sink, context, self._now_s())
        request.extent = extent
        at = extent.starts[0] + extent.rows - max(total, ALIGNMENT)
        request.item_spans = []
        for item, lengths in zip(items, sizes, strict=True):
            offsets = []
            for part, size in zip(item, lengths, strict=True):
                self.arena.view[at : at + size] = part
                offsets.append(at)
                at += aligned(size)
            request.item_spans.append((tuple(offsets), lengths))
        self._enqueue(request, deadline_s)
        return request

    def _enqueue(self, request: Request, deadline_s: float | None) -> None:
        request.jobs.append(self.member.admit(request))
        self.statistics.accepted += 1
        if self.observer is not None:
            self.observer.admitted(self, request)
        limit_s = deadline_s if deadline_s is not None else self.settings.deadline_s
        if limit_s is not None:
            self._deadlines.set(request, request.arrived_s + limit_s)

    def _refused(self, error: RequestError) -> RequestError:
        self.statistics.count_refusal(error.code)
        if self.observer is not None:
            self.observer.refused(self, error)
        return error

    def _refusal(self, n_items: int) -> RequestError:
        limit = self.settings.rules.max_queue_items
        return self._refused(refusal(self.name, self.state, self.failure, n_items=n_items, limit=limit))

    # --- outcomes ---------------------------------------------------------------------------------

    def cancel(self, request: Request) -> None:
        """The client is gone. What waits is never executed; what executes is thrown away."""
        if not request.ended:
            self.statistics.cancelled += 1
            self._end(request)
            if request.watch is not None:
                request.watch.cancelled()

    def piece_done(
        self, job: Job, first: int, count: int, outputs: Sequence[Buffer], rows: Shapes, now_s: float
    ) -> None:
        """Answer the request, or keep the piece until the others are there."""
        request: Request = job.owner
        if count == request.n_items:
            self._answer(request, outputs, rows, now_s)
            return
        if request.partial is None:
            request.partial = []
        tails = tuple(shape[1:] for shape in rows)
        request.partial.append((first, [bytes(o) for o in outputs], tails))
        request.missing_items -= count
        if not request.missing_items:  # not "all settled": a batch may hold two pieces of one job
            whole = joined(request.partial)
            request.partial = None
            if whole is None:
                text = "outputs of this request's batches differ in shape and cannot be joined"
                self.job_failed(job, InferenceFailed(text))
            else:
                shapes = tuple((request.n_items, *tail) for tail in whole[1])
                self._answer(request, whole[0], shapes, now_s)

    def _answer(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes, now_s: float) -> None:
        statistics = self.statistics
        statistics.count_answer(request.n_items, now_s - request.arrived_s)
        statistics.last_answer_s = now_s
        request.ended = True
        for job in request.jobs:  # all its items are settled: nothing waits or runs
            job.ended = True
        if self.sample is not None:
            self.sample.look(request, self.arena.view, outputs)
        self._recycle(request)
        if self.state is ServiceState.DRAINING:
            self._changed.set()
        request.sink.answered(request, outputs, shapes)

    def job_failed(self, job: Job, error: RequestError) -> None:
        """End the request with this error."""
        self.fail(job.owner, error)

    def fail(self, request: Request, error: RequestError) -> None:
        """End a request with an error, wherever it is."""
        if not request.ended:
            self.statistics.count_failure(error.code, self._now_s() - request.arrived_s)
            self._end(request)
            request.sink.failed(request, error)

    def job_expired(self, job: Job) -> None:
        """It waited in the queue longer than the queue timeout."""
        limit_s = self.settings.rules.queue_timeout_s or 0.0
        self.fail(job.owner, DeadlineExceeded(f"waited in the queue longer than {limit_s:g} s"))

    def _end(self, request: Request) -> None:
        request.ended = True
        request.partial = None
        running = 0
        for job in request.jobs:
            if self.member.dispatcher.end(job):
                self.member.schedule()
            running += job.running
        if not running:
            self._recycle(request)
        if self.state is ServiceState.DRAINING:
            self._changed.set()

    def job_settled(self, job: Job) -> None:
        """Nothing of an ended request runs any more: its memory is free."""
        self._recycle(job.owner)

    def _recycle(self, request: Request) -> None:
        extent = request.extent
        if extent is not None:
            request.extent = None
            request.jobs.clear()  # they point back: no cycle is left for the collector
            extent.pool.release(extent)

    def _late(self, request: Request) -> None:
        self.fail(request, DeadlineExceeded("the request's deadline passed before its answer was there"))

    # --- members ----------------------------------------------------------------------------------

    def member_ready(self, member: Member) -> None:
        """The service can answer."""
        assert member is self.member
        if self.state in (ServiceState.LOADING, ServiceState.FAILED):
            self.state = ServiceState.READY
            self.failure = None
        self._changed.set()

    def member_lost(self, reason: str) -> None:
        """A worker is gone; the newest reason is shown while the service cannot answer."""
        if self.state is ServiceState.LOADING:
            self.failure = reason
        self._changed.set()

    def member_failed(self, member: Member, reason: str) -> None:
        """No worker will come back: what waits fails, and new requests are refused with the reason."""
        assert member is self.member
        self.failure = reason
        if self.state is not ServiceState.DRAINING:
            self.state = ServiceState.FAILED
        self._fail_everything(ModelUnavailable(f"model {self.name!r} has failed: {reason}"))
        self._changed.set()

    def _fail_everything(self, error: RequestError) -> None:
        for job in self.member.dispatcher.unfinished_jobs():
            self.fail(job.owner, error)

    def check(self) -> None:
        """Assert the conservation laws: requests, queue, batches, leases, extents."""
        self.member.dispatcher.check()
        self.arena.check()
        unfinished, in_flight = len(self.member.dispatcher.unfinished_jobs()), self.statistics.in_flight()
        assert in_flight == unfinished, (in_flight, unfinished)
        assert unfinished or self.member.dispatcher.running_items or not self.arena.owned_items()


__all__ = ["Service", "ServiceSettings", "ServiceState"]
