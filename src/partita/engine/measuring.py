"""A process that measures a model beside its traffic, as the engine sees it: it gets turns on the cores."""

import asyncio
import logging
import os
import sys
from contextlib import suppress

from partita.core.clock import Clock
from partita.core.errors import ConnectionClosed, PartitaError
from partita.engine.beginner import Beginner
from partita.engine.guest import Guest
from partita.engine.pacing import Pacer
from partita.engine.service import Service
from partita.engine.tuning_report import TuningReport, TuningState
from partita.machines.leases import CoreLeases
from partita.machines.tuning_pace import Mode, PaceRules, Phase, TuningPace
from partita.system.channels import Channel, channel_pair
from partita.system.processes import Bystander, WorkerProcess, thread_environment
from partita.system.shared_memory import SharedMemory
from partita.system.spawner import Spawner
from partita.wire.tuning import (
    Done,
    Failed,
    Finished,
    FromMeasuring,
    Go,
    MalformedTuningMessage,
    Measure,
    Measured,
    Note,
    Spent,
    TuningMessage,
    Want,
    decode_from_measuring,
    encode,
)

log = logging.getLogger("partita")

MEASURING_ARGV = (sys.executable, "-P", "-m", "partita.profiling")
"""How it is started; the engine knows no more of it than this."""
SAMPLE_S = 0.1
SETTLE_SAMPLES = 10
_END_S = 2.0
WALL = 3.0
"""Times its budget after which it ends, whatever waiting for others has left of it, but at the least:"""
LEAST_WALL_S = 90.0
_PHASES = {
    Phase.IDLE: TuningState.IDLE,
    Phase.RESTING: TuningState.RESTING,
    Phase.RUNNING: TuningState.RUNNING,
}


class MeasuringFailed(PartitaError):
    """A model could not be measured beside its traffic."""

    code = "measuring_failed"


