"""Where the profile of a model comes from: the cache, or measuring it now."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.deploy import Profiler, launch_of
from partita.engine.engine import WORKER_ARGV
from partita.profiling.identity import provenance_of
from partita.profiling.runner import Listener, ProfileSettings, Progress, profile_model
from partita.profiling.store import cached_path, load_cached, save
from partita.settings import ServerSettings, cache_dir
from partita.sources import ModelSource
from partita.system.clock import SystemClock
from partita.system.cpus import read_topology

log = logging.getLogger("partita")

LOG_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How a model is profiled."""

    budget_s: float = 30.0
    full: bool = False
    """The paper's whole grid instead of only the points that can change a plan."""
    again: bool = False
    """Measure from the beginning, whatever is in the cache."""
    listener: Listener = field(default_factory=Listener)
    folder: Path | None = None
    """Where profiles are kept; None = the user's cache folder."""


def saved_or_measured(server: ServerSettings, listener: Listener | None = None) -> Profiler:
    """Return the profiler for ``[server] tune``: the cache, then measuring unless that is ``never``."""
    topology = read_topology()
    measuring = Measuring(budget_s=server.tune_budget_s, listener=listener or logging_listener())

    def profiler(source: ModelSource, cores: tuple[int, ...]) -> Profile | None:
        if server.tune == "never":
            return cached(source, topology)
        return measured(source, cores, topology, measuring)

    return profiler


def cached(source: ModelSource, topology: Topology, folder: Path | None = None) -> Profile | None:
    """Return the kept profile of a model on this machine, None if there is none."""
    provenance = provenance_of(launch_of(source), model_path=source.path, topology=topology)
    return load_cached(folder or _folder(), provenance)


def measured(
    source: ModelSource, cores: tuple[int, ...], topology: Topology, measuring: Measuring
) -> Profile:
    """Return a profile that covers these cores and the model's largest batch; kept after every point.

    What is in the cache already is not measured again. Raises `LoadFailed`, `InvalidInput`.
    """
    folder = measuring.folder or _folder()
    known = None if measuring.again else cached(source, topology, folder)
    if known is not None and not measuring.full and _covers(known, len(cores), source.max_batch):
        return known
    path = cached_path(folder, provenance_of(launch_of(source), model_path=source.path, topology=topology))
    settings = ProfileSettings(
        launch=launch_of(source),
        model_path=source.path,
        cores=cores,
        topology=topology,
        worker_argv=WORKER_ARGV,
        max_batch=source.max_batch,
        budget_s=measuring.budget_s,
        full=measuring.full,
        execution_limit_s=source.settings.execution_limit_s,
    )

    def keep(profile: Profile) -> None:
        save(path, profile)
        measuring.listener.save(profile)

    listener = Listener(progress=measuring.listener.progress, note=measuring.listener.note, save=keep)
    return profile_model(settings, clock=SystemClock(), resume=known, listener=listener)


def _covers(profile: Profile, cores: int, max_batch: int) -> bool:
    """Whether a profile was made for at least these cores and this batch, as far as its points show."""
    one = [threads for threads, _ in profile.points]
    largest = max((batch for _, batch in profile.points), default=0)
    is_fixed = len(profile.batches) == 1
    return max(one, default=0) >= cores and (is_fixed or 2 * largest > max_batch)


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
