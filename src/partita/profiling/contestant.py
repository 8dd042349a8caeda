"""One candidate on trial: its workers, what it computes, and how long it takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from partita.core.choice import Assessment, Candidate, Speed, Verdict
from partita.core.clock import Clock
from partita.core.profile import Profile, ProfilePoint, Provenance
from partita.core.tensors import Signature
from partita.engine.instance import ModelLaunch
from partita.planning.agreement import Judgement, Outputs
from partita.planning.sampling_iterations import IterationRule, PointRun
from partita.profiling.bench import Bench
from partita.profiling.inputs import Items
from partita.profiling.measured import PointRecord

Point = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where candidates run, and within which limits."""

    cores: tuple[int, ...]
    worker_argv: tuple[str, ...]
    arena_bytes: int
    execution_limit_s: float
    clock: Clock
    note: Callable[[str], None] = field(default=lambda _: None)


class Contestant:
    """One candidate. Workers start when first needed, and `rest` or `close` end them."""

    def __init__(self, candidate: Candidate, launch: ModelLaunch, place: Place) -> None:
        self.candidate = candidate
        self.launch = launch_for(launch, candidate)
        self.signature: Signature | None = None
        self.assessment = Assessment(candidate=candidate, verdict=Verdict.NOT_TRIED)
        self.records: dict[Point, PointRecord] = {}
        self.bench = self._bench(place)
        self._place = place

    @property
    def key(self) -> str:
        """Its candidate's name."""
        return self.candidate.key

    def load(self, limit_s: float) -> Signature:
        """Start its first worker, with all cores. Raises `LoadFailed`.

        It counts as hanging if that, or one batch until `admit`, takes longer than the limit.
        """
        place, launch = self._place, self.launch
        self.bench.limit(
            load_s=min(launch.load_limit_s, limit_s), execution_s=min(place.execution_limit_s, limit_s)
        )
        self.signature, version = self.bench.begin()
        self.assessment = replace(self.assessment, version=version, load_s=self.bench.load_s)
        return self.signature

    def admit(self, items: Items, *, largest: int) -> None:
        """Let it be timed with these items, within the limits that the user set. Raises `MemoryError`."""
        resident, private = self.bench.memory(len(self._place.cores))
        self.assessment = replace(self.assessment, resident_bytes=resident, private_bytes=private)
        self.bench.limit(load_s=self.launch.load_limit_s, execution_s=self._place.execution_limit_s)
        self.bench.use(items, largest=largest)

    def outputs(self, batches: Sequence[Items]) -> list[Outputs]:
        """Return its outputs for some batches. Raises `ExecutionFailed`, `LoadFailed` or `MemoryError`."""
        return [self.bench.calculate(items) for items in batches]

    def start_second(self) -> None:
        """Start a second worker beside the first, and note what it takes.

        Raises `LoadFailed`, `ExecutionFailed` or `MemoryError`.
        """
        second = self.bench.start_another()
        self.assessment = replace(
            self.assessment, second_load_s=second.load_s, second_private_bytes=second.private_bytes
        )

    def measure(self, point: Point, rule: IterationRule, *, until_s: float) -> float:
        """Return the mean time of one execution, milliseconds; stops early once it is `until_s`.

        Raises `ExecutionFailed`, `LoadFailed` or `MemoryError`.
        """
        clock, before = self._place.clock, self.records.get(point, PointRecord())
        record, run = before, PointRun(rule, before=before.sample if before.count else None)
        while run.wants_warm_up:
            run.record_warm_up(self.bench.run(*point).total_ms)
        while run.wants_iteration and not (run.iterations and clock.now_s() >= until_s):
            took = self.bench.run(*point)
            run.record(took.total_ms)
            record = record.with_iteration(took.total_ms, took.infer_ms)
        resident = self.bench.memory(point[0])[0]
        self.records[point] = record.finished(run.sample, resident=resident, drift=None)
        return run.visit_mean_ms

    def judged(self, judgement: Judgement) -> None:
        """Take what its outputs showed."""
        self.assessment = replace(
            self.assessment,
            verdict=judgement.verdict,
            reason=judgement.reason,
            deviations=judgement.deviations,
        )

    def refuse(self, reason: str) -> None:
        """Take that it cannot be used, and end its workers."""
        self.assessment = replace(self.assessment, verdict=Verdict.REFUSED, reason=reason)
        self.rest()

    def give_up(self, reason: str) -> None:
        """Take that there is no time for it, and end its workers."""
        self.assessment = replace(self.assessment, verdict=Verdict.NOT_TRIED, reason=reason)
        self.rest()

    def assessed(self, reason: str, slower: float | None) -> Assessment:
        """Return what was found, with how it stands to the winner."""
        speeds = tuple(
            Speed(threads=t, batch=b, mean_ms=record.sample.mean_ms)
            for (t, b), record in self.records.items()
        )
        return replace(self.assessment, reason=self.assessment.reason or reason, speeds=speeds, slower=slower)

    def profile(self, provenance: Provenance) -> Profile:
        """Return what was measured of it as a profile, to be gone on with."""
        points: list[ProfilePoint] = [record.point(*point) for point, record in self.records.items()]
        return Profile(points, provenance=provenance, load_s=self.assessment.load_s)

    def rest(self) -> None:
        """End its workers; they start again when needed."""
        for threads in range(1, len(self._place.cores) + 1):
            self.bench.drop(threads)

    def close(self) -> None:
        """End its workers for good."""
        self.bench.close()

    def _bench(self, place: Place) -> Bench:
        return Bench(
            self.launch,
            cores=place.cores,
            argv=place.worker_argv,
            arena_bytes=place.arena_bytes,
            clock=place.clock,
            execution_limit_s=place.execution_limit_s,
            note=lambda text: place.note(f"{self.key}: {text}"),
        )


def launch_for(launch: ModelLaunch, candidate: Candidate) -> ModelLaunch:
    """Return the launch of a model in this candidate."""
    return replace(
        launch,
        runtime=candidate.runtime,
        options={**launch.options, **candidate.options},
        process=candidate.process_over(launch.process),
    )