class Measuring:
    """Runs the process to its end, in turn with the instances that serve."""

    def __init__(
        self,
        service: Service,
        number: int,
        leases: CoreLeases,
        rules: PaceRules,
        report: TuningReport,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        spawner: Spawner,
    ) -> None:
        self._service = service
        self._leases = leases
        self._number = number
        self._report = report
        self._loop = loop
        self._clock = clock
        self._spawner = spawner
        batch = 1 if service.plan is None else service.plan.batch
        self._pace = TuningPace(rules, now_s=clock.now_s(), batch=batch)
        self._guest = Guest(number, leases, loop=loop, clock=clock)
        self._want: Want | None = None
        self._workers: dict[int, Bystander] = {}
        self._outcome: asyncio.Future[bytes] = loop.create_future()
        self._process: WorkerProcess | None = None
        self._channel: Channel | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._rested = asyncio.Event()
        self._unsettled = SETTLE_SAMPLES if service.statistics.in_flight() else 0
        """Samples that still tell of what prepared this, and not of the traffic alone."""
        self._pacer: Pacer | None = None
        self._latest = b""
        """The profile as far as it is known."""
        self._ends_s = clock.now_s() + max(WALL * report.budget_s, LEAST_WALL_S)

    async def run(self, assignment: bytes, calls: SharedMemory | None = None) -> bytes:
        """Return the profile as its store writes it; `calls` are what an archive is measured with.

        Nothing is begun before it is known how soon answers come without it. When time is up it is
        what is known by then. Raises `MeasuringFailed`.
        """
        latencies = self._service.statistics.latencies
        latencies.fold()  # those of before say nothing of how it is now
        latencies.tap_s = []
        self._sample()
        try:
            await self._rested.wait()
            if not self._outcome.done():
                self._begin_process(assignment, calls)
            return await self._outcome
        finally:
            await self._end()

    def _begin_process(self, assignment: bytes, calls: SharedMemory | None) -> None:
        self._channel, theirs = channel_pair()
        environment = thread_environment(1)
        name = f"{self._service.name}-measuring"
        self._process = self._spawner.spawn(MEASURING_ARGV, theirs, env=environment, name=name)
        self._loop.add_reader(self._channel.fileno(), self._readable)
        self._loop.add_reader(self._process.pidfd, self._has_ended)
        plan = self._service.plan
        cores = () if plan is None else plan.placed_on
        beginner = Beginner(self._number, self._process, cores)
        self._pacer = Pacer(beginner, self._leases, loop=self._loop, clock=self._clock)
        self._pacer.start()
        if calls is None:
            self._send(Measure(assignment))
        else:
            self._send_with(Measure(assignment, calls.nbytes), calls)

    def _has_begun(self) -> None:
        """It has imported all that it needs, and asks for its turns from now on."""
        if self._pacer is not None:
            self._pacer.stop()
            self._pacer = None

    async def _end(self) -> None:
        """Leave nothing of it."""
        self._service.statistics.latencies.tap_s = None
        if self._timer is not None:
            self._timer.cancel()
        self._has_begun()
        if self._guest.is_busy:
            self._guest.end()
        if self._process is None or self._channel is None:
            return
        self._process.kill()
        await self._ended.wait()
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()
        deadline_s = self._clock.now_s() + _END_S
        while any(not worker.is_gone for worker in self._workers.values()):  # the kernel ends them with it
            if self._clock.now_s() > deadline_s:
                break
            await asyncio.sleep(0.002)
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _has_ended(self) -> None:
        assert self._process is not None
        self._loop.remove_reader(self._process.pidfd)
        while self._readable():
            pass
        code = self._process.reap()
        self._fail(f"the measuring process ended with status {code}")
        self._ended.set()

    def _fail(self, reason: str) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(MeasuringFailed(reason))

    # --- its messages -----------------------------------------------------------------------------

    def _send(self, message: TuningMessage) -> None:
        assert self._channel is not None
        with suppress(ConnectionClosed):  # its end is told by its process descriptor
            self._channel.send(encode(message))

    def _send_with(self, message: TuningMessage, memory: SharedMemory) -> None:
        """Send a message along with memory that may be read there."""
        assert self._channel is not None
        descriptor = memory.reopen_read_only()
        try:
            with suppress(ConnectionClosed):
                self._channel.send(encode(message), [descriptor])
        finally:
            os.close(descriptor)

    def _readable(self) -> bool:
        assert self._channel is not None
        try:
            received = self._channel.receive_nowait()
        except ConnectionClosed:
            self._loop.remove_reader(self._channel.fileno())
            return False
        if received is None:
            return False
        try:
            self._take(decode_from_measuring(received[0]))
        except MalformedTuningMessage as error:
            self._fail(f"the measuring process broke the protocol: {error}")
            return False
        return True

    def _take(self, message: FromMeasuring) -> None:
        report = self._report
        self._has_begun()
        match message:
            case Want():
                self._begin(message)
            case Done():
                self._turn_over()
            case Measured():
                report.points, report.left_s = message.points, message.left_s
                report.measured_s = message.elapsed_s
                self._latest = message.profile or self._latest
            case Note():
                log.info("%s, while it is measured: %s", self._service.name, message.text)
            case Finished() if not self._outcome.done():
                self._outcome.set_result(message.profile)
            case Failed():
                self._fail(message.reason)

    # --- turns ------------------------------------------------------------------------------------

    def _begin(self, want: Want) -> None:
        if self._outcome.done():  # nobody would end a turn that begins now
            return
        if self._guest.is_busy:
            self._fail("the measuring process asked for two turns at once")
            return
        if want.pid not in self._workers:
            try:
                self._workers[want.pid] = Bystander(want.pid)
            except ProcessLookupError:  # it has just ended, as its measuring process will see
                if not want.is_active:
                    self._send(Go())
                return
            self._workers[want.pid].step_back()
        self._want = want
        begun = None if want.is_active else self._go
        self._guest.begin(self._workers[want.pid], want.cores, begun, self._mode(want))

    def _go(self) -> None:
        self._send(Go())

    def _turn_over(self) -> None:
        if not self._guest.is_busy:
            self._send(Spent(0.0, 0.0, 0))
            return
        turn = self._guest.end()
        self._want = None
        if turn.held:
            self._pace.held(self._clock.now_s(), turn.ran_s)
        self._send(Spent(turn.waited_s, turn.stopped_s, turn.stops))

    def _time_is_up(self) -> None:
        """End with what is known."""
        self._rested.set()
        if self._outcome.done():
            return
        if self._latest:
            log.info(
                "%s: it is measured no longer: there was little time beside its traffic", self._service.name
            )
            self._outcome.set_result(self._latest)
        else:
            self._fail("there was no time to measure anything beside the traffic")

    def _mode(self, want: Want) -> Mode:
        if self._leases.has_guests_beside(self._number, want.cores):
            return Mode.WAIT  # a worker loads: that comes first
        waited_s, ran_s = self._guest.so_far if self._guest.is_busy else (0.0, 0.0)
        return self._pace.mode(
            self._clock.now_s(),
            expected_s=want.expected_s,
            spoiled=want.spoiled,
            waited_s=waited_s,
            ran_s=ran_s,
        )

    def _sample(self) -> None:
        self._timer = self._loop.call_later(SAMPLE_S, self._sample)
        latencies, dispatcher = self._service.statistics.latencies, self._service.member.dispatcher
        latencies.fold()
        new_s, latencies.tap_s = latencies.tap_s or [], []
        if self._unsettled:
            self._unsettled -= 1
            return
        queued = dispatcher.queue.items
        depth = queued + dispatcher.running_items
        self._pace.observe(self._clock.now_s(), new_s, queued=queued, depth=depth)
        if self._want is not None and self._guest.is_busy:
            self._guest.use(self._mode(self._want))
        if self._clock.now_s() >= self._ends_s:
            self._time_is_up()
        pace, report = self._pace, self._report
        if pace.phase is not Phase.RESTING:
            self._rested.set()
        if report.pauses != pace.pauses:
            log.info("%s: measuring pauses: %s", self._service.name, pace.reason)
        report.state = _PHASES[pace.phase]
        report.pauses, report.reason, report.p99_s = pace.pauses, pace.reason, pace.p99_s
        report.answers, report.slow = pace.answers, pace.slow
