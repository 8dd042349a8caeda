"""Verifies plans by running them with all instances at once, since profiles were taken alone (DESIGN §4).

Plans take turns, so that a machine that becomes slower does so for all of them; one that is slower than the
best in so many turns that it is hardly chance drops out, and leaves the time to those that are near. The best
is measured once more at the end: the least of several noisy figures is too good to be true.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import median
from time import sleep

from partita.core.clock import Clock
from partita.core.errors import InvalidInput
from partita.core.plan import InstanceSpec, Plan
from partita.core.tensors import Signature
from partita.engine.instance import ModelLaunch
from partita.engine.worker_warnings import WorkerWarnings
from partita.profiling.inputs import calibration, load_samples
from partita.profiling.solo import InputRows, Placed, SoloWorker

_WARM_UPS = 2
_LEAST_TURNS = 5
_BURST = 3
"""Batches in one turn; the first wakes the workers up and is not counted."""
_DEVIATIONS = 2.5
"""Standard deviations from half of the turns at which a plan counts as slower: by chance 1 in 150."""
_REST_S = 0.002
"""Between turns, so that the threads of one plan no longer spin when the next begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """What to run. `seconds` is for all plans together, loading not counted."""

    launch: ModelLaunch
    worker_argv: tuple[str, ...]
    seconds: float = 5.0
    samples: Path | None = None
    execution_limit_s: float = 120.0
    arena_bytes: int = 1 << 34
    note: Callable[[str], None] = field(default=lambda _: None)


def verify_plans(settings: VerifySettings, plans: Sequence[Plan], *, clock: Clock) -> list[Plan]:
    """Return the plans with `measured_ms`, the fastest first; those that dropped out come last.

    `measured_ms` is the median time until all instances have finished their share of one aggregate batch.
    Plans must be placed: every instance with its cores. Raises `LoadFailed` or `ExecutionFailed`.
    """
    if not plans:
        return []
    for plan in plans:
        if any(not instance.cores for instance in plan.instances):
            raise InvalidInput(f"plan {plan} has no cores assigned; place it first")
    rows = InputRows(settings.arena_bytes)
    largest = max(instance.batch for plan in plans for instance in plan.instances)
    crew = _Crew(settings, rows, largest)
    try:
        shares = [crew.shares(plan) for plan in plans]
        return _contest(plans, shares, settings.seconds, clock)
    finally:
        crew.close()
        rows.close()


@dataclass(frozen=True, slots=True)
class _Share:
    """One instance's part of the batch."""

    worker: SoloWorker
    batch: Placed
    executions: tuple[int, ...]


class _Crew:
    """Workers by their cores; plans that have an instance on the same cores share its worker."""

    def __init__(self, settings: VerifySettings, rows: InputRows, largest: int) -> None:
        self._settings = settings
        self._rows = rows
        self._warnings = WorkerWarnings(settings.note)
        self._workers: dict[tuple[int, ...], SoloWorker] = {}
        self._largest = largest
        self._has_items = False

    def shares(self, plan: Plan) -> list[_Share]:
        """Return what each instance of a plan runs, its worker loaded."""
        for instance in plan.instances:
            self._load(instance)
        return [
            _Share(self._workers[i.cores], self._rows.batch(i.batch), i.executions) for i in plan.instances
        ]

    def close(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    def _load(self, instance: InstanceSpec) -> None:
        settings = self._settings
        if instance.cores not in self._workers:
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
        ready_now = self._workers[instance.cores].ready
        assert ready_now is not None
        if not self._has_items:
            self._use(ready_now.signature)

    def _use(self, signature: Signature) -> None:
        settings = self._settings
        samples = None if settings.samples is None else load_samples(settings.samples, signature)
        items = calibration(signature, samples=samples, dimensions=settings.launch.dimensions).items
        self._rows.use(items, largest=self._largest)
        self._has_items = True


def _contest(
    plans: Sequence[Plan], shares: Sequence[Sequence[_Share]], seconds: float, clock: Clock
) -> list[Plan]:
    for one in shares:
        for _ in range(_WARM_UPS):
            _run_ms(one, clock)
    turns: list[list[list[float]]] = [[] for _ in plans]
    standing = list(range(len(plans)))
    end_s = clock.now_s() + seconds
    while len(turns[standing[0]]) < _LEAST_TURNS or (len(standing) > 1 and clock.now_s() < end_s):
        for k in standing:
            turns[k].append(_turn_ms(shares[k], clock))
        standing = _still_standing(standing, turns)
    best = _ordered(standing, turns)[0]
    again = [_turn_ms(shares[best], clock) for _ in range(_LEAST_TURNS)]
    order = _ordered(standing, turns) + _ordered([k for k in range(len(plans)) if k not in standing], turns)
    turns[best] = again
    return [replace(plans[k], measured_ms=median(ms for turn in turns[k] for ms in turn)) for k in order]


def _still_standing(standing: Sequence[int], turns: Sequence[Sequence[Sequence[float]]]) -> list[int]:
    """Return the plans that were not slower than the best in nearly all turns."""
    best = _ordered(standing, turns)[0]
    count = len(turns[best])
    limit = count / 2 + _DEVIATIONS * sqrt(count) / 2
    lost = {k: sum(min(a) > min(b) for a, b in zip(turns[k], turns[best], strict=True)) for k in standing}
    return [k for k in standing if lost[k] < limit]


def _ordered(which: Sequence[int], turns: Sequence[Sequence[Sequence[float]]]) -> list[int]:
    """Return these plans, the fastest first: by the median of their turns, each taken at its least."""
    return sorted(which, key=lambda k: median(min(turn) for turn in turns[k]))


def _turn_ms(shares: Sequence[_Share], clock: Clock) -> list[float]:
    sleep(_REST_S)
    return [_run_ms(shares, clock) for _ in range(_BURST)][1:]


def _run_ms(shares: Sequence[_Share], clock: Clock) -> float:
    """Have all instances run their share at once; returns the time until the last one has finished."""
    begun_s = clock.now_s()
    for share in shares:
        share.worker.send(share.batch, share.executions)
    for share in shares:
        share.worker.done()
    return (clock.now_s() - begun_s) * 1e3
