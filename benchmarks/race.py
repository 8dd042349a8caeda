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
from partita.profiling.crew import Crew, CrewSettings

BURST = 3
"""Batches in one turn; the first wakes the workers up and is not counted."""
REST_S = 0.002
"""Before a turn among others that are no crew's, so that their threads no longer spin."""
ARENA_BYTES = 1 << 32


class Race:
    """A crew and its turns. Plans must be placed. A `launch` says what executes the model, and how."""

    def __init__(self, path: Path, *, largest: int, launch: ModelLaunch | None = None) -> None:
        launch = launch or ModelLaunch(name=path.stem, path=str(path), runtime="onnxruntime")
        self._crew = Crew(
            CrewSettings(
                launch=launch, worker_argv=WORKER_ARGV, execution_limit_s=60.0, arena_bytes=ARENA_BYTES
            ),
            largest=largest,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._crew.close()

    def turn_ms(self, plan: Plan, *, burst: int = BURST) -> float:
        """Return the milliseconds of one aggregate batch, the least of a turn but for its first."""
        self._crew.load(plan)
        sleep(REST_S)
        with self._crew.awake(plan):
            return min([self._crew.batch_ms(plan) for _ in range(burst)][burst > 1 :])

    def turns(self, plans: Sequence[Plan], *, count: int, work_s: float = 0.0) -> list[list[float]]:
        """Return the milliseconds of one aggregate batch of every plan in every turn: [plan][turn].

        A turn is a burst; with `work_s` it goes on for so long, and its figure is the median: one batch of a
        small model is over before anything else that happens on the machine is.
        """
        for plan in plans:
            self._crew.load(plan)
        times: list[list[float]] = [[] for _ in plans]
        for _ in range(count):
            for plan, found in zip(plans, times, strict=True):
                with self._crew.awake(plan):
                    found.append(self._worked_ms(plan, work_s))
        return times

    def _worked_ms(self, plan: Plan, work_s: float) -> float:
        """Return the milliseconds of a batch, the first left out."""
        until = perf_counter() + work_s
        times = [self._crew.batch_ms(plan) for _ in range(BURST)][1:]
        if work_s <= 0.0:
            return min(times)
        while perf_counter() < until:
            times.append(self._crew.batch_ms(plan))
        return median(times)
