"""Allocates an ensemble: worst-fit decreasing, then a bounded greedy search by measurement."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from partita.planning.racing import race
from partita.sources import ModelSource

SEARCH_SHARE = 0.6
"""Of the time budget; the rest is for the finalists."""
FINALISTS = 5
"""The fastest allocations of the search that are measured again, besides the start."""
FINALISTS_EVERYWHERE = 2
"""And the fastest that have every member on every device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateSettings:
    """How far to search."""

    limits: SearchLimits = field(default_factory=lambda: SearchLimits(max_iter=20, max_neighs=12))
    budget_s: float = 60.0
    """Search and final stop after this long; what was found by then counts. Every finalist is measured a few
    times even so."""
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

    `known` are rates from an earlier search, which are not measured again unless they decide. A step of the
    search is measured twice, and the fastest few and the start race in the end, measured in turns. Raises
    `NoFeasiblePlan` if the members do not fit, `ModelUnavailable` if one cannot be loaded.
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
        others = [m for m in everywhere(len(devices), len(models), batch_sizes) if bench.fits(m)]
        result = search(
            start,
            batch_sizes,
            lambda matrix: known[matrix] if matrix in known else bench(matrix),
            given.limits,
            predict=predict,
            is_over=lambda: time.monotonic() - started_s > SEARCH_SHARE * given.budget_s,
            told=told,
            others=others,
            again=lambda one, other: _in_turns(bench, one, other),
        )
        final = race(
            finalists(result, others),
            bench,
            kept=[start],
            is_over=lambda: time.monotonic() - started_s > given.budget_s,
        )
    rates = [median(final.rates[one]) for one in (start, final.winner)]
    return Allocated(
        allocation=Allocation(devices=tuple(devices), models=models, matrix=final.winner),
        start=start,
        batch_sizes=batch_sizes,
        memory=bench.memory,
        start_items_per_s=rates[0],
        items_per_s=rates[1],
        spread=max(_spread(final.rates[one]) for one in (start, final.winner)),
        result=result,
    )


def everywhere(devices: int, models: int, batch_sizes: Sequence[int]) -> list[AllocationMatrix]:
    """Return every model on every device, with each batch size: what a careful user would try."""
    return [AllocationMatrix(((batch,) * models,) * devices) for batch in batch_sizes]


def finalists(result: SearchResult, others: Sequence[AllocationMatrix]) -> list[AllocationMatrix]:
    """Return the start, and what is fastest by what the search has measured."""
    rates = {one.matrix: one.items_per_s for one in result.log}

    def fastest(among: Iterable[AllocationMatrix], count: int) -> list[AllocationMatrix]:
        return sorted(among, key=lambda matrix: -rates[matrix])[:count]

    beside = fastest((one for one in others if one in rates), FINALISTS_EVERYWHERE)
    return list(dict.fromkeys((result.start, *fastest(rates, FINALISTS), *beside)))


def _in_turns(bench: EnsembleBench, one: AllocationMatrix, other: AllocationMatrix) -> tuple[float, float]:
    """Measure A B B A, so that a drift of the machine meets both alike."""
    first, second, third, fourth = (bench(matrix) for matrix in (one, other, other, one))
    return (first + fourth) / 2, (second + third) / 2


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


def _spread(rates: Sequence[float]) -> float:
    return (max(rates) - min(rates)) / median(rates) if median(rates) else 0.0
