"""The memory of an ensemble's members: kept from before, measured now, or guessed from their files."""

from collections.abc import Sequence

from partita.core.devices import MIB, Device
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


def estimated(source: ModelSource, gpu: Device | None = None) -> Footprint:
    """Return a guess at what a model holds: twice its file, and on cores a process; nothing was loaded."""
    try:
        weights = 2 * source.path.stat().st_size
        return Footprint.estimated(weights + _PROCESS_BYTES if gpu is None else weights)
    except OSError as error:
        raise InvalidInput(f"{source.path}: cannot be read: {error.strerror}") from error


def known(source: ModelSource, batches: Sequence[int], topology: Topology | None = None) -> Footprint:
    """Return what was measured of a model before, else a guess; nothing is loaded."""
    ends = _ends(batches)
    kept = _store().find(_provenance(source, topology), ends)
    return kept if kept is not None else estimated(source)


def measured(source: ModelSource, batches: Sequence[int], gpu: Device | None = None) -> Footprint:
    """Return what a model holds on cores, or on a GPU, at the smallest and the largest of these batch sizes.

    It is loaded once for that, unless it was before; a guess where that cannot be done.
    """
    ends = _ends(batches)
    provenance, store = _provenance(source, None), _store(gpu)
    kept = store.find(provenance, ends)
    if kept is None:
        core = min(allowed_cpus())
        kept = measure_footprint(launch_of(source), ends, core=core, argv=WORKER_ARGV, gpu=gpu)
        if kept is not None:
            store.keep(provenance, kept)
    return kept if kept is not None else estimated(source, gpu)


def _ends(batches: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({min(batches), max(batches)}))


def _store(gpu: Device | None = None) -> FootprintStore:
    kind = "cpu" if gpu is None else f"{gpu.kind}:{gpu.driver}"
    return FootprintStore(cache_dir() / "memory", device=kind)


def _provenance(source: ModelSource, topology: Topology | None) -> Provenance:
    return provenance_of(launch_of(source), model_path=source.path, topology=topology or read_topology())
