"""What an instance of a model holds: measured by loading it once, and kept beside the profiles."""

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from partita.core.devices import Device
from partita.core.errors import PartitaError
from partita.core.footprint import Footprint
from partita.core.profile import Provenance
from partita.engine.instance import ModelLaunch
from partita.profiling.solo import SoloWorker
from partita.profiling.store import SaveFailed, write_whole
from partita.system.shared_memory import PAGE_BYTES, SharedMemory

FORMAT = 1


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the document holds."""

    partita_memory: int
    device: str
    points: tuple[tuple[int, int], ...]


class FootprintStore:
    """Footprints on disk, one small JSON document for each model on each kind of device."""

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        self._folder = folder
        self._device = device
        """What kind of device it is held on."""

    def find(self, provenance: Provenance, batches: Sequence[int]) -> Footprint | None:
        """Return the kept footprint, None where it was not measured at all of these sizes."""
        try:
            content = msgspec.json.decode(self._path(provenance).read_bytes(), type=_File)
        except (OSError, msgspec.DecodeError):
            return None
        found = Footprint.measured(content.points) if content.points else None
        return found if found is not None and found.covers(batches) else None

    def keep(self, provenance: Provenance, footprint: Footprint) -> None:
        """Write it down; where that cannot be done it is measured again another time."""
        document = _File(partita_memory=FORMAT, device=self._device, points=footprint.points)
        with contextlib.suppress(SaveFailed):
            write_whole(self._path(provenance), msgspec.json.encode(document) + b"\n")

    def _path(self, provenance: Provenance) -> Path:
        known = {
            "model": provenance.model_hash,
            "runtime": provenance.runtime,
            "version": provenance.runtime_version,
            "handler": provenance.handler_hash,
            "dimensions": dict(sorted(provenance.dimensions.items())),
            "device": self._device,
        }
        key = hashlib.sha256(msgspec.json.encode(known, order="sorted")).hexdigest()
        return self._folder / f"{key[:32]}.json"


def measure_footprint(
    launch: ModelLaunch, batches: Sequence[int], *, core: int, argv: Sequence[str], gpu: Device | None = None
) -> Footprint | None:
    """Load a model once, on one core or a GPU, and execute these batch sizes; on a core its process counts.

    None where that is impossible: it cannot be loaded, or made-up items cannot be executed.
    """
    inputs = SharedMemory.create(PAGE_BYTES, "no-items")
    try:
        worker = SoloWorker(
            launch,
            cores=(core,),
            argv=argv,
            inputs=inputs,
            execution_limit_s=launch.load_limit_s,
            max_batch=max(batches),
            memory_at=tuple(batches),
            gpu=gpu,
        )
        try:
            ready = worker.until_ready()
        finally:
            worker.close()
    except PartitaError:
        return None
    finally:
        inputs.close()
    return Footprint.measured((held.batch, held.nbytes) for held in ready.memory) if ready.memory else None
