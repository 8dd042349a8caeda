"""One worker process that is driven by hand: the same messages as in serving, one batch at a time."""

import contextlib
import os
import select
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.devices import Device
from partita.core.errors import ConnectionClosed, LoadFailed, PartitaError
from partita.core.tensors import DataType
from partita.engine.device_host import gpu_message
from partita.engine.instance import ModelLaunch
from partita.profiling.inputs import Items, packed, rows, unpacked
from partita.system.channels import channel_pair
from partita.system.memory import private_bytes, resident_bytes
from partita.system.processes import gpu_environment, spawn_worker, worker_environment
from partita.system.shared_memory import SharedMemory
from partita.wire.codec import decode_from_worker, encode
from partita.wire.messages import (
    BatchDone,
    BatchFailed,
    Chunk,
    Execute,
    Output,
    PartDone,
    Ready,
    Start,
    StartFailed,
    Stop,
    WorkerToHead,
)

_ALIGNMENT = 64
_EXIT_S = 5.0
_WARM_UP_BATCH = 2
"""Largest batch of the worker's own warm-up: two sizes show which output axes differ."""


class ExecutionFailed(PartitaError):
    """A batch raised, took too long or ended its worker."""

    code = "execution_failed"


class TookTooLong(ExecutionFailed):
    """A batch, or loading, was not over within its limit."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A batch that lies in X, ready to be executed any number of times."""

    rows: int
    chunks: tuple[Chunk, ...]
    shapes: tuple[tuple[int, ...], ...] | None = None
    sizes: tuple[tuple[int, ...], ...] | None = None


