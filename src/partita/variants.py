"""The runtimes that a model is executed by beside its own: those that were the fastest for some batch."""

from dataclasses import dataclass

from partita.choosing import is_current, stored, with_candidate
from partita.core.plan import Lowered
from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.engine.instance import ModelLaunch
from partita.launching import launch_of
from partita.planning.varied_choices import comparable
from partita.profiling.identity import provenance_of
from partita.profiling.store import load_cached
from partita.sources import ModelSource
from partita.system.artefacts import cache_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One of them, with what was measured of it where the model's own runtime was measured, too."""

    launch: ModelLaunch
    profile: Profile
    lowered: Lowered | None = None
    """What its lower precision costs; None = it is the model's own."""


def variants_of(source: ModelSource, topology: Topology, own: Profile | None) -> dict[str, Variant]:
    """Return the other runtimes whose plans may serve, by the names that were given to them when choosing.

    `source` is the model as the user has it, `own` the profile of the runtime that was chosen. There are none
    where the user says what executes the model or for which batch, which has a choice of its own.
    """
    if own is None or source.ensemble is not None or source.settings.instances or source.settings.batch:
        return {}
    choice = stored(source, topology)
    if choice is None or not is_current(choice.won):
        return {}
    found = {}
    for one in choice.beside:
        launch = launch_of(with_candidate(source, one.candidate))
        provenance = provenance_of(launch, model_path=source.path, topology=topology)
        profile = load_cached(cache_dir() / "profiles", provenance) if is_current(one) else None
        profile = None if profile is None else comparable(profile, own)
        if profile is not None and profile.points:
            key, lowered = one.candidate.key, choice.lowered(one)
            found[key] = Variant(launch=launch, profile=profile, lowered=lowered)
    return found
