"""Allocates an ensemble: worst-fit decreasing, then a bounded greedy search by measurement."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Any

from partita.allocation_file import Allocation, gpus_document
from partita.core.allocation import AllocationMatrix
from partita.core.devices import Device
from partita.core.errors import InvalidInput
from partita.core.footprint import Footprint
from partita.ensemble_bench import EnsembleBench
from partita.ensemble_file import MemberSource
from partita.footprints import estimated, measured
from partita.planning.allocation_rate import rate_predictor
from partita.planning.allocation_search import Assessment, SearchLimits, SearchResult, search
from partita.planning.bin_packing import worst_fit_decreasing
from partita.planning.matrices import count_matrices, count_neighbours, scientific
from partita.sources import ModelSource

CONFIRMATIONS = 3
"""How often the finalists are measured once more, in turns."""
FINALISTS = 4
"""The fastest allocations of the search that are measured again, besides the start and those beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateSettings:
    """How far to search."""

    limits: SearchLimits = field(default_factory=lambda: SearchLimits(max_iter=20, max_neighs=12))
    budget_s: float = 60.0
    """The search stops after this long; what was found by then counts."""
    measure_s: float = 0.5
    """Length of one measurement. A longer one is steadier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """What was found. Rates are items per second; None on a machine that is only described."""

    allocation: Allocation
    start: AllocationMatrix
    batch_sizes: tuple[int, ...]
    memory: Sequence[Sequence[Footprint]]
    """[device][model], of one worker."""
    start_items_per_s: float | None = None
    items_per_s: float | None = None
    spread: float | None = None
    """(largest − smallest) ÷ median of the repeated measurements, the larger of start's and winner's."""
    result: SearchResult | None = None

    @property
    def memory_is_measured(self) -> bool:
        """Whether no worker's memory is a guess."""
        return all(one.is_measured for row in self.memory for one in row)

    def memory_bytes(self, batch: int) -> list[list[int]]:
        """Return what each worker holds with batches of this size, [device][model]."""
        return _bytes(self.memory, batch)

    def as_json(self) -> dict[str, Any]:
        """Return the document that ``partita allocate`` prints and keeps."""
        matrix, result = self.allocation.matrix, self.result
        return {
            "devices": [device.name for device in self.allocation.devices],
            "gpus": gpus_document(self.allocation.devices),
            "models": list(self.allocation.models),
            "batch_sizes": list(self.batch_sizes),
            "start": self.start.as_lists(),
            "matrix": matrix.as_lists(),
            "start_items_per_s": self.start_items_per_s,
            "items_per_s": self.items_per_s,
            "spread": self.spread,
            "assessed": 0 if result is None else result.assessed,
            "iterations": 0 if result is None else result.iterations,
            "matrices_total": scientific(
                count_matrices(matrix.devices, matrix.models, len(self.batch_sizes))
            ),
            "neighbours": count_neighbours(matrix, self.batch_sizes),
            "visited_rate": None if result is None else result.visited_rate,
            "memory_bytes": self.memory_bytes(self.batch_sizes[0]),
            "memory_bytes_largest": self.memory_bytes(self.batch_sizes[-1]),
            "memory_is_measured": self.memory_is_measured,
            "log": [] if result is None else [one.as_json() for one in result.log],
        }


def allocate_described(source: ModelSource, devices: Sequence[Device]) -> Allocated:
    """Return the start for a machine that is only described, by a guess at memory; nothing is run.

    Raises `NoFeasiblePlan` if the members do not fit.
    """
    models, batch_sizes = _described(source)
    memory = _everywhere(devices, lambda gpu: [estimated(m.source, gpu) for m in _members(source)])
    start = worst_fit_decreasing(devices, models, _bytes(memory, batch_sizes[0]), batch_sizes[0])
    return Allocated(
        allocation=Allocation(devices=tuple(devices), models=models, matrix=start),
        start=start,
        batch_sizes=batch_sizes,
        memory=memory,
    )