class InputRows:
    """X for measuring: the calibration items in one arena, written once for the largest batch asked for."""

    def __init__(self, nbytes: int) -> None:
        self.memory = SharedMemory.create(nbytes, "calibration")
        self._items: Items | None = None
        self._placed: dict[int, Placed] = {}
        self._written = 0
        self._offsets: tuple[int, ...] = ()

    def use(self, items: Items, *, largest: int) -> None:
        """Lay out room for batches of up to `largest` of these items. Raises `MemoryError`.

        Other items than before take their place; no batch of those may be executing.
        """
        self._items = items
        self._placed.clear()
        self._written = 0
        starts, at = [], 0
        for array in items.values():
            starts.append(at)
            at += -(-len(packed(array[:1])) * largest // _ALIGNMENT) * _ALIGNMENT
            if array.dtype == object:
                at += max(len(packed(array[i : i + 1])) for i in range(len(array))) * largest
        if at > self.memory.nbytes:
            raise MemoryError(f"a batch of {largest} items needs {at} bytes")
        self._offsets = tuple(starts)

    def batch(self, count: int) -> Placed:
        """Return a batch of `count` items, written to X if it was not yet."""
        if count not in self._placed:
            self._placed[count] = self._place(count)
        return self._placed[count]

    def close(self) -> None:
        """Let go of X."""
        self.memory.close()

    def _place(self, count: int) -> Placed:
        assert self._items is not None
        arrays = list(rows(self._items, count).values())
        if any(array.dtype == object for array in arrays):
            return self._place_one_by_one(arrays, count)
        if count > self._written:
            for offset, array in zip(self._offsets, arrays, strict=True):
                data = packed(array)
                self.memory.view[offset : offset + len(data)] = data
            self._written = count
        shapes = tuple(array.shape[1:] for array in arrays)
        return Placed(count, (Chunk(count, self._offsets),), shapes)

    def _place_one_by_one(self, arrays: Sequence[Any], count: int) -> Placed:
        at = list(self._offsets)
        chunks, sizes = [], []
        for row in range(count):
            data = [packed(array[row : row + 1]) for array in arrays]
            chunks.append(Chunk(1, tuple(at)))
            sizes.append(tuple(len(one) for one in data))
            for k, one in enumerate(data):
                self.memory.view[at[k] : at[k] + len(one)] = one
                at[k] += len(one)
        shapes = tuple(array.shape[1:] for array in arrays)
        return Placed(count, tuple(chunks), shapes, tuple(sizes))


class SoloWorker:
    """A pinned worker with t threads. `until_ready` waits for it; `close` always ends it."""

    def __init__(
        self,
        launch: ModelLaunch,
        *,
        cores: Sequence[int],
        argv: Sequence[str],
        inputs: SharedMemory,
        execution_limit_s: float,
        max_batch: int = _WARM_UP_BATCH,
        memory_at: tuple[int, ...] = (),
        gpu: Device | None = None,
    ) -> None:
        """`gpu` is where the model is to be; None = on the cores."""
        self.launch = launch
        self.cores = tuple(cores)
        self.ready: Ready | None = None
        self._limit_s = execution_limit_s
        self._batch_id = 0
        self._outputs: SharedMemory | None = None
        self._channel, theirs = channel_pair()
        try:
            self._process = spawn_worker(
                argv,
                theirs,
                env={**worker_environment(len(cores), launch.process), **_environment(gpu)},
                name=f"profile-{len(cores)}",
            )
        except BaseException:
            self._channel.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._channel.fileno(), select.POLLIN)
        descriptor = inputs.reopen_read_only()
        try:
            with contextlib.suppress(ConnectionClosed):
                self._channel.send(
                    encode(self._start_message(inputs.nbytes, max_batch, memory_at, gpu)), [descriptor]
                )
        finally:
            os.close(descriptor)

    @property
    def threads(self) -> int:
        """Cores, and threads, of this worker."""
        return len(self.cores)

    @property
    def pid(self) -> int:
        """Process number."""
        return self._process.pid

    @property
    def has_read(self) -> bool:
        """Whether it has begun: from then on it ends with us. True of a dead one."""
        return self._process.dies_with_us or self._channel.is_read

    def until_ready(self) -> Ready:
        """Wait for the model to be loaded. Raises `LoadFailed`, or the worker's reason by its class."""
        try:
            message = self._receive(self.launch.load_limit_s, "loading")
        except ExecutionFailed as error:
            raise LoadFailed(str(error)) from error
        match message:
            case Ready():
                self.ready = message
                return message
            case StartFailed():
                raise LoadFailed(message.reason)
        raise LoadFailed("the worker did not say that it is ready")

    def limit(self, execution_limit_s: float) -> None:
        """Let batches take up to so long from now on."""
        self._limit_s = execution_limit_s

    def pause(self) -> None:
        """Stop a worker that is ready where it is until `resume`."""
        self._process.pause()

    def resume(self) -> None:
        """Let it go on."""
        self._process.resume()

    def send(self, batch: Placed, executions: tuple[int, ...] = ()) -> None:
        """Have a batch executed; `done` waits for it. Raises `ExecutionFailed` if the worker is gone."""
        self._batch_id += 1
        static = self.ready is not None and self.ready.signature.is_static
        shapes = None if static else batch.shapes
        try:
            self._channel.send(
                encode(Execute(self._batch_id, 0, batch.chunks, shapes, batch.sizes, executions))
            )
        except ConnectionClosed as error:
            raise ExecutionFailed("the worker process ended") from error

    def done(self) -> BatchDone:
        """Wait for the batch that was sent. Raises `ExecutionFailed`."""
        message = self._receive(self._limit_s, "one batch")
        while isinstance(message, PartDone):  # of a call that wanted its answer in parts
            message = self._receive(self._limit_s, "one batch")
        match message:
            case BatchDone():
                if message.output_arena_bytes and self._outputs is not None:
                    self._outputs.grow(message.output_arena_bytes)
                return message
            case BatchFailed():
                raise ExecutionFailed(message.reason)
        raise ExecutionFailed("the worker answered something that was not asked")

    def run(self, batch: Placed, executions: tuple[int, ...] = ()) -> BatchDone:
        """Execute a batch. Raises `ExecutionFailed`."""
        self.send(batch, executions)
        return self.done()

    def outputs(self, done: BatchDone) -> dict[str, NDArray[Any]]:
        """Return copies of a batch's outputs by name, (items, *item shape), before the next one is sent."""
        assert self.ready is not None
        assert self._outputs is not None
        return {
            spec.name: _output(
                spec.datatype, self._outputs.view, output, batched=self.ready.signature.batched
            )
            for spec, output in zip(self.ready.signature.outputs, done.outputs, strict=True)
        }

    def resident_bytes(self) -> int | None:
        """Memory that the process holds now."""
        return resident_bytes(self._process.pid)

    def private_bytes(self) -> int | None:
        """Of that, what no other process has a part in."""
        return private_bytes(self._process.pid)

    def fileno(self) -> int:
        """The channel's descriptor, readable when a batch is done."""
        return self._channel.fileno()

    def close(self) -> None:
        """End the worker and reap it: asked first, killed if it does not go."""
        with contextlib.suppress(ConnectionClosed, OSError):
            self._channel.send(encode(Stop()))
        if self.ready is None or self._process.wait(_EXIT_S) is None:
            self._process.kill()
            self._process.wait()
        self._channel.close()
        if self._outputs is not None:
            self._outputs.close()
            self._outputs = None

    def kill(self) -> None:
        """End the worker at once and reap it."""
        self._process.kill()
        self._process.wait()
        self.close()

    def _receive(self, limit_s: float, what: str) -> WorkerToHead:
        if not self._poll.poll(limit_s * 1000):
            raise TookTooLong(f"{what} took longer than the limit of {limit_s:.3g} s")
        try:
            frame, fds = self._channel.receive()
        except ConnectionClosed as error:
            code = self._process.wait(_EXIT_S)
            raise ExecutionFailed(f"the worker process ended (status {code})") from error
        message = decode_from_worker(frame)
        if isinstance(message, Ready):
            self._outputs = SharedMemory.attach(fds.pop(0), message.output_arena_bytes, writable=False)
        for fd in fds:
            os.close(fd)
        return message

    def _start_message(
        self, arena_bytes: int, max_batch: int, memory_at: tuple[int, ...], gpu: Device | None
    ) -> Start:
        launch = self.launch
        return Start(
            instance=0,
            model=launch.name,
            path=launch.path,
            runtime=launch.runtime,
            threads=self.threads,
            cores=self.cores,
            max_batch=max_batch,
            memory_at=memory_at,
            gpu=None if gpu is None else gpu_message(gpu),
            handler=launch.handler,
            options=launch.options,
            inputs=launch.inputs,
            dimensions=launch.dimensions,
            input_arena_bytes=arena_bytes,
            output_slots=1,
        )


def _environment(gpu: Device | None) -> dict[str, str]:
    return {} if gpu is None else gpu_environment(gpu)


def _output(datatype: DataType, memory: memoryview, output: Output, *, batched: bool) -> NDArray[Any]:
    """Return one output of a batch; that of a model without a batch axis as the only item."""
    data = memory[output.offset : output.offset + output.size]
    if datatype is DataType.BYTES:
        array = unpacked(data, output.shape)
    else:
        array = np.frombuffer(data, datatype.numpy).reshape(output.shape).copy()
    return array if batched else array[None]
