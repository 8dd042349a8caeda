"""The memory of an ensemble's members: kept from before, measured now, or guessed from their files."""

from collections.abc import Sequence

from partita.core.devices import MIB
from partita.core.errors import InvalidInput
from partita.core.footprint import Footprint
from partita.core.profile import Provenance
from partita.core.topology import Topology
from partita.engine.engine import WORKER_ARGV
from partita.launching import launch_of
from partita.profiling.footprints import FootprintStore, measure_footprint
from partita.profiling.identity import provenance_of
from partita.sources import ModelSource
from partita.system.artefacts import cache_dir
from partita.system.cpus import allowed_cpus, read_topology

_PROCESS_BYTES = 128 * MIB
"""A worker with no model in it, roughly: the interpreter and its runtime."""


def estimated(source: ModelSource) -> Footprint:
    """Return a guess at what a worker of a model holds: twice its file, and a process; nothing was loaded."""
    try:
        return Footprint.estimated(2 * source.path.stat().st_size + _PROCESS_BYTES)
    except OSError as error:
        raise InvalidInput(f"{source.path}: cannot be read: {error.strerror}") from error


def known(source: ModelSource, batches: Sequence[int], topology: Topology | None = None) -> Footprint:
    """Return what was measured of a model before, else a guess; nothing is loaded."""
    ends = _ends(batches)
    kept = _store().find(_provenance(source, topology), ends)
    return kept if kept is not None else estimated(source)


def measured(source: ModelSource, batches: Sequence[int]) -> Footprint:
    """Return what a model holds at the smallest and the largest of these batch sizes.

    It is loaded once for that, unless it was before; a guess where that cannot be done.
    """
    ends = _ends(batches)
    provenance = _provenance(source, None)
    kept = _store().find(provenance, ends)
    if kept is None:
        kept = measure_footprint(launch_of(source), ends, core=min(allowed_cpus()), argv=WORKER_ARGV)
        if kept is not None:
            _store().keep(provenance, kept)
    return kept if kept is not None else estimated(source)


def _ends(batches: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({min(batches), max(batches)}))


def _store() -> FootprintStore:
    return FootprintStore(cache_dir() / "memory")


def _provenance(source: ModelSource, topology: Topology | None) -> Provenance:
    return provenance_of(launch_of(source), model_path=source.path, topology=topology or read_topology())
