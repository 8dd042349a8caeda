"""Which runtime executes a model: chosen among those that can, kept beside its profiles, and put to use."""

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from partita.core.choice import Allowance, Assessment, Candidate, Choice, Verdict
from partita.core.errors import InvalidInput
from partita.core.formats import ENTRY_POINT_GROUP, FACTORY, PACKAGES, needs_factory, runtimes_for
from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.engine.engine import WORKER_ARGV
from partita.ensemble_file import EnsembleSource
from partita.launching import launch_of
from partita.planning.candidates import candidates
from partita.profiling.calibration_files import keep_items
from partita.profiling.choice_store import choice_path, load_choice, save_choice
from partita.profiling.choice_terms import Audience, ChoiceSettings
from partita.profiling.choosing import choose
from partita.profiling.identity import installed_version, model_hash, provenance_of
from partita.profiling.runner import fullest_socket
from partita.profiling.store import SaveFailed, cached_path, load_cached, save
from partita.sources import ModelSource
from partita.system.artefacts import cache_dir
from partita.system.clock import SystemClock
from partita.system.instructions import instructions

log = logging.getLogger("partita")

CHOICE_SHARE = 0.6
"""Of a profile's budget, for choosing the runtime; the rest is for measuring the winner."""
LEAST_BUDGET_S = 6.0
"""With less than this there is no time to try anything but the format's own runtime."""

_OF_THE_MODEL = frozenset({FACTORY, "batched", "output_names", "unpickle_may_run_code"})
"""Options that say what the model is, whatever executes it; others are those of one runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """How to choose."""

    budget_s: float = 20.0
    again: bool = False
    """Choose anew, whatever is kept."""
    samples: Path | None = None
    """Calibration items, .npy or .npz; None = made up."""
    relative_tolerance: float | None = None
    audience: Audience = field(default_factory=Audience)
    runtimes: tuple[str, ...] | None = None
    """Which runtimes to choose among, the reference left out; None = all that are installed."""


def is_open(source: ModelSource) -> bool:
    """Return whether nobody has said what executes this model, and there is something to choose."""
    settings = source.settings
    return (
        source.ensemble is None
        and not source.is_archive
        and settings.runtime == "auto"
        and not set(settings.options) - _OF_THE_MODEL
        and len(_runtimes(source)) > 1
    )


def adopted(source: ModelSource, topology: Topology) -> ModelSource:
    """Return the model with the runtime that was chosen for it; as it is where none was, or none need be.

    Of an ensemble that is true of each member.
    """
    if source.ensemble is not None:
        return _with_members_adopted(source, source.ensemble, topology)
    if not is_open(source):
        return source
    choice = load_choice(choice_file(source, topology))
    if choice is None:
        return source
    taken = choice.for_batch(source.settings.batch)
    if not is_current(taken):
        log.warning(
            "model %s: %s was chosen in another version, and is not used: partita profile %s",
            source.name,
            taken.candidate.key,
            source.path.name,
        )
        return source
    lowered = choice.lowered(taken)
    note = "" if lowered is None else f"; in lower precision, {lowered}"
    log.info("model %s: executed by %s, as was chosen%s", source.name, taken.candidate.key, note)
    return replace(with_candidate(source, taken.candidate), lowered=lowered)


def _with_members_adopted(source: ModelSource, ensemble: EnsembleSource, topology: Topology) -> ModelSource:
    members = tuple(replace(member, source=adopted(member.source, topology)) for member in ensemble.members)
    return replace(source, ensemble=replace(ensemble, members=members))


def stored(source: ModelSource, topology: Topology) -> Choice | None:
    """Return the choice that is kept for a model, None if there is none."""
    return load_choice(choice_file(source, topology)) if is_open(source) else None


def chosen(
    source: ModelSource, cores: tuple[int, ...], topology: Topology, choosing: Choosing
) -> Choice | None:
    """Return the choice for a model, the kept one or one made now; None where there is nothing to choose.

    What is measured of the candidates is kept as their profiles. Raises `LoadFailed` or `ExecutionFailed`
    if the reference does not run, `InvalidInput` for calibration items that do not fit.
    """
    if not is_open(source):
        return None
    if source.settings.top1_agreement is not None and choosing.samples is None:
        raise InvalidInput(
            f"model {source.name}: top-1 agreement means something on your own items only; "
            "give some with --calibration"
        )
    tried = candidates_of(source, choosing.runtimes, choosing.samples)
    if len(tried) < 2:
        return None
    path = choice_file(source, topology)
    kept = None if choosing.again else load_choice(path)
    if kept is not None and _covers(kept, source, cores, choosing, tried):
        return kept
    audience = choosing.audience
    if choosing.budget_s < LEAST_BUDGET_S:
        audience.note(f"no time to try other runtimes than {tried[0].key}; give a larger --budget")
        return kept
    keeper = _Keeper(path, audience)
    settings = ChoiceSettings(
        launch=launch_of(source),
        model_path=source.path,
        candidates=tried,
        cores=fullest_socket(topology, cores),
        sockets=tuple(map(len, topology.by_socket(cores))),
        topology=topology,
        worker_argv=WORKER_ARGV,
        max_batch=source.max_batch,
        budget_s=choosing.budget_s,
        samples=choosing.samples,
        relative_tolerance=choosing.relative_tolerance,
        allowed=allowance_of(source),
        execution_limit_s=source.settings.execution_limit_s,
    )
    return choose(
        settings,
        clock=SystemClock(),
        audience=replace(audience, save=keeper.save, decided=keeper.decided),
    )


def allowance_of(source: ModelSource) -> Allowance | None:
    """Return what the settings let lower precision change; None = it is not to be used."""
    deviation, top1 = source.settings.allow_deviation, source.settings.top1_agreement
    return None if deviation is None and top1 is None else Allowance(deviation=deviation, top1=top1)


def candidates_of(
    source: ModelSource, runtimes: tuple[str, ...] | None = None, samples: Path | None = None
) -> tuple[Candidate, ...]:
    """Return what could execute a model here, the runtime of its own format first.

    Calibration items are kept for what is made with them. Raises `InvalidInput` where they cannot be read.
    """
    first, *others = _runtimes(source)
    offered = sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP))
    wanted = [*others, *offered] if runtimes is None else [name for name in runtimes if name != first]
    installed = [name for name in dict.fromkeys(wanted) if _is_installed(name)]
    lower = allowance_of(source) is not None
    return candidates(
        (first, *installed),
        instructions=instructions(),
        lower=lower,
        calibration=keep_items(samples) if lower and samples is not None else "",
    )


def with_candidate(source: ModelSource, candidate: Candidate) -> ModelSource:
    """Return the model executed by a candidate, as if its settings said so."""
    options = {**source.settings.options, **candidate.options}
    process = candidate.process_over(source.settings.process)
    settings = msgspec.structs.replace(
        source.settings, runtime=candidate.runtime, options=options, process=process
    )
    return replace(source, runtime=candidate.runtime, settings=settings)


class _Keeper:
    """Writes choice and profiles to disk. The first failure is told; what is measured is of use even so."""

    def __init__(self, path: Path, audience: Audience) -> None:
        self._path = path
        self._audience = audience
        self._failed = False

    def save(self, candidate: Candidate, profile: Profile) -> None:
        """Keep a candidate's profile, with what is kept of it already."""
        assert profile.provenance is not None
        folder = cache_dir() / "profiles"
        kept = load_cached(folder, profile.provenance)
        if kept is None or kept.provenance != profile.provenance:
            whole = profile
        elif kept.finished is not None:
            return
        else:
            whole = kept.with_points(profile.points.values())
        path = cached_path(folder, profile.provenance)
        self._write(lambda: save(path, whole))
        self._audience.save(candidate, profile)

    def decided(self, choice: Choice) -> None:
        """Keep the best that is known so far."""
        self._write(lambda: save_choice(self._path, choice))
        self._audience.decided(choice)

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except SaveFailed as error:
            if not self._failed:
                self._audience.note(str(error))
            self._failed = True


