"""The demo's ensemble: four networks that look at a digit differently, allocated to two cores."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.allocating import Allocated, AllocateSettings, allocate
from partita.core.devices import Device
from partita.demo.digits import FOLDER, Digits, read_images
from partita.embedded import Server
from partita.offline import predict_with
from partita.planning.allocation_search import SearchLimits
from partita.settings import ServerSettings, Settings
from partita.sources import ModelSource, find_models
from partita.system.devices import core_groups

FILE = FOLDER.parent / "ensemble_models" / "digits.toml"
_LOADING_S = 4.0
"""About what it takes to load a worker of every member on both devices, not part of the search."""
_CALIBRATION = 128

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleReport:
    """What the demo shows about the ensemble."""

    members: dict[str, float]
    """Share of the images that each member alone names rightly."""
    accuracy: float
    """And all of them together."""
    images: int
    allocated: Allocated

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        kept = (
            "devices",
            "models",
            "start",
            "matrix",
            "start_items_per_s",
            "items_per_s",
            "spread",
            "assessed",
        )
        document = self.allocated.as_json()
        return {
            "images": self.images,
            "accuracy": round(self.accuracy, 4),
            "members": {name: round(share, 4) for name, share in self.members.items()},
            **{key: document[key] for key in kept},
        }


def load_test_images() -> Digits:
    """Return the images that none of the four networks was trained on."""
    return read_images(FILE.parent / "digits_test.npz")


def show_ensemble(cores: tuple[int, ...], folder: Path, seconds: float, report: Report) -> EnsembleReport:
    """Allocate the ensemble to the first two cores, ask it and each member every image; about `seconds`."""
    data = load_test_images()
    source = _source(folder, data)
    devices = core_groups([(core,) for core in cores[:2]])
    budget_s = max(1.0, 0.6 * seconds - _LOADING_S)
    limits = SearchLimits(max_iter=20, max_neighs=8, restarts=2)
    settings = AllocateSettings(limits=limits, budget_s=budget_s + _LOADING_S, measure_s=0.02 * budget_s)
    allocated = allocate(source, devices, settings)
    accuracy, members = _accuracies(source, allocated, devices, data)
    found = EnsembleReport(members=members, accuracy=accuracy, images=len(data), allocated=allocated)
    for line in lines(found):
        report(line)
    return found


def _source(folder: Path, data: Digits) -> ModelSource:
    """Return the ensemble, to be allocated with real images."""
    (source,) = find_models(FILE, Settings())
    assert source.ensemble is not None
    samples = folder / "ensemble_images.npy"
    np.save(samples, data.images[:_CALIBRATION])
    return replace(source, ensemble=replace(source.ensemble, calibration=samples))


def _accuracies(
    source: ModelSource, allocated: Allocated, devices: tuple[Device, ...], data: Digits
) -> tuple[float, dict[str, float]]:
    """Return how often the ensemble, as allocated, and each member are right."""
    assert source.ensemble is not None
    alone = [member.source for member in source.ensemble.members]
    together = replace(source, allocation=allocated.allocation)
    cores = ",".join(str(core) for device in devices for core in device.cores) + ","
    server = ServerSettings(tune="never", management=None, metrics=None, cores=cores)
    with Server([together, *alone], settings=Settings(server=server)) as running:

        def right(name: str) -> float:
            (answer,) = predict_with(running, name, data.images).values()
            seen: NDArray[np.int64] = answer.argmax(axis=1)
            return data.accuracy(seen)

        return right(source.name), {member.name: right(member.name) for member in alone}


def lines(found: EnsembleReport) -> list[str]:
    """Return what is said about it: who is right how often, who runs where, and what the search gained."""
    names = [device.name for device in found.allocated.allocation.devices]
    told = [f"an ensemble of four different networks, {found.images} images that none was trained on:"]
    told += [f"  {name:18} {share:7.2%} right" for name, share in found.members.items()]
    told.append(f"  {'together':18} {found.accuracy:7.2%} right")
    told.append(f"allocated to {' and '.join(names)}, batch sizes (- = not there):")
    matrices = {"before": found.allocated.start, "after": found.allocated.allocation.matrix}
    rates = (found.allocated.start_items_per_s, found.allocated.items_per_s)
    for (title, matrix), rate in zip(matrices.items(), rates, strict=True):
        rows = "   ".join(
            f"{name}: {' '.join(str(batch or '-').rjust(3) for batch in row)}"
            for name, row in zip(names, matrix.rows, strict=True)
        )
        told.append(f"  {title:8} {rows}   {rate or 0:10,.0f} images/s")
    log = found.allocated.result
    count = 0 if log is None else log.assessed
    told.append(f"  {count} allocations were measured, repeats differ by {found.allocated.spread or 0:.0%}")
    return told
