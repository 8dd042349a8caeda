"""Runs plans in turns, every instance of a plan really at work at once, in workers that all plans share."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from types import TracebackType
from typing import Self

from partita.core.plan import Plan
from partita.engine.engine import WORKER_ARGV
from partita.engine.instance import ModelLaunch
from partita.profiling.inputs import calibration
from partita.profiling.solo import InputRows, SoloWorker

BURST = 3
"""Batches in one turn; the first wakes the workers up and is not counted."""
REST_S = 0.002
"""Between turns, so that the threads of one plan no longer spin when the next begins."""
ARENA_BYTES = 1 << 32


class Race:
    """Workers by their cores. Plans must be placed. A `launch` says what executes the model, and how.

    With `told` a batch took what the slowest of its instances says. Else it is what passes here, which is
    more where all cores are at work: who waits for an answer then may be let run milliseconds late.
    """

    def __init__(
        self, path: Path, *, largest: int, launch: ModelLaunch | None = None, told: bool = False
    ) -> None:
        self._told = told
        self._launch = launch or ModelLaunch(name=path.stem, path=str(path), runtime="onnxruntime")
        self._largest = largest
        self._rows = InputRows(ARENA_BYTES)
        self._workers: dict[tuple[int, ...], SoloWorker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.kill()
        self._rows.close()

    def turn_ms(self, plan: Plan, *, burst: int = BURST) -> float:
        """Return the milliseconds of one aggregate batch, the least of a turn but for its first."""
        self._load(plan)
        sleep(REST_S)
        return min([self.batch_ms(plan) for _ in range(burst)][burst > 1 :])

    def turns(self, plans: Sequence[Plan], *, count: int, work_s: float = 0.0) -> list[list[float]]:
        """Return the milliseconds of one aggregate batch of every plan in every turn: [plan][turn].

        A turn is a burst; with `work_s` it goes on for so long, and its figure is the median: one batch of a
        small model is over before anything else that happens on the machine is.
        """
        for plan in plans:
            self._load(plan)
        times: list[list[float]] = [[] for _ in plans]
        for _ in range(count):
            for plan, found in zip(plans, times, strict=True):
                sleep(REST_S)
                found.append(self._worked_ms(plan, work_s))
        return times

    def _worked_ms(self, plan: Plan, work_s: float) -> float:
        """Return the milliseconds of a batch, the first left out."""
        until = perf_counter() + work_s
        times = [self.batch_ms(plan) for _ in range(BURST)][1:]
        if work_s <= 0.0:
            return min(times)
        while perf_counter() < until:
            times.append(self.batch_ms(plan))
        return median(times)

    def batch_ms(self, plan: Plan) -> float:
        """Run one aggregate batch; returns the time until the last instance has finished."""
        shares = [
            (self._workers[one.cores], self._rows.batch(one.batch), one.executions) for one in plan.instances
        ]
        begun = perf_counter()
        for worker, batch, executions in shares:
            worker.send(batch, executions)
        done = [worker.done() for worker, _, _ in shares]
        took_ms = (perf_counter() - begun) * 1e3
        return max(one.total_ns for one in done) / 1e6 if self._told else took_ms

    def _load(self, plan: Plan) -> None:
        for one in plan.instances:
            if one.cores in self._workers:
                continue
            worker = SoloWorker(
                self._launch,
                cores=one.cores,
                argv=WORKER_ARGV,
                inputs=self._rows.memory,
                execution_limit_s=60.0,
            )
            is_first = not self._workers
            self._workers[one.cores] = worker
            signature = worker.until_ready().signature
            if is_first:
                self._rows.use(calibration(signature).items, largest=self._largest)
