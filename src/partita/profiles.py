"""Where the profile of a model comes from: the cache, or measuring it now."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from partita.core.errors import InvalidInput
from partita.core.profile import Profile, Provenance
from partita.core.topology import Topology
from partita.deploy import Profiler, launch_of
from partita.engine.engine import WORKER_ARGV
from partita.profiling.beside import Assignment
from partita.profiling.identity import provenance_of
from partita.profiling.runner import (
    WITHOUT_CALLS,
    BudgetTooSmall,
    Listener,
    ProfileSettings,
    Progress,
    fullest_socket,
    profile_model,
)
from partita.profiling.store import SaveFailed, cached_path, load_cached, save
from partita.settings import ServerSettings
from partita.sources import ModelSource
from partita.system.artefacts import cache_dir
from partita.system.clock import SystemClock
from partita.system.cpus import read_topology

log = logging.getLogger("partita")

LOG_EVERY_S = 5.0
BESIDE_TOLERANCE = 0.05
"""Plausible regret of plans at which measuring beside traffic ends: going on costs those who are served."""
BESIDE_CLIP = 1.5
"""Beside traffic an execution is often disturbed."""
BESIDE_WARM_UP = 2
BESIDE_ITERATIONS = 20
"""Of a visit: each is a turn that somebody pays for, and plans differ by more than a hundred would tell."""
LEAST_BATCH = 8
BESIDE_GAIN = 0.03
"""Large batches hold the cores for long, and are worth that only where they gain something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How a model is profiled, and what of it is known already."""

    budget_s: float = 30.0
    full: bool = False
    """The paper's whole grid instead of only the points that can change a plan."""
    go_on: bool = False
    """Measure on even if the kept profile is good enough already."""
    again: bool = False
    """Measure from the beginning, whatever is kept."""
    resume: Profile | None = None
    """A profile to go on with besides the kept one, such as one that the user's file holds."""
    samples: Path | None = None
    """Items to measure with; None = those of the model's settings, else made up."""
    listener: Listener = field(default_factory=Listener)
    folder: Path | None = None
    """Where profiles are kept; None = the user's cache folder."""

    def __post_init__(self) -> None:
        if self.again and (self.go_on or self.resume is not None):
            raise InvalidInput("a profile is measured either again from the beginning or further, not both")


def saved_or_measured(server: ServerSettings, listener: Listener | None = None) -> Profiler:
    """Return the profiler for ``[server] tune``: the cache, then measuring where that is ``before``."""
    topology = read_topology()
    measuring = Measuring(budget_s=server.tune_budget_s, listener=listener or logging_listener())

    def profiler(source: ModelSource, cores: tuple[int, ...]) -> Profile | None:
        if server.tune in ("background", "never") or (source.is_archive and source.samples is None):
            return cached(source, topology)
        try:
            return measured(source, cores, topology, measuring)
        except BudgetTooSmall as error:  # a server of a large model starts all the same, with the safe plan
            log.warning("model %s is served without a profile: %s", source.name, error)
            return None

    return profiler


def cached(source: ModelSource, topology: Topology, folder: Path | None = None) -> Profile | None:
    """Return the kept profile of a model on this machine, None if there is none."""
    return load_cached(folder or _folder(), _provenance(source, topology))


def measured(
    source: ModelSource, cores: tuple[int, ...], topology: Topology, measuring: Measuring
) -> Profile:
    """Return a profile that covers these cores and the model's largest batch; kept after every point.

    What is kept already is not measured again. Raises `LoadFailed`, `InvalidInput`, and `ProfileMismatch`
    if the profile to go on with was measured on something else.
    """
    kept = None if measuring.again else cached(source, topology, measuring.folder)
    samples = measuring.samples or source.samples
    given = _provenance(source, topology, samples)
    same_items = kept is None or _samples_of(kept) == given.samples_hash
    goes_on = measuring.full or measuring.go_on or measuring.resume is not None
    is_good = is_complete(kept, source, cores, topology)
    if kept is not None and is_good and not goes_on and (same_items or samples is None):
        return kept
    if source.is_archive and samples is None:
        raise InvalidInput(WITHOUT_CALLS)
    if not same_items:
        measuring.listener.note("the kept profile was measured with other items: measuring anew")
        kept = None
    settings = _settings(source, cores, topology, measuring)
    path = cached_path(measuring.folder or _folder(), given)
    listener = replace(measuring.listener, save=_keeper(path, measuring.listener))
    return profile_model(
        settings, clock=SystemClock(), resume=_together(kept, measuring.resume), listener=listener
    )


