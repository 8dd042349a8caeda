"""The workers that a model is measured with: one for each thread count, asleep while another runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from partita.core.clock import Clock
from partita.core.tensors import Signature
from partita.engine.instance import ModelLaunch
from partita.engine.worker_warnings import WorkerWarnings
from partita.profiling.inputs import Items
from partita.profiling.solo import InputRows, SoloWorker
from partita.profiling.turns import AtOnce, Turn, Turns
from partita.system.memory import available_bytes
from partita.wire.archive_call import RUNTIME as ARCHIVE
from partita.wire.messages import BatchDone

_ROOM = 2.0
"""A further worker starts beside the others while memory for this many is free."""
_SETTLING = 3
"""Executions of an archive's worker that do not count. Others warm up before they are ready; here nobody knew
with what, and TorchScript looks at its first runs before it makes the code that the later ones execute."""
_TRIES = 4
"""An execution that is stopped on the way is run again, but no more often than this in all."""
_LONG_MS = 20.0
"""One that takes longer counts even so: to stop it a few times changes it little."""
_TOO_FAST = 0.7
"""Of the time that the last one took: it was stopped as it told its time, which that does not show."""


class Took(NamedTuple):
    """Time of one execution as the worker itself saw it, and of that the inference alone."""

    total_ms: float
    infer_ms: float


class Another(NamedTuple):
    """What one more worker took: seconds until it was ready, and memory that it shares with nobody."""

    load_s: float
    private_bytes: int | None


class Bench:
    """Starts workers when first needed; `close` ends all of them."""

    def __init__(
        self,
        launch: ModelLaunch,
        *,
        cores: Sequence[int],
        argv: Sequence[str],
        arena_bytes: int,
        clock: Clock,
        execution_limit_s: float,
        note: Callable[[str], None],
        turns: Turns | None = None,
    ) -> None:
        self.load_s = 0.0
        """Longest time from starting a worker process until it was ready."""
        self._last_load_s = 0.0
        self._launch = launch
        self._cores = tuple(cores)
        self._argv = tuple(argv)
        self._clock = clock
        self._execution_limit_s = execution_limit_s
        self._warnings = WorkerWarnings(note)
        self._turns = turns or AtOnce()
        self._last_ms: dict[tuple[int, int], float] = {}
        self._workers: dict[int, SoloWorker] = {}
        self._fresh: set[SoloWorker] = set()
        """Workers that have executed nothing yet."""
        self._rows = InputRows(arena_bytes)

    def begin(self) -> tuple[Signature, str]:
        """Load the model with all cores; returns signature and runtime version. Raises `LoadFailed`."""
        worker = self._worker(len(self._cores))
        assert worker.ready is not None
        return worker.ready.signature, worker.ready.runtime_version

    def limit(self, *, load_s: float, execution_s: float) -> None:
        """Let loading, and a batch, take up to so long from now on."""
        self._launch = replace(self._launch, load_limit_s=load_s)
        self._execution_limit_s = execution_s
        for worker in self._workers.values():
            worker.limit(execution_s)

    def use(self, items: Items, *, largest: int) -> None:
        """Measure with these items, in batches of up to `largest`. Raises `MemoryError` if X is too small."""
        self._rows.use(items, largest=largest)

    def run(self, threads: int, batch: int) -> Took:
        """Execute one batch. Raises `ExecutionFailed`, `LoadFailed` or `MemoryError`."""
        worker, placed = self._worker(threads), self._rows.batch(batch)
        if worker in self._fresh:
            self._fresh.discard(worker)
            for _ in range(_SETTLING):
                with self._turns.turn(worker):
                    worker.run(placed)
        last_ms = self._last_ms.get((threads, batch))
        expected_s = None if last_ms is None else last_ms / 1e3
        for tries in range(1, _TRIES + 1):
            with self._turns.turn(worker, expected_s=expected_s, spoiled=tries > 1) as turn:
                done = worker.run(placed)
            took = _running(done, turn)
            if not turn.stops or tries == _TRIES or _counts(took, last_ms):
                break
        self._last_ms[threads, batch] = took.total_ms
        return took

    def calculate(self, items: Items) -> dict[str, NDArray[Any]]:
        """Return the outputs of these items, executed as one batch with all cores; they replace those in use.

        Raises `ExecutionFailed`, `LoadFailed` or `MemoryError`.
        """
        worker = self._worker(len(self._cores))
        count = len(next(iter(items.values())))
        self._rows.use(items, largest=count)
        return worker.outputs(worker.run(self._rows.batch(count)))

    def start_another(self) -> "Another":
        """Start one more worker beside that of all cores, and say what it took. Raises `LoadFailed`.

        It has one core, or all if that is one; then it ends at once, for no point is measured with it.
        """
        extra = self._start(1)
        assert extra.ready is not None
        if len(self._cores) > 1 and 1 not in self._workers:
            self._workers[1] = extra
            return Another(load_s=self._last_load_s, private_bytes=extra.private_bytes())
        private = extra.private_bytes()
        extra.close()
        return Another(load_s=self._last_load_s, private_bytes=private)

    def memory(self, threads: int) -> tuple[int | None, int | None]:
        """Memory of the worker of this thread count, bytes: what it holds, and what it shares with nobody."""
        worker = self._workers.get(threads)
        return (None, None) if worker is None else (worker.resident_bytes(), worker.private_bytes())

    def resident_bytes(self, threads: int) -> int | None:
        """Memory that the worker of this thread count holds now."""
        worker = self._workers.get(threads)
        return None if worker is None else worker.resident_bytes()

    def drop(self, threads: int) -> None:
        """End the worker of this thread count; the next `run` starts a new one."""
        worker = self._workers.pop(threads, None)
        if worker is not None:
            self._fresh.discard(worker)
            worker.kill()

    def close(self) -> None:
        """End all workers and let go of X."""
        for threads in list(self._workers):
            self.drop(threads)
        self._rows.close()

    def _worker(self, threads: int) -> SoloWorker:
        if threads in self._workers:
            self._workers[threads] = self._workers.pop(threads)  # the last used is last
            return self._workers[threads]
        self._make_room()
        worker = self._workers[threads] = self._start(threads)
        if self._launch.runtime == ARCHIVE:
            self._fresh.add(worker)
        return worker

    def _start(self, threads: int) -> SoloWorker:
        begun_s = self._clock.now_s()
        worker = SoloWorker(
            self._launch,
            cores=self._cores[:threads],
            argv=self._argv,
            inputs=self._rows.memory,
            execution_limit_s=self._execution_limit_s,
        )
        try:
            with self._turns.turn(worker):
                ready = worker.until_ready()
        except BaseException:
            worker.kill()
            raise
        self._last_load_s = self._clock.now_s() - begun_s
        self.load_s = max(self.load_s, self._last_load_s)
        self._warnings.take(self._launch.name, self._cores[:threads], ready)
        return worker

    def _make_room(self) -> None:
        """End the worker that was used longest ago where memory for one more may be short."""
        largest = max((w.resident_bytes() or 0 for w in self._workers.values()), default=0)
        while self._workers and (free := available_bytes()) is not None and free < _ROOM * largest:
            self.drop(next(iter(self._workers)))


def _running(done: BatchDone, turn: Turn) -> Took:
    """Return the times of an execution without those in which it was stopped."""
    if not turn.stops:
        return Took(done.total_ns / 1e6, done.infer_ns / 1e6)
    total_ms = max(done.total_ns / 1e6 - 1e3 * turn.stopped_s, 1e-3)
    return Took(total_ms, total_ms * done.infer_ns / done.total_ns)


def _counts(took: Took, last_ms: float | None) -> bool:
    """Whether the time of an execution that was stopped on the way is good for anything."""
    return took.total_ms >= _LONG_MS and (last_ms is None or took.total_ms >= _TOO_FAST * last_ms)
