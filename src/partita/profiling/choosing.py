"""Chooses what executes a model: candidates are loaded, compared with the reference, and timed.

The reference is the runtime of the model's own format. A candidate that does not load, crashes, hangs or
computes something else is refused with its reason, and the others go on (DESIGN §5).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

from partita.core.choice import Assessment, Candidate, Choice, Verdict
from partita.core.clock import Clock
from partita.core.errors import InvalidInput, LoadFailed
from partita.core.profile import Profile, Provenance
from partita.core.tensors import Signature
from partita.core.topology import Topology
from partita.engine.instance import ModelLaunch
from partita.planning.agreement import judge
from partita.planning.candidates import trial_points
from partita.planning.halving import Halving, HalvingRules, Trial
from partita.planning.runtime_choice import Decision, decide
from partita.planning.sampling_iterations import IterationRule
from partita.profiling.calibrating import Reference, reference_of
from partita.profiling.contestant import Contestant, Place
from partita.profiling.identity import handling_hash, provenance_of
from partita.profiling.solo import ExecutionFailed, TookTooLong
from partita.system.memory import available_bytes

FAILURES = (ExecutionFailed, LoadFailed, MemoryError)
"""What a candidate may fail with, that is no fault of ours or of what the user gave us."""

_ADMISSION_SHARE = 0.6
"""Of the time, for loading and comparing; the rest is for timing."""
_REFERENCE_SHARE = 0.1
"""Of the time, for the reference's own outputs; the other candidates are about as slow."""
_LEAST_ADMISSION_S = 1.0
_EXPORT_S, _USUAL_LOADS = 20.0, 5.0
"""No candidate counts as hanging before it had these seconds, to export the model, and so many times as long
as the reference took to load; unless there is no time at all."""
_LEAST_LOAD_S = 3.0
_ROOM = 3.0
"""Other candidates' workers end where memory for fewer than this many of the largest is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceSettings:
    """What to choose among, and within which limits. The first candidate is the reference."""

    launch: ModelLaunch
    model_path: Path
    candidates: tuple[Candidate, ...]
    cores: tuple[int, ...]
    """Cores of the fullest socket: no instance has more."""
    sockets: tuple[int, ...]
    """How many cores plans have on each socket."""
    topology: Topology
    worker_argv: tuple[str, ...]
    max_batch: int = 32
    budget_s: float = 30.0
    samples: Path | None = None
    relative_tolerance: float | None = None
    allowed_deviation: float | None = None
    execution_limit_s: float = 120.0
    arena_bytes: int = 1 << 34
    rules: HalvingRules = field(default_factory=HalvingRules)

    def __post_init__(self) -> None:
        if not self.candidates or not self.cores or not self.budget_s > 0:
            raise InvalidInput("choosing a runtime needs a candidate, a core and time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is being done, and how much of the time has passed."""

    elapsed_s: float
    left_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Who hears of it: `save` of a candidate's profile after every point, `decided` of the best so far."""

    step: Callable[[Step], None] = field(default=lambda _: None)
    note: Callable[[str], None] = field(default=lambda _: None)
    save: Callable[[Candidate, Profile], None] = field(default=lambda _, __: None)
    decided: Callable[[Choice], None] = field(default=lambda _: None)


def choose(settings: ChoiceSettings, *, clock: Clock, audience: Audience | None = None) -> Choice:
    """Return the choice. Raises `LoadFailed` or `ExecutionFailed` if the reference itself does not run."""
    contest = _Contest(settings, clock, audience or Audience())
    try:
        return contest.run()
    finally:
        contest.close()


