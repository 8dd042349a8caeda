"""One instance with real IO: its process, its channel, its outputs, and the life that it leads."""

import asyncio
import os
from collections.abc import Collection, Sequence

import msgspec

from partita.core.clock import Clock
from partita.core.errors import ConnectionClosed
from partita.core.plan import InstanceSpec
from partita.core.tensors import Signature
from partita.engine.device_host import DeviceHosts, HostedWorker, gpu_message
from partita.engine.launch import ModelLaunch
from partita.engine.owner import Owner
from partita.engine.worker_warnings import WorkerWarnings
from partita.machines.worker_life import GiveUp, Instruction, RestartRules, State, WakeAt, WorkerLife
from partita.system.channels import Channel, channel_pair
from partita.system.memory import resident_bytes
from partita.system.processes import WorkerProcess, exit_reason, worker_environment
from partita.system.shared_memory import SharedMemory
from partita.system.spawner import Spawner
from partita.wire.codec import MalformedMessage, decode_from_worker, encode
from partita.wire.messages import (
    BatchDone,
    BatchFailed,
    Execute,
    Message,
    PartDone,
    Ready,
    Start,
    StartFailed,
    Stop,
)

SHARE_AGAIN_S = 0.2
OUTPUT_SLOTS = 3
"""One batch executes, one waits in the channel, one is being answered."""


