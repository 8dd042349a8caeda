"""Whether a candidate may compete: it loads, takes what the reference takes, and computes the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from partita.core.choice import Verdict
from partita.core.errors import LoadFailed
from partita.core.formats import is_made_first
from partita.core.profile import Provenance
from partita.core.tensors import Signature
from partita.planning.agreement import judge
from partita.profiling.calibrating import Reference, reference_of
from partita.profiling.choice_terms import Audience, ChoiceSettings, Schedule, Step
from partita.profiling.contestant import Contestant
from partita.profiling.identity import provenance_of
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
_ROOM = 3.0
"""Other candidates' workers end where memory for fewer than this many of the largest is free."""
_IMAGE_AXES = 3
"""Channels, height and width of an item."""


class Admission:
    """Loads and compares candidates; the first of `contestants` is the reference."""

    def __init__(
        self,
        settings: ChoiceSettings,
        contestants: Sequence[Contestant],
        schedule: Schedule,
        audience: Audience,
    ) -> None:
        self._settings = settings
        self._all = contestants
        self._schedule = schedule
        self._audience = audience

    def tell(self, text: str) -> None:
        """Tell the audience what is being done."""
        schedule = self._schedule
        self._audience.step(Step(elapsed_s=schedule.elapsed_s, left_s=max(0.0, schedule.left_s), text=text))

    def learn(self) -> tuple[Reference, Provenance]:
        """Load the reference and have it answer the calibration items."""
        settings, first = self._settings, self._all[0]
        self.tell(f"loading {first.key}")
        first.load(settings.launch.load_limit_s)
        self.tell(f"{first.key} answers the calibration items")
        reference = reference_of(
            first,
            settings.launch,
            samples=settings.samples,
            max_batch=settings.max_batch,
            seconds=settings.budget_s * _REFERENCE_SHARE,
            now_s=self._schedule.now_s,
            relative=settings.relative_tolerance,
        )
        for note in reference.given.notes:
            self._audience.note(note)
        provenance = provenance_of(
            first.launch,
            model_path=settings.model_path,
            topology=settings.topology,
            runtime_version=first.assessment.version,
            dimensions=reference.given.dimensions,
            samples=settings.samples,
        )
        first.admit(reference.given.items, largest=settings.max_batch)
        first.assessment = replace(first.assessment, verdict=Verdict.REFERENCE)
        return reference, provenance

    def admit(self, contestant: Contestant, reference: Reference) -> None:
        """Load a candidate and compare it, if there is time."""
        if not reference.tells_apart:
            reason = "cannot verify: the reference answers different items alike; give --calibration"
            contestant.assessment = replace(contestant.assessment, verdict=Verdict.UNVERIFIED, reason=reason)
            return
        if contestant.candidate.options.get("channels_last") and not _has_images(reference.signature):
            contestant.refuse("no input is an image")
            return
        left_s = self._settings.budget_s * _ADMISSION_SHARE - self._schedule.elapsed_s
        if contestant is not self._all[-1]:  # one that hangs leaves time for the others
            usual_s = _EXPORT_S + _USUAL_LOADS * (self._all[0].assessment.load_s or 0.0)
            left_s = min(left_s, max(left_s / 2, usual_s))
        if left_s < _LEAST_ADMISSION_S:
            reason = f"no time within {self._settings.budget_s:.0f} s; give a larger --budget"
            contestant.assessment = replace(contestant.assessment, reason=reason)
            return
        self.tell(f"loading {contestant.key}")
        self.make_room(contestant)
        self._try(contestant, lambda c: self._compare(c, reference, left_s))

    def _compare(self, contestant: Contestant, reference: Reference, left_s: float) -> None:
        settings = self._settings
        signature = self._load(contestant, left_s)
        if wrong := _other_inputs(signature, reference.signature):
            contestant.refuse(wrong)
            return
        self.tell(f"comparing {contestant.key} with the reference")
        outputs = contestant.outputs(reference.batches)
        judgement = judge(
            reference.signature.outputs,
            reference.outputs,
            outputs,
            relative=settings.relative_tolerance,
            allowed=settings.allowed if contestant.candidate.precision else None,
        )
        contestant.judged(judgement)
        if judgement.verdict is Verdict.ADMITTED:
            contestant.admit(reference.given.items, largest=settings.max_batch)
        else:
            contestant.rest()

    def _load(self, contestant: Contestant, left_s: float) -> Signature:
        """Start it; what it is made of once, and kept, has time of its own."""
        if not is_made_first(self._settings.model_path, contestant.candidate.runtime):
            return contestant.load(left_s)
        before_s, usual_s = self._schedule.elapsed_s, self._all[0].assessment.load_s or 0.0
        try:
            return contestant.load(left_s + self._schedule.grantable_s)
        finally:
            self._schedule.grant(self._schedule.elapsed_s - before_s - usual_s)

    def _try(self, contestant: Contestant, what: Callable[[Contestant], None]) -> None:
        """Do it; a candidate that fails is refused and the others go on, but without a reference none can."""
        try:
            what(contestant)
        except FAILURES as error:
            if contestant is self._all[0]:
                raise
            is_late = isinstance(error, TookTooLong) or isinstance(error.__cause__, TookTooLong)
            if is_late and self._schedule.left_s < self._settings.launch.load_limit_s:
                contestant.give_up(f"{error}: more time (--budget) may help")
            else:
                contestant.refuse(str(error) or "out of memory")
        if contestant.assessment.verdict is Verdict.REFUSED:
            self._audience.note(f"{contestant.key} is refused: {contestant.assessment.reason}")

    def make_room(self, contestant: Contestant) -> None:
        """End the workers of the others where memory is short."""
        largest = max((c.bench.memory(len(self._settings.cores))[0] or 0 for c in self._all), default=0)
        free = available_bytes()
        if free is not None and free < _ROOM * largest:
            for other in self._all:
                if other is not contestant:
                    other.rest()


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


def _has_images(signature: Signature) -> bool:
    return any(len(spec.shape) == _IMAGE_AXES for spec in signature.inputs)