class _Contest:
    """One run of `choose`."""

    def __init__(self, settings: ChoiceSettings, clock: Clock, audience: Audience) -> None:
        self._settings = settings
        self._clock = clock
        self._audience = audience
        self._begun_s = clock.now_s()
        place = Place(
            cores=settings.cores,
            worker_argv=settings.worker_argv,
            arena_bytes=settings.arena_bytes,
            execution_limit_s=settings.execution_limit_s,
            clock=clock,
            note=audience.note,
        )
        self._all = [Contestant(c, settings.launch, place) for c in settings.candidates]
        self._by_key = {contestant.key: contestant for contestant in self._all}
        self._reference: Reference | None = None
        self._provenance: Provenance | None = None
        self._dropped: dict[str, str] = {}
        self._doubled: set[str] = set()
        """Those of which a second instance was started."""

    def close(self) -> None:
        for contestant in self._all:
            contestant.close()

    def run(self) -> Choice:
        first, *others = self._all
        self._reference = self._learn(first)
        for contestant in others:
            self._admit(contestant)
        eligible = [c for c in self._all if c.assessment.is_eligible]
        choice = self._contest(eligible)
        self._audience.decided(choice)
        return choice

    # --- time -------------------------------------------------------------------------------------

    @property
    def _elapsed_s(self) -> float:
        return self._clock.now_s() - self._begun_s

    @property
    def _left_s(self) -> float:
        return self._settings.budget_s - self._elapsed_s

    def _tell(self, text: str) -> None:
        self._audience.step(Step(elapsed_s=self._elapsed_s, left_s=max(0.0, self._left_s), text=text))

    # --- admission --------------------------------------------------------------------------------

    def _learn(self, first: Contestant) -> Reference:
        """Load the reference and have it answer the calibration items."""
        settings = self._settings
        self._tell(f"loading {first.key}")
        first.load(settings.launch.load_limit_s)
        self._tell(f"{first.key} answers the calibration items")
        reference = reference_of(
            first,
            settings.launch,
            samples=settings.samples,
            max_batch=settings.max_batch,
            seconds=settings.budget_s * _REFERENCE_SHARE,
            now_s=self._clock.now_s,
            relative=settings.relative_tolerance,
        )
        for note in reference.given.notes:
            self._audience.note(note)
        self._provenance = provenance_of(
            first.launch,
            model_path=settings.model_path,
            topology=settings.topology,
            runtime_version=first.assessment.version,
            dimensions=reference.given.dimensions,
            samples=settings.samples,
        )
        first.admit(reference.given.items, largest=settings.max_batch)
        first.assessment = replace(first.assessment, verdict=Verdict.REFERENCE)
        return reference

    def _admit(self, contestant: Contestant) -> None:
        """Load a candidate and compare it, if there is time."""
        reference = self._reference
        assert reference is not None
        if not reference.tells_apart:
            reason = "cannot verify: the reference answers different items alike; give --calibration"
            contestant.assessment = replace(contestant.assessment, verdict=Verdict.UNVERIFIED, reason=reason)
            return
        left_s = self._settings.budget_s * _ADMISSION_SHARE - self._elapsed_s
        if contestant is not self._all[-1]:  # one that hangs leaves time for the others
            usual_s = _EXPORT_S + _USUAL_LOADS * (self._all[0].assessment.load_s or 0.0)
            left_s = min(left_s, max(left_s / 2, usual_s))
        if left_s < _LEAST_ADMISSION_S:
            contestant.assessment = replace(
                contestant.assessment, reason=f"no time within {self._settings.budget_s:.0f} s; give --budget"
            )
            return
        self._tell(f"loading {contestant.key}")
        self._make_room(contestant)
        self._try(contestant, lambda c: self._compare(c, reference, left_s))

    def _compare(self, contestant: Contestant, reference: Reference, left_s: float) -> None:
        settings = self._settings
        signature = contestant.load(left_s)
        if wrong := _other_inputs(signature, reference.signature):
            contestant.refuse(wrong)
            return
        self._tell(f"comparing {contestant.key} with the reference")
        outputs = contestant.outputs(reference.batches)
        judgement = judge(
            reference.signature.outputs,
            reference.outputs,
            outputs,
            relative=settings.relative_tolerance,
            allowed=settings.allowed_deviation if contestant.candidate.precision else None,
        )
        contestant.judged(judgement)
        if judgement.verdict is Verdict.ADMITTED:
            contestant.admit(reference.given.items, largest=settings.max_batch)
        else:
            contestant.rest()

    def _start_second(self, contestant: Contestant) -> None:
        """Start one more instance of a candidate that may win, and see what it takes."""
        if self._left_s < _LEAST_LOAD_S:
            return
        self._tell(f"starting a second instance of {contestant.key}")
        self._make_room(contestant)
        try:
            contestant.start_second()
        except FAILURES as error:
            self._audience.note(f"{contestant.key}: a second instance does not start: {error or 'no memory'}")

    def _try(self, contestant: Contestant, what: Callable[[Contestant], None]) -> None:
        """Do it; a candidate that fails is refused and the others go on, but without a reference none can."""
        try:
            what(contestant)
        except FAILURES as error:
            if contestant is self._all[0]:
                raise
            is_late = isinstance(error, TookTooLong) or isinstance(error.__cause__, TookTooLong)
            if is_late and self._left_s < self._settings.launch.load_limit_s:
                contestant.give_up(f"{error}: more time (--budget) may help")
            else:
                contestant.refuse(str(error) or "out of memory")
        if contestant.assessment.verdict is Verdict.REFUSED:
            self._audience.note(f"{contestant.key} is refused: {contestant.assessment.reason}")

    def _make_room(self, contestant: Contestant) -> None:
        """End the workers of the others where memory is short."""
        largest = max((c.bench.memory(len(self._settings.cores))[0] or 0 for c in self._all), default=0)
        free = available_bytes()
        if free is not None and free < _ROOM * largest:
            for other in self._all:
                if other is not contestant:
                    other.rest()

    # --- timing -----------------------------------------------------------------------------------

    def _contest(self, eligible: Sequence[Contestant]) -> Choice:
        """Time the candidates until one is left or the time is over, and decide."""
        settings = self._settings
        points = self._points()
        halving = Halving([c.key for c in eligible], [*points, *points], settings.rules)
        rounds = 0
        while (trial := halving.next(self._left_s)) is not None:
            self._let_go(halving)
            if halving.rounds > rounds:
                rounds = halving.rounds
                self._audience.decided(self._choice(halving, is_finished=False))
                if rounds >= settings.rules.least_points:
                    self._start_seconds(halving)
            self._measure(halving, trial)
        self._let_go(halving)
        self._start_seconds(halving)
        return self._choice(halving, is_finished=True)

    def _start_seconds(self, halving: Halving) -> None:
        """Start a second instance of those that may still win, once; alone there is nothing to compare."""
        for key in halving.standing if len(self._all) > 1 else ():
            if key not in self._doubled:
                self._doubled.add(key)
                self._start_second(self._by_key[key])

    def _let_go(self, halving: Halving) -> None:
        """End the workers of those that were dropped since."""
        for key in halving.dropped.keys() - self._dropped.keys():
            self._dropped[key] = halving.dropped[key]
            self._by_key[key].rest()

    def _points(self) -> tuple[tuple[int, int], ...]:
        assert self._reference is not None
        signature, cores = self._reference.signature, len(self._settings.cores)
        if not signature.batched:
            return trial_points(cores, (1,))
        if signature.fixed_batch is not None:
            return trial_points(cores, (signature.fixed_batch,))
        return trial_points(cores, [1 << k for k in range(self._settings.max_batch.bit_length())])

    def _measure(self, halving: Halving, trial: Trial) -> None:
        contestant = self._by_key[trial.candidate]
        point = (trial.threads, trial.batch)
        items = f"{trial.batch} item{'s' * (trial.batch > 1)}"
        self._tell(f"{contestant.key}: {trial.threads} thread{'s' * (trial.threads > 1)}, {items}")
        self._make_room(contestant)
        until_s = self._begun_s + self._settings.budget_s
        rule = IterationRule(timed_s=self._settings.rules.visit_s)
        try:
            mean_ms = contestant.measure(point, rule, until_s=until_s)
        except FAILURES as error:
            self._audience.note(
                f"{contestant.key} cannot run {point[0]} threads, {items}: {error or 'no memory'}"
            )
            contestant.bench.drop(point[0])
            halving.fail(trial)
            return
        halving.record(trial, mean_ms)
        self._audience.save(contestant.candidate, self._profile(contestant))

    def _profile(self, contestant: Contestant) -> Profile:
        assert self._provenance is not None
        return contestant.profile(
            replace(
                self._provenance,
                runtime=contestant.launch.runtime,
                runtime_version=contestant.assessment.version,
                handler_hash=handling_hash(contestant.launch),
            )
        )

    # --- deciding ---------------------------------------------------------------------------------

    def _choice(self, halving: Halving, *, is_finished: bool) -> Choice:
        settings, reference = self._settings, self._reference
        assert reference is not None
        decision = decide(
            {key: halving.latencies(key) for key in halving.standing},
            reference=self._all[0].key,
            sockets=settings.sockets,
            max_batch=self._points()[-1][1] if not reference.signature.batched else settings.max_batch,
        )
        return Choice(
            cores=sum(settings.sockets),
            max_batch=settings.max_batch,
            items=reference.items,
            assessments=tuple(self._assessed(c, decision) for c in self._all),
            winner=decision.winner,
            by_batch=decision.by_batch,
            allowed_deviation=settings.allowed_deviation,
            relative_tolerance=settings.relative_tolerance,
            samples_hash=self._provenance.samples_hash if self._provenance is not None else "",
            budget_s=settings.budget_s,
            is_finished=is_finished,
        )

    def _assessed(self, contestant: Contestant, decision: Decision) -> Assessment:
        key = contestant.key
        slower = decision.slower.get(key)
        if key == decision.winner:
            reason = "the only one that may" if len(decision.slower) < 2 and not self._dropped else "fastest"
        elif key in self._dropped:
            reason = self._dropped[key]
        elif slower is not None and isfinite(slower):
            reason = f"{slower:.2f} times the winner's time"
        else:
            reason = "not timed"
        return contestant.assessed(reason, slower if slower is not None and isfinite(slower) else None)


def _other_inputs(given: Signature, reference: Signature) -> str:
    """Return how a candidate's inputs or batch axis differ from the reference's; "" if they do not."""
    wanted = {spec.name: spec.datatype for spec in reference.inputs}
    has = {spec.name: spec.datatype for spec in given.inputs}
    if has != wanted:
        return f"its inputs are {_told(has)}, the reference's {_told(wanted)}"
    if [spec.name for spec in given.inputs] != [spec.name for spec in reference.inputs]:
        return f"its inputs come in the order {', '.join(has)}, the reference's {', '.join(wanted)}"
    if (given.batched, given.fixed_batch) != (reference.batched, reference.fixed_batch):
        return "it takes other batches than the reference"
    return ""


def _told(inputs: Mapping[str, object]) -> str:
    return ", ".join(f"{name} ({datatype})" for name, datatype in inputs.items()) or "none"
