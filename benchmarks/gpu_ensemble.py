"""An ensemble of different networks on the GPUs and the cores of a machine: memory, start, search, result.

Its members are placed by what they were measured to hold, allocated by the greedy search, and compared with
the start, and with the cores alone. After eight minutes it is ended and reports what there is. Where there is
no GPU, ``--fake`` runs the whole path on GPUs that compute on the cores and say nothing about speed.

    python -m benchmarks.gpu_ensemble --json gpus.json --picture gpus.png
    python -m benchmarks.gpu_ensemble --cores 2 --quick --fake
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.compare import Comparison
from benchmarks.ensembles import different, ensemble
from benchmarks.figures import Figure, load_average, options, report
from benchmarks.models import model_path
from benchmarks.watchdog import ends_within
from partita.allocating import Allocated, AllocateSettings, allocate, allocate_described
from partita.allocation_picture import draw
from partita.core.allocation import AllocationMatrix
from partita.core.devices import MIB, Device, mib
from partita.core.errors import InvalidInput
from partita.ensemble_bench import EnsembleBench
from partita.planning.allocation_search import SearchLimits
from partita.sources import ModelSource
from partita.system.cpus import read_topology, select_cores
from partita.system.devices import core_groups, cuda_device
from partita.system.gpus import gpu_memory
from partita.testing.fake_gpu import DRIVER
from partita.wire.messages import Gpu
from partita.worker.gpus.interface import GpuDevice
from partita.worker.gpus.opening import open_gpu

FAKES = 2
FAKE_MIB = 512
COPY_BYTES = 64 * MIB
LIMIT_S = 8 * 60.0
REPORT_S = 20.0
"""Set aside for the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long, and on what."""

    large: bool
    """Whether a ResNet-50 is among the members."""
    budget_s: float
    measure_s: float
    limits: SearchLimits
    rounds: int
    copies: int
    batch_sizes: tuple[int, ...]


FULL = Effort(
    large=True,
    budget_s=200.0,
    measure_s=1.0,
    limits=SearchLimits(max_iter=20, max_neighs=12),
    rounds=10,
    copies=20,
    batch_sizes=(8, 16, 32, 64, 128),
)
QUICK = Effort(
    large=False,
    budget_s=2.0,
    measure_s=0.05,
    limits=SearchLimits(max_iter=1, max_neighs=2, restarts=0),
    rounds=2,
    copies=2,
    batch_sizes=(8, 32),
)


def devices(cores: int | None, *, fake: bool) -> tuple[Device, ...]:
    """Return the GPUs of this machine, or two that are none, and its cores as one group."""
    topology = read_topology()
    chosen = select_cores(topology, None if cores is None else str(cores))
    group = core_groups([chosen], topology.memory_bytes)
    if fake:
        made = (cuda_device(index, FAKE_MIB * MIB) for index in range(FAKES))
        return (*(replace(one, driver=DRIVER) for one in made), *group)
    return (*(cuda_device(index, memory) for index, memory in sorted(gpu_memory().items())), *group)


# --- transfers ------------------------------------------------------------------------------------


def transfers(gpu: Device, copies: int) -> Figure:
    """Compare copies to a GPU from page-locked memory with those from any other, GB a second."""
    opened = open_gpu(Gpu(name=gpu.name, driver=gpu.driver, index=gpu.index or 0))
    any_memory = np.ones(COPY_BYTES, np.uint8).data
    locked = opened.page_locked(COPY_BYTES)
    rates: dict[str, list[float]] = {"any": [], "locked": []}
    for _ in range(copies):
        rates["any"].append(_copy(opened, any_memory))
        rates["locked"].append(_copy(opened, locked.view[:COPY_BYTES]))
    locked.release()
    found = Comparison.of("page-locked", rates["any"], rates["locked"], unit="GB/s")
    return Figure(
        name=f"{gpu.name}: copies from page-locked memory ÷ from any",
        figure=f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}] ({median(found.b):.1f} GB/s)",
        bar="",
        passed=None,
        details=rates,
    )


def _copy(gpu: GpuDevice, data: memoryview) -> float:
    """Return GB a second of one copy, memory of the GPU taken and given back included."""
    begun_s = time.perf_counter()
    gpu.store(data).release()
    return data.nbytes / (time.perf_counter() - begun_s) / 1e9


# --- the ensemble ---------------------------------------------------------------------------------


def search(source: ModelSource, on: Sequence[Device], effort: Effort) -> Allocated:
    """Allocate, and say how far it is."""

    def told(_: object) -> None:
        print(".", end="", flush=True)

    settings = AllocateSettings(limits=effort.limits, budget_s=effort.budget_s, measure_s=effort.measure_s)
    found = allocate(source, on, settings, told=told)
    print(flush=True)
    return found


def compare(source: ModelSource, on: Sequence[Device], found: Allocated, effort: Effort) -> list[Figure]:
    """Measure the result, the start, and every member on the cores alone, in turns."""
    winner, largest = found.allocation.matrix, found.batch_sizes[-1]
    none = [[0] * winner.models] * (winner.devices - 1)
    cores_alone = AllocationMatrix.of([*none, [largest] * winner.models])
    others = {"the start": found.start, "the cores alone": cores_alone}
    rates: dict[AllocationMatrix, list[float]] = {matrix: [] for matrix in (winner, *others.values())}
    with EnsembleBench(source, on, found.memory, measure_s=effort.measure_s) as bench:
        for _ in range(effort.rounds):
            for matrix, taken in rates.items():
                taken.append(bench(matrix))
    figures = []
    for name, matrix in others.items():
        if min(rates[matrix]) <= 0:
            figures.append(Figure(name=f"result ÷ {name}", figure="does not fit", bar="", passed=None))
            continue
        one = Comparison.of(name, rates[matrix], rates[winner], unit="items/s")
        figures.append(
            Figure(
                name=f"result {winner} ÷ {name} {matrix}",
                figure=f"{one.ratio:.2f} [{one.low:.2f}, {one.high:.2f}] ({median(one.b):,.0f} items/s)",
                bar="",
                passed=None,
                details={"result": one.b, "other": one.a},
            )
        )
    return figures


def memory(found: Allocated) -> list[Figure]:
    """Return what each member holds on each device, with the smallest and the largest batch."""
    small, large = found.batch_sizes[0], found.batch_sizes[-1]
    return [
        Figure(
            name=f"{model} on {device.name} holds",
            figure=f"{mib(one.at(small))} with batches of {small}, {mib(one.at(large))} with {large}",
            bar="",
            passed=None,
            details={"points": one.points, "measured": one.is_measured},
        )
        for device, row in zip(found.allocation.devices, found.memory, strict=True)
        for model, one in zip(found.allocation.models, row, strict=True)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "gpu_ensemble")
    parser.add_argument("--cores", type=int, metavar="N", help="cores beside the GPUs, by default all")
    parser.add_argument("--fake", action="store_true", help="GPUs that are none, for machines without any")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw the search and the allocation")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    effort = QUICK if given.quick else FULL
    try:
        on = devices(given.cores, fake=given.fake)
    except InvalidInput as error:
        print(f"{error}; --cores says how many there are to be")
        return 2
    gpus = [device for device in on if device.is_gpu]
    if not gpus:
        print("there is no GPU here; --fake runs the whole path without any")
        return 2
    print(load_average(), flush=True)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi numbers them
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = different(Path(folder))
        paths = [*paths, model_path("resnet50")] if effort.large else paths[:2]
        source = ensemble(Path(folder), paths, batch_sizes=effort.batch_sizes)
        found: list[Allocated] = []

        def finish() -> int:
            if given.picture is not None:
                title = f"an ensemble on {len(gpus)} GPUs{' (fake)' if given.fake else ''}"
                draw(given.picture, found[0] if found else allocate_described(source, on), title=title)
                print(f"drawn: {given.picture}")
            return report("gpu_ensemble", figures, given.json)

        with ends_within(given.limit - REPORT_S, finish):
            figures.extend(transfers(gpu, effort.copies) for gpu in gpus)
            names = ", ".join(device.name for device in on)
            print(f"allocating {len(paths)} networks to {names} …", flush=True)
            found.append(search(source, on, effort))
            figures += memory(found[0])
            figures += compare(source, on, found[0], effort)
        return finish()


if __name__ == "__main__":
    sys.exit(main())
