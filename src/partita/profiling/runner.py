"""Measures a model: one instance alone, pinned, through the very messages that serving uses (DESIGN §4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Protocol

import numpy as np

from partita.core.clock import Clock
from partita.core.errors import InvalidInput, LoadFailed
from partita.core.profile import Profile, ProfilePoint, Provenance
from partita.core.tensors import Signature
from partita.core.topology import Topology
from partita.engine.instance import ModelLaunch
from partita.planning.sampling import LazySampler, Measure, SamplerSettings
from partita.planning.sampling_grid import GridSampler
from partita.planning.sampling_iterations import PointRun, Sample
from partita.profiling import store
from partita.profiling.bench import Bench
from partita.profiling.calls import as_items, calls_hash, load_calls
from partita.profiling.drift import Anchor
from partita.profiling.identity import provenance_of
from partita.profiling.inputs import Calibration, Items, calibration, load_samples
from partita.profiling.measured import PointRecord
from partita.profiling.solo import ExecutionFailed
from partita.profiling.turns import Turns
from partita.wire.archive_call import RUNTIME as ARCHIVE

WITHOUT_CALLS = (
    "an archive does not say what its requests look like: give it some with --samples, a file or a folder of "
    "bodies, or serve it, and it is measured with what clients ask"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """What to measure, where and for how long.

    `cores` are the logical CPUs that plans will have, in the order in which they are handed out. Instances
    of t = 1.. up to the cores of the fullest socket are measured. `budget_s` bounds everything, loading
    included; `full` measures the paper's whole grid instead of only what can change a plan.
    """

    launch: ModelLaunch
    model_path: Path
    """The model's file or folder, whose content tells profiles apart."""
    cores: tuple[int, ...]
    topology: Topology
    worker_argv: tuple[str, ...]
    max_batch: int = 32
    budget_s: float = 300.0
    full: bool = False
    tolerance: float = 0.01
    """Regret of plans that is not worth measuring on for."""
    clip: float = inf
    """An iteration counts as no more than so many times the median of its visit."""
    least_gain: float = -inf
    """Per item: where a batch gains less on the one below, larger ones are not measured."""
    warm_up: int = 10
    """Most iterations of a visit that do not count."""
    most_iterations: int = 100
    """Of a visit, that count."""
    samples: Path | None = None
    """Items to measure with, from a file; for an archive calls (`profiling/calls.py`)."""
    execution_limit_s: float = 120.0
    arena_bytes: int = 1 << 34
    """Address space for inputs; memory is taken only for what is written."""

    def __post_init__(self) -> None:
        if not self.cores or self.max_batch < 1 or not self.budget_s > 0:
            raise InvalidInput(
                f"profiling needs a core, a batch and time, not cores {list(self.cores)}, "
                f"max batch {self.max_batch}, {self.budget_s} s"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far it has come. `left_s` is what may still be needed, at most the rest of the budget."""

    visits: int
    points: int
    elapsed_s: float
    left_s: float
    threads: int
    batch: int
    mean_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who hears of it. `save` gets a usable profile after every point, and the finished one at the end."""

    progress: Callable[[Progress], None] = field(default=lambda _: None)
    note: Callable[[str], None] = field(default=lambda _: None)
    save: Callable[[Profile], None] = field(default=lambda _: None)


class BudgetTooSmall(InvalidInput):
    """Loading alone took all of the time, and nothing was measured."""

    code = "budget_too_small"


class Sampler(Protocol):
    """Says what to measure next: `LazySampler` or `GridSampler`."""

    def next(self, left_s: float) -> Measure | None:
        """Return the next point, None at the end."""

    def record(self, threads: int, batch: int, sample: Sample) -> None:
        """Take what was found."""

    def fail(self, threads: int, batch: int) -> None:
        """Take that the point cannot be run."""


def profile_model(
    settings: ProfileSettings,
    *,
    clock: Clock,
    resume: Profile | None = None,
    listener: Listener | None = None,
    turns: Turns | None = None,
    calls: Sequence[bytes] = (),
) -> Profile:
    """Measure until the table is good enough or the budget is spent; goes on from `resume`.

    `turns` says when workers may execute; None = at once. An archive is measured with `calls`, where no file
    of samples is given. Raises `LoadFailed` if the model does not load,
    `InvalidInput` for inputs that do not fit, if not even one item can be run, or (`BudgetTooSmall`) in time,
    or (`ProfileMismatch`) if `resume` was measured on something else.
    """
    session = _Session(settings, clock, listener or Listener(), turns, calls)
    try:
        return session.run(resume)
    finally:
        session.close()


class _Session:
    """One run of `profile_model`."""

    def __init__(
        self,
        settings: ProfileSettings,
        clock: Clock,
        listener: Listener,
        turns: Turns | None,
        calls: Sequence[bytes],
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._clock = clock
        self._listener = listener
        self._begun_s = clock.now_s()
        self._records: dict[tuple[int, int], PointRecord] = {}
        self._visits = 0
        self._anchor = Anchor()
        self._provenance: Provenance | None = None
        self._cores = fullest_socket(settings.topology, settings.cores)
        self._bench = Bench(
            settings.launch,
            cores=self._cores,
            argv=settings.worker_argv,
            arena_bytes=settings.arena_bytes,
            clock=clock,
            execution_limit_s=settings.execution_limit_s,
            note=self._listener.note,
            turns=turns,
        )

    def close(self) -> None:
        self._bench.close()

    @property
    def _left_s(self) -> float:
        return self._settings.budget_s - (self._clock.now_s() - self._begun_s)

    def run(self, resume: Profile | None) -> Profile:
        signature, version = self._bench.begin()
        given = self._calibration(signature)
        self._provenance = self._identify(version, given)
        if resume is not None:
            store.require_same(resume.provenance, self._provenance, where="the profile to go on with")
            self._records = {key: PointRecord.of(point) for key, point in resume.points.items()}
        sizes = _sizes(signature, self._settings.max_batch)
        self._bench.use(given.items, largest=sizes[-1])
        sampler = self._sampler(sizes)
        while (measure := sampler.next(self._left_s)) is not None:
            self._visit(sampler, measure)
        if not self._records:
            raise self._nothing_measured()
        profile = self._profile(finished=(len(self._cores), self._settings.max_batch))
        self._listener.save(profile)
        return profile

    def _calibration(self, signature: Signature) -> Calibration:
        settings = self._settings
        samples = self._samples(signature)
        given = calibration(signature, samples=samples, dimensions=settings.launch.dimensions)
        for note in given.notes:
            self._listener.note(note)
        return given

    def _samples(self, signature: Signature) -> Items | None:
        path = self._settings.samples
        if self._settings.launch.runtime != ARCHIVE:
            return None if path is None else load_samples(path, signature)
        if path is None and not self._calls:
            raise InvalidInput(WITHOUT_CALLS)
        return as_items(self._calls) if path is None else load_calls(path)

    def _identify(self, version: str, given: Calibration) -> Provenance:
        settings = self._settings
        identity = provenance_of(
            settings.launch,
            model_path=settings.model_path,
            topology=settings.topology,
            runtime_version=version,
            dimensions=given.dimensions,
            samples=settings.samples,
        )
        if settings.samples is None and self._calls:
            return replace(identity, samples_hash=calls_hash(self._calls))
        return identity

    def _sampler(self, sizes: tuple[int, ...]) -> Sampler:
        settings = self._settings
        cores = len(self._cores)
        measured = [(*key, record.sample) for key, record in self._records.items()]
        if settings.full:
            return GridSampler(cores=cores, sizes=sizes, rng=np.random.default_rng(0), measured=measured)
        lazy = SamplerSettings(
            cores=cores,
            max_batch=settings.max_batch,
            sizes=sizes,
            max_items=settings.max_batch,
            start_s=self._bench.load_s,
            tolerance=settings.tolerance,
            least_gain=settings.least_gain,
        )
        return LazySampler(lazy, budget_s=settings.budget_s, measured=measured)

    def _visit(self, sampler: Sampler, measure: Measure) -> None:
        key = (measure.threads, measure.batch)
        record = self._records.get(key, PointRecord())
        warm_up = min(measure.rule.warm_up, self._settings.warm_up)
        most = min(measure.rule.max_iterations, self._settings.most_iterations)
        rule = replace(measure.rule, clip=self._settings.clip, warm_up=warm_up, max_iterations=most)
        run = PointRun(rule, before=record.sample if record.count else None)
        try:
            while run.wants_warm_up:
                run.record_warm_up(self._bench.run(*key).total_ms)
            while run.wants_iteration and not (run.iterations and self._left_s <= 0):
                took = self._bench.run(*key)
                run.record(took.total_ms)
                record = record.with_iteration(took.total_ms, took.infer_ms)
        except (ExecutionFailed, LoadFailed, MemoryError) as error:
            self._fail(sampler, measure, error)
            return
        self._visits += 1
        drift = self._anchor.observe(key, run.visit_mean_ms, self._bench, now_s=self._clock.now_s())
        record = record.finished(run.sample, resident=self._bench.resident_bytes(key[0]), drift=drift)
        self._records[key] = record
        sampler.record(*key, run.sample)
        self._listener.save(self._profile())
        self._listener.progress(self._progress(measure, record))

    def _fail(self, sampler: Sampler, measure: Measure, error: Exception) -> None:
        key = (measure.threads, measure.batch)
        self._bench.drop(measure.threads)
        self._records.pop(key, None)
        sampler.fail(*key)
        self._listener.note(f"{key[0]} threads, batch {key[1]} cannot be run: {error or 'out of memory'}")

    def _progress(self, measure: Measure, record: PointRecord) -> Progress:
        return Progress(
            visits=self._visits,
            points=len(self._records),
            elapsed_s=self._clock.now_s() - self._begun_s,
            left_s=max(0.0, self._left_s),
            threads=measure.threads,
            batch=measure.batch,
            mean_ms=record.sample.mean_ms,
        )

    def _profile(self, finished: tuple[int, int] | None = None) -> Profile:
        points: list[ProfilePoint] = [record.point(*key) for key, record in self._records.items()]
        return Profile(points, provenance=self._provenance, load_s=self._bench.load_s, finished=finished)

    def _nothing_measured(self) -> InvalidInput:
        if self._left_s <= 0:
            return BudgetTooSmall(
                f"a budget of {self._settings.budget_s:g} s was over before one batch was measured: give more"
            )
        return InvalidInput(
            f"model {self._settings.launch.name}: not one batch could be run; see the reasons above"
        )


def fullest_socket(topology: Topology, cores: tuple[int, ...]) -> tuple[int, ...]:
    """Return those of the cores, in order, on the socket that has most of them: no instance spans two."""
    return max(topology.by_socket(cores), key=len)


def _sizes(signature: Signature, max_batch: int) -> tuple[int, ...]:
    """Return the batch sizes worth measuring: what the network's own batch axis allows."""
    if not signature.batched:
        return (1,)
    if signature.fixed_batch is not None:
        return (signature.fixed_batch,)
    return tuple(1 << k for k in range(max_batch.bit_length()))