def is_complete(
    profile: Profile | None, source: ModelSource, cores: tuple[int, ...], topology: Topology
) -> bool:
    """Whether a profile covers these cores and the model's largest batch, so that nothing is missing."""
    return profile is not None and _covers(profile, len(fullest_socket(topology, cores)), source.max_batch)


def is_telling(profile: Profile, cores: int, max_batch: int) -> bool:
    """Whether plans from a profile that was not finished are to be trusted more than the safe one.

    Every thread count has been measured up to `LEAST_BATCH`, or to where larger batches gain nothing: else
    a plan can be made only of what happened to be measured first.
    """
    return all(_reaches(profile, threads, min(max_batch, LEAST_BATCH)) for threads in range(1, cores + 1))


def _reaches(profile: Profile, threads: int, batch: int) -> bool:
    each_ms = [(b, point.mean_ms / b) for (t, b), point in profile.points.items() if t == threads]
    if not each_ms or each_ms[-1][0] >= batch:
        return bool(each_ms)
    return len(each_ms) > 1 and each_ms[-1][1] > (1.0 - BESIDE_GAIN) * each_ms[-2][1]


def assignment(
    source: ModelSource, cores: tuple[int, ...], topology: Topology, budget_s: float
) -> Assignment:
    """Return what is to be measured of a model in a process of its own; reads the model's files."""
    return Assignment(
        settings=replace(
            _settings(source, cores, topology, Measuring(budget_s=budget_s)),
            tolerance=BESIDE_TOLERANCE,
            clip=BESIDE_CLIP,
            warm_up=BESIDE_WARM_UP,
            most_iterations=BESIDE_ITERATIONS,
            least_gain=BESIDE_GAIN,
        ),
        kept=cached_path(_folder(), _provenance(source, topology)),
    )


def _settings(
    source: ModelSource, cores: tuple[int, ...], topology: Topology, measuring: Measuring
) -> ProfileSettings:
    return ProfileSettings(
        launch=launch_of(source),
        model_path=source.path,
        cores=cores,
        topology=topology,
        worker_argv=WORKER_ARGV,
        max_batch=source.max_batch,
        budget_s=measuring.budget_s,
        full=measuring.full,
        samples=measuring.samples or source.samples,
        execution_limit_s=source.settings.execution_limit_s,
    )


def _provenance(source: ModelSource, topology: Topology, samples: Path | None = None) -> Provenance:
    return provenance_of(launch_of(source), model_path=source.path, topology=topology, samples=samples)


def _samples_of(profile: Profile) -> str:
    return "" if profile.provenance is None else profile.provenance.samples_hash


def _together(kept: Profile | None, given: Profile | None) -> Profile | None:
    """Return what need not be measured again: the kept profile, the given one, or the points of both."""
    if kept is None or given is None:
        return given or kept
    return kept.with_points(given.points.values()) if kept.provenance == given.provenance else given


def _keeper(path: Path, listener: Listener) -> Callable[[Profile], None]:
    """Return a function that writes a profile to the cache and then tells the listener of it."""
    failed = False

    def keep(profile: Profile) -> None:
        nonlocal failed
        try:
            save(path, profile)
        except (
            SaveFailed
        ) as error:  # as where the home folder cannot be written to: measuring is of use still
            if not failed:
                listener.note(str(error))
            failed = True
        listener.save(profile)

    return keep


def _covers(profile: Profile, cores: int, max_batch: int) -> bool:
    """Whether measuring came to its end for at least these cores and this batch, and reached all of them.

    A model too slow to be measured with all cores within one budget is measured on by the next.
    """
    if profile.finished is None or max(profile.threads, default=0) < cores:
        return False
    return profile.finished[0] >= cores and profile.finished[1] >= max_batch


def _folder() -> Path:
    return cache_dir() / "profiles"


def logging_listener() -> Listener:
    """Return a listener that logs how far it has come now and then."""
    next_s = 0.0

    def progress(now: Progress) -> None:
        nonlocal next_s
        if now.elapsed_s >= next_s:
            next_s = now.elapsed_s + LOG_EVERY_S
            log.info("profiling: %d points, at most %.0f s left", now.points, now.left_s)

    return Listener(progress=progress, note=log.info)
