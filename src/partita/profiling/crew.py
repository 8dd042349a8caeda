"""Runs plans by hand: all instances of a plan at once, in workers that all plans share.

While one plan executes the workers of the others are stopped. What a plan takes is what its workers tell, not
what passes in the process that asks: who waits for an answer while all cores are at work may be let run
milliseconds late, and plans of many instances would seem slow.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from partita.core.plan import InstanceSpec, Plan
from partita.core.tensors import Signature
from partita.engine.instance import ModelLaunch
from partita.engine.worker_warnings import WorkerWarnings
from partita.profiling.inputs import calibration, load_samples
from partita.profiling.solo import InputRows, SoloWorker
from partita.wire.messages import BatchDone


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewSettings:
    """What executes the model, and the items it gets: samples, else such as its signature allows."""

    launch: ModelLaunch
    worker_argv: tuple[str, ...]
    samples: Path | None = None
    execution_limit_s: float = 120.0
    arena_bytes: int = 1 << 34
    note: Callable[[str], None] = field(default=lambda _: None)


class Crew:
    """Workers by their cores; plans that have an instance on the same cores share its worker.

    Plans must be placed: every instance with its cores. `largest` is the most items that an instance gets.
    """

    def __init__(self, settings: CrewSettings, *, largest: int) -> None:
        self._settings = settings
        self._largest = largest
        self._rows = InputRows(settings.arena_bytes)
        self._warnings = WorkerWarnings(settings.note)
        self._workers: dict[tuple[int, ...], SoloWorker] = {}
        self._has_items = False
        self._awake: Plan | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers and let go of the items."""
        for worker in self._workers.values():
            worker.kill()
        self._rows.close()

    def load(self, plan: Plan) -> None:
        """Start the workers of a plan that are missing and wait for them. Raises `LoadFailed`."""
        for instance in plan.instances:
            if instance.cores not in self._workers:
                self._load(instance)

    @contextmanager
    def awake(self, plan: Plan) -> Iterator[None]:
        """Have the workers of a loaded plan ready to execute, and no others.

        Threads that wait for work by spinning do so for tens of milliseconds after an execution. Where they
        are another plan's, an instance would have to wait for the core that is its own.
        """
        workers = [self._workers[one.cores] for one in plan.instances]
        for worker in workers:
            worker.resume()
        self._awake = plan
        try:
            yield
        finally:
            self._awake = None
            for worker in workers:
                worker.pause()

    def batch_ms(self, plan: Plan) -> float:
        """Run one aggregate batch of a plan that is awake, all instances at once; returns its `span_ms`.

        Raises `ExecutionFailed`.
        """
        assert self._awake is plan, "its workers sleep"
        shares = [
            (self._workers[one.cores], self._rows.batch(one.batch), one.executions) for one in plan.instances
        ]
        for worker, batch, executions in shares:
            worker.send(batch, executions)
        return span_ms([worker.done() for worker, _, _ in shares])

    def _load(self, instance: InstanceSpec) -> None:
        settings = self._settings
        worker = SoloWorker(
            settings.launch,
            cores=instance.cores,
            argv=settings.worker_argv,
            inputs=self._rows.memory,
            execution_limit_s=settings.execution_limit_s,
        )
        self._workers[instance.cores] = worker
        ready = worker.until_ready()
        self._warnings.take(settings.launch.name, instance.cores, ready)
        worker.pause()
        if not self._has_items:
            self._use(ready.signature)

    def _use(self, signature: Signature) -> None:
        settings = self._settings
        samples = None if settings.samples is None else load_samples(settings.samples, signature)
        items = calibration(signature, samples=samples, dimensions=settings.launch.dimensions).items
        self._rows.use(items, largest=self._largest)
        self._has_items = True


def span_ms(done: Sequence[BatchDone]) -> float:
    """Return the milliseconds from when the first of these batches began until the last was over.

    All must come from workers of one machine.
    """
    begun_ns = min(one.begun_ns for one in done)
    return max(one.begun_ns + one.total_ns - begun_ns for one in done) / 1e6