class Instance:
    """Starts the worker, speaks with it, and starts it again when it dies.

    Everything runs on the loop's thread, which must live as long as the workers (they die with it).
    """

    def __init__(
        self,
        number: int,
        spec: InstanceSpec,
        launch: ModelLaunch,
        *,
        argv: tuple[str, ...],
        inputs: SharedMemory,
        owner: Owner,
        owns_cores: bool,
        rules: RestartRules,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        spawner: Spawner,
        warnings: WorkerWarnings,
        hosts: DeviceHosts,
        is_aside: bool = False,
    ) -> None:
        self.number = number
        self.spec = spec
        self.launch = launch.variant(spec)
        self.life = WorkerLife(rules)
        self.outputs: SharedMemory | None = None
        self.ready: Ready | None = None
        self.reason = ""
        self._argv = argv
        self._inputs = inputs
        self._owner = owner
        self._owns_cores = owns_cores
        self._loop = loop
        self._clock = clock
        self._spawner = spawner
        self._warnings = warnings
        self._hosts = hosts
        self._begins_aside = is_aside
        self._has_full_share = True
        """Whether it is to weigh as much as others of whoever wants the CPU."""
        self._process: WorkerProcess | HostedWorker | None = None
        self._channel: Channel | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._slot = 0
        self._paused_at_s: float | None = None
        self._paused_s = 0.0
        self._is_deaf = False
        """Whether the worker broke the protocol, so that nothing that it says counts any more."""

    @property
    def is_ready(self) -> bool:
        """Whether batches may be sent."""
        return self.life.state is State.READY

    @property
    def has_given_up(self) -> bool:
        """Whether it failed so often that it will not come back."""
        return self.life.state is State.FAILED

    @property
    def pid(self) -> int | None:
        """Process number of the worker, None while there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def is_hosted(self) -> bool:
        """Whether it is in a process with others, which would end with it."""
        return isinstance(self._process, HostedWorker)

    @property
    def resident_bytes(self) -> int:
        """What its process holds in memory now, shared mappings included; 0 while there is none.

        More than when it was ready (`Ready.resident_bytes`) once it has executed large batches.
        """
        return 0 if self.pid is None else resident_bytes(self.pid) or 0

    @property
    def signature(self) -> Signature | None:
        """What the worker said its model takes and gives; None before it was ever ready."""
        return self.ready.signature if self.ready is not None else None

    # --- starting ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the worker process, stepped back if made so; `Owner.instance_ready` follows."""
        self.life.started()
        self._launch(is_aside=self._begins_aside)

    def step_back(self) -> None:
        """Leave it only what others do not need of the CPU, until it is ready or `step_forward`."""
        self._give_share(full=False)

    def step_forward(self) -> bool:
        """Take that back once it can be stopped, which is better; returns whether it could be by now."""
        if not self._may_be_stopped:
            return False
        self._give_share(full=True)
        return True

    @property
    def _may_be_stopped(self) -> bool:
        """Whether it would die with its head even so."""
        if self._process is None or self._channel is None:
            return False
        return self._process.dies_with_us or self._channel.is_read

    def yield_to(self, free: Collection[int]) -> bool:
        """While it loads, run only on these of its cores; on none, stop for now.

        It is not stopped before it would die with its head even so: False = not yet, try again.
        """
        if self._process is None or self._channel is None:
            return True
        if free:
            self._process.confine(free)
            self._resume()
        elif self._paused_at_s is None and self.life.state is State.STARTING:
            if not self._may_be_stopped:
                return False
            self._paused_at_s = self._clock.now_s()
            self._process.pause()
        return True

    def become(self, spec: InstanceSpec) -> None:
        """Be this in the plan that is in force now; the worker goes on as it is."""
        moves = (spec.affinity or spec.cores) != (self.spec.affinity or self.spec.cores)
        self.spec = spec
        if moves:
            self.go_home()

    def go_home(self) -> None:
        """Run wherever the spec allows."""
        self.yield_to(self.spec.affinity or self.spec.cores)

    def _resume(self) -> None:
        if self._paused_at_s is not None and self._process is not None:
            self._paused_s += self._clock.now_s() - self._paused_at_s
            self._paused_at_s = None
            self._process.resume()

    def _launch(self, *, is_aside: bool) -> None:
        self._channel, theirs = channel_pair()
        self._is_deaf, self._has_full_share = False, not is_aside
        gpu = self.launch.gpu(self.spec)
        if gpu is None:
            self._process = self._spawner.spawn(
                self._argv,
                theirs,
                env=worker_environment(self.spec.threads, self.launch.process),
                name=f"{self.launch.name}-{self.number}",
                cpus=self.spec.affinity or self.spec.cores,  # it pins itself there too, but begins anywhere
                is_aside=is_aside,
            )
        else:
            self._process = self._hosts.adopt(gpu, self.number, theirs)
        self._loop.add_reader(self._channel.fileno(), self._readable)
        self._loop.add_reader(self._process.pidfd, self._ended)
        if isinstance(self._process, HostedWorker):  # the time in which others load there is not its own
            self._process.when_its_turn(self._limit_loading)
        else:
            self._limit_loading()
        read_only = self._inputs.reopen_read_only()
        try:
            self._send(self._start_message(), [read_only])
        finally:
            os.close(read_only)

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        assert self._channel is not None
        try:  # noqa: SIM105 a context manager costs as much as the rest of this call
            self._channel.send(encode(message), fds)
        except ConnectionClosed:
            pass  # a worker that is gone already is reported by its process descriptor, like any other end

    def _start_message(self) -> Start:
        spec, launch = self.spec, self.launch
        gpu = launch.gpu(spec)
        return Start(
            instance=self.number,
            model=launch.name,
            path=launch.path,
            runtime=launch.runtime,
            threads=spec.threads,
            cores=spec.affinity or spec.cores,
            owns_cores=self._owns_cores,
            max_batch=max(spec.batch, spec.micro_batch),
            handler=launch.handler,
            options=launch.options,
            inputs=launch.inputs,
            dimensions=launch.dimensions,
            memory_at=launch.memory_at,
            gpu=None if gpu is None else gpu_message(gpu),
            input_arena_bytes=self._inputs.nbytes,
            output_slots=OUTPUT_SLOTS,
            max_output_bytes=launch.max_output_bytes,
        )

    def _limit_loading(self) -> None:
        self._timer = self._loop.call_later(self.launch.load_limit_s, self._load_timed_out)

    def _load_timed_out(self) -> None:
        if self._paused_at_s is not None:
            now_s = self._clock.now_s()
            self._paused_s += now_s - self._paused_at_s
            self._paused_at_s = now_s
        if self._paused_s > 0:  # that time was not its own
            self._timer = self._loop.call_later(self._paused_s, self._load_timed_out)
            self._paused_s = 0.0
            return
        self.kill(f"not ready within its load limit of {self.launch.load_limit_s:g} s")

    # --- batches ----------------------------------------------------------------------------------

    def next_slot(self) -> int:
        """The output slot for the next batch, in turn."""
        self._slot = (self._slot + 1) % OUTPUT_SLOTS
        return self._slot

    def execute(self, message: Execute) -> None:
        """Send a batch; only to a ready instance."""
        self._send(message)

    # --- events -----------------------------------------------------------------------------------

    def _readable(self) -> bool:
        """Take one frame, if one is there; returns whether it was. The loop calls again for the next."""
        channel = self._channel
        if channel is None or self._is_deaf:
            return False
        try:
            received = channel.receive_nowait()
            if received is not None:
                self._handle(*received)
                return True
        except ConnectionClosed:
            self._loop.remove_reader(channel.fileno())
            if isinstance(self._process, WorkerProcess):  # one that it shares with others tells how it left
                self._kill_process()  # its end, with the exit status, is reported by the process descriptor
        except (MalformedMessage, msgspec.DecodeError, ValueError, AssertionError) as error:
            self._is_deaf = True
            self._loop.remove_reader(channel.fileno())
            self.kill(f"the worker broke the protocol: {error}")
        return False

    def _handle(self, frame: bytes, fds: list[int]) -> None:
        message = decode_from_worker(frame)
        if type(message) is BatchDone:  # the one that comes all the time
            if message.output_arena_bytes and self.outputs is not None:
                self.outputs.grow(message.output_arena_bytes)
            self._owner.batch_done(self, message)
            return
        match message:
            case PartDone():
                self._owner.part_done(self, message)
            case BatchFailed():
                self._owner.batch_failed(self, message)
            case Ready():
                self._became_ready(message, fds)
            case StartFailed():
                self.reason = message.reason

    def _became_ready(self, ready: Ready, fds: list[int]) -> None:
        (fd,) = fds
        self.outputs = SharedMemory.attach(fd, ready.output_arena_bytes, writable=False)
        self._cancel_timer()
        if isinstance(self._process, HostedWorker):
            self._process.is_loaded()
        self.ready = ready
        self._warnings.take(self.launch.name, self.spec.affinity or self.spec.cores, ready)
        self._give_share(full=True)
        self.life.became_ready(self._clock.now_s())
        if self.is_ready:
            self._owner.instance_ready(self)

    def _ended(self) -> None:
        assert self._process is not None
        while self._readable():  # what it said before it ended still counts
            pass
        self._loop.remove_reader(self._process.pidfd)
        code = self._process.reap()
        reason = self.reason or exit_reason(code)
        self.reason = ""
        self._cancel_timer()
        self._close_io()
        was_loading = self.life.state is State.STARTING
        instruction = self.life.died(self._clock.now_s(), reason)
        self._owner.instance_lost(self, reason if not was_loading else f"could not load: {reason}")
        self._follow(instruction)

    def _follow(self, instruction: Instruction) -> None:
        match instruction:
            case WakeAt(at_s=at_s) if self.life.state is State.WAITING:  # not drained meanwhile
                self._timer = self._loop.call_at(at_s, self._backoff_passed)
            case GiveUp(reason=reason):
                self._owner.instance_gave_up(self, reason)

    def _backoff_passed(self) -> None:
        self._timer = None
        if self.life.backoff_passed() is not None:
            self._launch(is_aside=self.life.fails_to_start)

    def _give_share(self, *, full: bool) -> None:
        """One that failed to start before tries again with what others leave, until it is ready."""
        self._has_full_share = full
        self._set_share()

    def _set_share(self) -> None:
        if self._process is not None and self._process.is_stepped_back == self._has_full_share:
            done = self._process.step_forward() if self._has_full_share else self._process.step_back()
            if not done:  # the system allows so many changes a second
                self._loop.call_later(SHARE_AGAIN_S, self._set_share)

    # --- ending -----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Ask the worker to finish what it has in hand and go; it is not started again."""
        self.life.drain()
        if self._process is None:
            self._cancel_timer()
        else:
            self._send(Stop())

    def kill(self, reason: str) -> None:
        """End the worker at once; its end is reported with this reason."""
        self.reason = self.reason or reason
        self._kill_process()

    def _kill_process(self) -> None:
        if self._process is not None:
            self._process.kill()

    @property
    def is_gone(self) -> bool:
        """Whether no process of this instance is left."""
        return self._process is None

    def _close_io(self) -> None:
        if self._channel is not None:
            self._loop.remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None
        self._process = None
        self._paused_at_s = None
        if self.outputs is not None:
            self.outputs.close()
            self.outputs = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


__all__ = ["Instance", "ModelLaunch"]