def _covers(
    kept: Choice,
    source: ModelSource,
    cores: tuple[int, ...],
    choosing: Choosing,
    tried: tuple[Candidate, ...],
) -> bool:
    """Return whether a kept choice answers what is asked now."""
    given = "" if choosing.samples is None else model_hash(choosing.samples)
    known = {assessment.candidate.key for assessment in kept.assessments}
    return (
        kept.is_finished
        and (choosing.budget_s <= kept.budget_s or not _lacks_time(kept))
        and kept.cores == len(cores)
        and kept.max_batch >= source.max_batch
        and kept.relative_tolerance == choosing.relative_tolerance
        and (choosing.samples is None or kept.samples_hash == given)
        and {candidate.key for candidate in tried} <= known
        and is_current(kept.won)
    )


def _lacks_time(kept: Choice) -> bool:
    return any(assessment.verdict is Verdict.NOT_TRIED for assessment in kept.assessments)


def is_current(taken: Assessment) -> bool:
    """Return whether a candidate is installed in the version that was compared with the reference."""
    runtime = taken.candidate.runtime
    now = installed_version(runtime)
    return _is_installed(runtime) and (not now or now == taken.version)


def _is_installed(runtime: str) -> bool:
    package = PACKAGES.get(runtime)
    return package is None or importlib.util.find_spec(package.module) is not None


def _runtimes(source: ModelSource) -> tuple[str, ...]:
    built = bool(source.settings.options.get(FACTORY)) or needs_factory(source.path)
    return runtimes_for(source.path, factory=built)


def choice_file(source: ModelSource, topology: Topology) -> Path:
    """Return where the choice for a model is kept, whether there is one or not."""
    provenance = provenance_of(launch_of(source), model_path=source.path, topology=topology)
    return choice_path(cache_dir() / "choices", provenance, allowance_of(source))
