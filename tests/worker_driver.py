"""Drives one real worker process over its channel, as the head does, for tests."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.process_settings import ProcessSettings
from partita.core.tensors import DataType, TensorSpec
from partita.system.channels import Channel, channel_pair
from partita.system.processes import WorkerProcess, spawn_worker, worker_environment
from partita.system.shared_memory import SharedMemory
from partita.wire.codec import decode_from_worker, encode
from partita.wire.messages import (
    BatchDone,
    BatchFailed,
    Chunk,
    Execute,
    Ready,
    Start,
    StartFailed,
    Stop,
    WorkerToHead,
)
from partita.worker.elements import pack_elements

COMMAND = (sys.executable, "-P", "-m", "partita.worker")
ARENA_BYTES = 1 << 20
EXIT_LIMIT_S = 30.0


class WorkerDriver:
    """The head's end: writes items to X, sends messages, reads outputs from P."""

    def __init__(self, process: WorkerProcess, channel: Channel, arena: SharedMemory) -> None:
        self.process = process
        self.channel = channel
        self.arena = arena
        self.outputs: SharedMemory | None = None
        self.ready: Ready | None = None
        self._at = 0
        self._batch_id = 0

    def receive(self) -> WorkerToHead:
        frame, fds = self.channel.receive()
        message = decode_from_worker(frame)
        if isinstance(message, Ready):
            self.ready = message
            self.outputs = SharedMemory.attach(fds[0], message.output_arena_bytes, writable=False)
        return message

    def start(self) -> Ready:
        message = self.receive()
        assert isinstance(message, Ready), message
        return message

    def put(self, array: NDArray[Any]) -> int:
        """Write items into X, returning where; 64-byte aligned."""
        data = pack_elements(array) if array.dtype.kind in "OSU" else array.tobytes()
        offset = self._at
        if offset + len(data) > self.arena.nbytes:
            offset = 0
        self.arena.view[offset : offset + len(data)] = data
        self._at = (offset + len(data) + 63) // 64 * 64
        return offset

    def execute(
        self, *chunks: Sequence[NDArray[Any]], slot: int = 0, executions: Sequence[int] = (), **more: Any
    ) -> int:
        """Send `Execute` of these chunks (each: the rows of every input, in order); returns its id."""
        self._batch_id += 1
        placed = tuple(Chunk(len(chunk[0]), tuple(self.put(array) for array in chunk)) for chunk in chunks)
        self.channel.send(encode(Execute(self._batch_id, slot, placed, executions=tuple(executions), **more)))
        return self._batch_id

    def run(self, *chunks: Sequence[NDArray[Any]], **more: Any) -> list[Any]:
        """Execute and return the outputs, copied; raises if the batch failed."""
        batch_id = self.execute(*chunks, **more)
        message = self.receive()
        assert isinstance(message, BatchDone), message
        assert message.batch_id == batch_id
        return self.read(message)

    def fail(self, *chunks: Sequence[NDArray[Any]], **more: Any) -> BatchFailed:
        """Execute and return the failure that is expected."""
        self.execute(*chunks, **more)
        message = self.receive()
        assert isinstance(message, BatchFailed), message
        return message

    def read(self, done: BatchDone) -> list[Any]:
        """Return a copy of a batch's outputs; texts as one packed bytes object."""
        assert self.outputs is not None
        assert self.ready is not None
        if done.output_arena_bytes:
            self.outputs.grow(done.output_arena_bytes)
        found: list[Any] = []
        for output, spec in zip(done.outputs, self.ready.signature.outputs, strict=True):
            data = bytes(self.outputs.view[output.offset : output.offset + output.size])
            if spec.datatype is DataType.BYTES:
                found.append(data)
            else:
                found.append(np.frombuffer(data, spec.datatype.numpy).reshape(output.shape))
        return found

    def stop(self) -> int | None:
        self.channel.send(encode(Stop()))
        return self.process.wait(EXIT_LIMIT_S)


@contextmanager
def worker(
    path: Path | str,
    *,
    runtime: str = "onnxruntime",
    threads: int = 1,
    cores: Sequence[int] = (),
    max_batch: int = 8,
    handler: str | None = None,
    inputs: Sequence[TensorSpec] | None = None,
    arena_bytes: int = ARENA_BYTES,
    process_settings: ProcessSettings | None = None,
    **more: Any,
) -> Iterator[WorkerDriver]:
    """Start a worker and send it `Start`; on leaving, end and reap it, whatever happened."""
    channel, theirs = channel_pair()
    process = spawn_worker(
        COMMAND, theirs, env=worker_environment(threads, process_settings or ProcessSettings()), name="test"
    )
    arena = SharedMemory.create(arena_bytes, "inputs")
    driver = WorkerDriver(process, channel, arena)
    try:
        start = Start(
            instance=0,
            model="test",
            path=str(path),
            runtime=runtime,
            threads=threads,
            cores=tuple(cores),
            max_batch=max_batch,
            handler=handler,
            inputs=None if inputs is None else tuple(inputs),
            input_arena_bytes=arena_bytes,
            **more,
        )
        read_only = arena.reopen_read_only()
        channel.send(encode(start), [read_only])
        os.close(read_only)
        yield driver
    finally:
        process.kill()
        process.wait(EXIT_LIMIT_S)
        channel.close()
        arena.close()
        if driver.outputs is not None:
            driver.outputs.close()


def start_failure(driver: WorkerDriver) -> StartFailed:
    message = driver.receive()
    assert isinstance(message, StartFailed), message
    assert driver.process.wait(EXIT_LIMIT_S) == 1
    return message
