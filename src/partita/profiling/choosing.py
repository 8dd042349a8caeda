"""Chooses what executes a model: candidates are loaded, compared with the reference, and timed.

The reference is the runtime of the model's own format. A candidate that does not load, crashes, hangs or
computes something else is refused with its reason, and the others go on (DESIGN §5).
"""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from partita.core.choice import Assessment, Choice
from partita.core.clock import Clock
from partita.core.profile import Profile, Provenance
from partita.planning.candidates import trial_points
from partita.planning.halving import Halving, Trial
from partita.planning.runtime_choice import Decision, decide
from partita.planning.sampling_iterations import IterationRule
from partita.profiling.admitting import FAILURES, Admission
from partita.profiling.calibrating import Reference
from partita.profiling.choice_terms import Audience, ChoiceSettings, Schedule
from partita.profiling.contestant import Contestant, Place
from partita.profiling.identity import handling_hash

_LEAST_LOAD_S = 3.0


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
        self._audience = audience
        self._schedule = Schedule(clock, settings.budget_s)
        place = Place(
            cores=settings.cores,
            worker_argv=settings.worker_argv,
            arena_bytes=settings.arena_bytes,
            execution_limit_s=settings.execution_limit_s,
            clock=clock,
            note=audience.note,
        )
        self._all = [Contestant(c, settings.launch, place) for c in settings.candidates]
        self._admission = Admission(settings, self._all, self._schedule, audience)
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
        self._reference, self._provenance = self._admission.learn()
        for contestant in self._all[1:]:
            self._admission.admit(contestant, self._reference)
        eligible = [c for c in self._all if c.assessment.is_eligible]
        choice = self._contest(eligible)
        self._audience.decided(choice)
        return choice

    def _start_second(self, contestant: Contestant) -> None:
        """Start one more instance of a candidate that may win, and see what it takes."""
        if self._schedule.left_s < _LEAST_LOAD_S:
            return
        self._admission.tell(f"starting a second instance of {contestant.key}")
        self._admission.make_room(contestant)
        try:
            contestant.start_second()
        except FAILURES as error:
            self._audience.note(f"{contestant.key}: a second instance does not start: {error or 'no memory'}")

    # --- timing -----------------------------------------------------------------------------------

    def _contest(self, eligible: Sequence[Contestant]) -> Choice:
        """Time the candidates until one is left or the time is over, and decide."""
        settings = self._settings
        points = self._points()
        halving = Halving([c.key for c in eligible], [*points, *points], settings.rules)
        rounds = 0
        while (trial := halving.next(self._schedule.left_s)) is not None:
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
        self._admission.tell(f"{contestant.key}: {trial.threads} thread{'s' * (trial.threads > 1)}, {items}")
        self._admission.make_room(contestant)
        rule = IterationRule(timed_s=self._settings.rules.visit_s)
        try:
            mean_ms = contestant.measure(point, rule, until_s=self._schedule.until_s)
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
            alike=self._alike(decision.winner),
            allowed_deviation=None if settings.allowed is None else settings.allowed.deviation,
            least_top1=None if settings.allowed is None else settings.allowed.top1,
            relative_tolerance=settings.relative_tolerance,
            samples_hash=self._provenance.samples_hash if self._provenance is not None else "",
            budget_s=settings.budget_s,
            is_finished=is_finished,
        )

    def _alike(self, winner: str) -> tuple[str, ...]:
        """Return those that say of their inputs and outputs what the winner says."""
        signature = self._by_key[winner].signature
        return tuple(c.key for c in self._all if c.assessment.is_eligible and c.signature == signature)

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