def allocate(
    source: ModelSource,
    devices: Sequence[Device],
    settings: AllocateSettings | None = None,
    *,
    known: Mapping[AllocationMatrix, float] = MappingProxyType({}),
    told: Callable[[Assessment], None] = lambda _: None,
) -> Allocated:
    """Return the fastest allocation found on this machine's core groups, never slower than the start.

    `known` are rates from an earlier search, which are not measured again until the end. The fastest few and
    the start are measured again in turns, and the fastest of them then wins. Raises `NoFeasiblePlan` if the
    members do not fit, `ModelUnavailable` if one cannot be loaded.
    """
    given = settings or AllocateSettings()
    started_s = time.monotonic()
    models, batch_sizes = _described(source)
    alone = _everywhere(devices, lambda gpu: [measured(m.source, batch_sizes, gpu) for m in _members(source)])
    # Before the system is built: what cannot fit is said at once.
    worst_fit_decreasing(devices, models, _bytes(alone, batch_sizes[0]), batch_sizes[0])
    with EnsembleBench(source, devices, alone, measure_s=given.measure_s) as bench:
        start = worst_fit_decreasing(devices, models, _bytes(bench.memory, batch_sizes[0]), batch_sizes[0])
        latencies = bench.latencies_ms()
        predict = rate_predictor(latencies) if latencies else None
        others = [m for m in everywhere(len(devices), len(models), batch_sizes, predict) if bench.fits(m)]
        result = search(
            start,
            batch_sizes,
            lambda matrix: known[matrix] if matrix in known else bench(matrix),
            given.limits,
            predict=predict,
            is_over=lambda: time.monotonic() - started_s > given.budget_s,
            told=told,
            others=others,
        )
        matrix, rates, spread = _confirmed(bench, result, others)
    return Allocated(
        allocation=Allocation(devices=tuple(devices), models=models, matrix=matrix),
        start=start,
        batch_sizes=batch_sizes,
        memory=bench.memory,
        start_items_per_s=rates[0],
        items_per_s=rates[1],
        spread=spread,
        result=result,
    )


def everywhere(
    devices: int,
    models: int,
    batch_sizes: Sequence[int],
    predict: Callable[[AllocationMatrix], float] | None,
) -> list[AllocationMatrix]:
    """Return every model on every device with one batch size: the two that promise most, else the largest."""
    matrices = [AllocationMatrix(((batch,) * models,) * devices) for batch in batch_sizes]
    return sorted(matrices, key=predict, reverse=True)[:2] if predict is not None else matrices[-1:]


def _described(source: ModelSource) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the members' names and the batch sizes."""
    names = tuple(member.name for member in _members(source))
    assert source.ensemble is not None
    return names, source.ensemble.batch_sizes


def _members(source: ModelSource) -> tuple[MemberSource, ...]:
    if source.ensemble is None:
        raise InvalidInput(f"{source.path} is one model and no ensemble: partita plan {source.path.name}")
    return source.ensemble.members


def _everywhere(
    devices: Sequence[Device], ask: Callable[[Device | None], list[Footprint]]
) -> list[list[Footprint]]:
    """Return what the models hold on each device: asked once for the cores, and once for GPUs of a kind."""
    known: dict[tuple[str, str], list[Footprint]] = {}
    for device in devices:
        if (device.kind, device.driver) not in known:
            known[device.kind, device.driver] = ask(device if device.is_gpu else None)
    return [list(known[device.kind, device.driver]) for device in devices]


def _bytes(memory: Sequence[Sequence[Footprint]], batch: int) -> list[list[int]]:
    return [[one.at(batch) for one in row] for row in memory]


def _confirmed(
    bench: EnsembleBench, result: SearchResult, others: Sequence[AllocationMatrix]
) -> tuple[AllocationMatrix, tuple[float, float], float]:
    """Measure the finalists again in turns; return the fastest, (the start's, its) rate, and the spread.

    The best of many short measurements is the luckiest as well, so it has to show itself beside the others.
    """
    fastest = sorted(result.log, key=lambda one: -one.items_per_s)[:FINALISTS]
    finalists = list(dict.fromkeys((result.start, *others, *(one.matrix for one in fastest))))
    rates: dict[AllocationMatrix, list[float]] = {matrix: [] for matrix in finalists}
    for _ in range(CONFIRMATIONS):
        for matrix in finalists:
            rates[matrix].append(bench(matrix))
    winner = max(finalists, key=lambda matrix: median(rates[matrix]))
    spread = max(_spread(rates[result.start]), _spread(rates[winner]))
    return winner, (median(rates[result.start]), median(rates[winner])), spread


def _spread(rates: Sequence[float]) -> float:
    return (max(rates) - min(rates)) / median(rates) if median(rates) else 0.0
